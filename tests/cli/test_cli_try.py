"""``trainwright try``: an unmodified Hugging Face script on both loops, in a folder of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainwright.trying.causes import (
    cause_before_probing,
    cause_from_probes,
    cause_from_single_batches,
    other_gradients,
    other_weights,
    unknown,
)
from trainwright.trying.compare import Difference, first_difference, is_noisy, only_rounding, within_noise
from trainwright.trying.plan import Plan, kill_at, save_every
from trainwright.trying.recorder import Recorder
from trainwright.trying.running import Ran
from trainwright.trying.safety import _only_reads, environment
from trainwright.trying.switch import changes_in
from trainwright.trying.trial import Request, ScriptFailed, _Try

DATA = """
import random
chance = random.Random(0)
def rows(count, length=8):
    return [{"input_ids": [chance.randrange(20) for _ in range(length)], "labels": n % 2} for n in range(count)]
"""

#: With everything that a try must keep out of the way: a folder, a tracker, an upload, evaluations, a resume.
CLASSIFIER = """
from dataclasses import dataclass
from transformers import BertConfig, BertForSequenceClassification, EarlyStoppingCallback, HfArgumentParser
from transformers import Trainer, TrainerCallback, TrainingArguments
from data import rows

@dataclass
class Size:
    rows: int = 8

class Elsewhere(TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs):
        args.output_dir = "out"

class Mine(Trainer):
    def _get_output_dir(self, trial=None):
        return "out"

    def log(self, logs, *args):
        logs.pop("loss", None)
        super().log(logs, *args)

    def _rotate_checkpoints(self, *args, **kwargs):
        pass

if __name__ == "__main__":
    size, args = HfArgumentParser((Size, TrainingArguments)).parse_args_into_dataclasses()
    sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=20)
    none = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = BertForSequenceClassification(BertConfig(**sizes, **none, max_position_embeddings=8))
    data = rows(size.rows)
    listening = [EarlyStoppingCallback(), Elsewhere()]
    trainer = Mine(model, args, train_dataset=data, eval_dataset=data, callbacks=listening)
    trainer.save_model("mine")
    trainer.args.output_dir = "out"
    trainer.save_model()
    trainer.save_state()
    trainer.train(resume_from_checkpoint=True)
    trainer.push_to_hub()
    open("after.txt", "w").close()
"""
WORDS = [
    *("--output_dir", "out", "--rows", "12", "--per_device_train_batch_size", "4"),
    *("--eval_strategy", "epoch", "--save_strategy", "epoch", "--load_best_model_at_end", "true"),
    *("--report_to", "tensorboard", "--push_to_hub", "true"),
]

#: transformers counts targets that the model shifts away.
LANGUAGE_MODEL = """
import transformers
from data import rows
config = transformers.GPT2Config(vocab_size=20, n_embd=8, n_layer=1, n_head=2, n_positions=8)
model = transformers.GPT2LMHeadModel(config)
data = [{"input_ids": row["input_ids"], "labels": row["input_ids"]} for row in rows(8)]
args = transformers.TrainingArguments("out", max_steps=3, per_device_train_batch_size=2)
transformers.Trainer(model, args, train_dataset=data).train()
"""


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    places = f"{Path(__file__).parents[2]}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    (folder / "tmp").mkdir(exist_ok=True)
    set_here = {"PYTHONPATH": places, "TMPDIR": str(folder / "tmp"), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return subprocess.Popen(
        [sys.executable, "-m", "trainwright", "try", *words],
        cwd=folder,
        env={**os.environ, **set_here},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def tried(folder: Path, script: str, *words: str) -> tuple[int, str, str]:
    (folder / "data.py").write_text(DATA)
    (folder / "train.py").write_text(script)
    process = start(folder, *words)
    out, err = process.communicate()
    return process.returncode, out, err


def left(folder: Path) -> set[str]:
    kept = {"data.py", "train.py", "tmp", "__pycache__"}
    found = {path.name for path in folder.iterdir()} - kept
    return found | {f"tmp/{path.name}" for path in (folder / "tmp").iterdir() if path.name.startswith("trainwright")}


@pytest.mark.slow
def test_both_agree_and_nothing_is_touched(tmp_path: Path) -> None:
    files = ("out/checkpoint-500/model.safetensors", "out/checkpoint-2/model.safetensors", "mine/model.safetensors")
    precious = [tmp_path / name for name in files]
    for file in precious:
        file.parent.mkdir(parents=True)
        file.write_text("precious")
    words = [*WORDS, "--hub_token", "hf_SecretToken123456"]
    code, out, err = tried(tmp_path, CLASSIFIER, "--steps", "5", "--json", "train.py", *words)
    assert code == 0, (out, err)
    assert "SecretToken" not in out
    assert [file.read_text() for file in precious] == ["precious"] * 3
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"checkpoint-500", "checkpoint-2"}
    facts = json.loads(out)
    assert facts["agrees"]
    assert facts["losses"]["equal"]
    assert len(facts["losses"]["trainwright"]) == facts["steps"] == 5
    for library in ("transformers", "trainwright"):
        resume = facts["resume"][library]
        assert (resume["killed_after_step"], resume["resumed_from_step"], resume["equal"]) == (3, 2, True)
        assert facts["speed"][library]["samples_per_second"] > 0
        assert facts["speed"][library]["peak_memory_bytes"] > 0
    assert (facts["back"]["resumed"], facts["back"]["from_step"]) == (True, 2)
    assert facts["back"]["losses"] == facts["losses"]["trainwright"][2:]
    assert [note for note in facts["notes"] if "resumes from a checkpoint of its own" in note]
    assert [
        note
        for note in facts["notes"]
        if "Mine defines _get_output_dir, _rotate_checkpoints, which trainwright" in note
    ]
    assert [Path(change["file"]).name for change in facts["switch"]] == ["train.py"]
    assert facts["switch"][0]["after"] == [
        "from trainwright import Trainer, TrainingArguments",
        "from transformers import TrainerCallback",
    ]
    assert left(tmp_path) == {"out", "mine"}


#: Trains in a process of its own, and then goes on as if nothing had happened.
STARTS_A_PROCESS = """
import multiprocessing
import transformers
from data import rows

def work():
    config = transformers.GPT2Config(vocab_size=20, n_embd=8, n_layer=1, n_head=2, n_positions=8)
    args = transformers.TrainingArguments("out", max_steps=3, per_device_train_batch_size=2)
    transformers.Trainer(transformers.GPT2LMHeadModel(config), args, train_dataset=rows(8)).train()

if __name__ == "__main__":
    process = multiprocessing.get_context("KIND").Process(target=work)
    process.start()
    process.join()
"""


@pytest.mark.full
@pytest.mark.parametrize("kind", ["spawn", "fork"])
def test_a_training_in_another_process_is_not_run_and_is_named(tmp_path: Path, kind: str) -> None:
    code, out, err = tried(tmp_path, STARTS_A_PROCESS.replace("KIND", kind), "train.py")
    assert code == 1, err
    assert "trains in a process that it starts" in out
    assert "out" not in left(tmp_path)


#: Goes on whatever its training raises.
SWALLOWS = """
import transformers

class Rows:
    def __len__(self):
        return 8
    def __getitem__(self, index):
        raise ValueError("no such row")

config = transformers.GPT2Config(vocab_size=20, n_embd=8, n_layer=1, n_head=2, n_positions=8)
args = transformers.TrainingArguments("out", max_steps=3, per_device_train_batch_size=2)
try:
    transformers.Trainer(transformers.GPT2LMHeadModel(config), args, train_dataset=Rows()).train()
except Exception:
    print("never mind")
"""


@pytest.mark.full
def test_an_error_that_the_script_swallows_is_shown(tmp_path: Path) -> None:
    code, out, err = tried(tmp_path, SWALLOWS, "train.py")
    assert code == 1, err
    assert "on transformers itself raised an error" in out
    assert "ValueError: no such row" in out
    assert "never called train()" not in out


class Pretended:
    """Runs nothing: on this GPU the model trains only where the order of additions may change."""

    def __init__(self) -> None:
        self.plans: list[Plan] = []

    def run(self, plan: Plan) -> Ran:
        self.plans.append(plan)
        facts = {"outcome": "killed"} if not plan.repeatable else {"outcome": "failed", "traceback": REFUSAL}
        return Ran(plan, -9, False, facts)


@pytest.mark.full
def test_a_script_that_clears_its_folder_is_killed_and_resumed_all_the_same(tmp_path: Path) -> None:
    before = LANGUAGE_MODEL.index("transformers.Trainer(")
    clears = "import shutil\nshutil.rmtree(args.output_dir, ignore_errors=True)\n"
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").touch()
    script = LANGUAGE_MODEL[:before] + clears + LANGUAGE_MODEL[before:]
    _, out, err = tried(tmp_path, script, "--json", "train.py")
    facts = json.loads(out)
    assert facts["resume"]["trainwright"]["equal"], (facts, err)
    assert facts["back"]["resumed"]
    assert (tmp_path / "out" / "precious").exists()


@pytest.mark.slow
def test_a_run_that_does_not_even_begin_in_time_says_so(tmp_path: Path) -> None:
    """Within its first second the process that the runs are forked from is still importing torch."""
    code, out, _ = tried(tmp_path, LANGUAGE_MODEL, "--timeout", "1", "train.py")
    assert code == 1
    assert "did not end in time: raise --timeout, or lower --steps." in out
    assert left(tmp_path) <= {f"tmp/{name}" for name in os.listdir(tmp_path / "tmp") if name.endswith(".log")}


REFUSAL = "RuntimeError: cumsum_cuda_kernel does not have a deterministic implementation, but you set ..."


def test_a_model_without_a_fixed_order_on_its_gpu_is_run_without(tmp_path: Path) -> None:
    processes: Any = Pretended()
    one = _Try(Request(tmp_path / "train.py", [], 5, 9.0), tmp_path, processes, lambda line: None, on_gpu=True)
    with pytest.raises(ScriptFailed):
        # The pretended runs do not train; here it is about how they are asked to.
        one.facts()
    asked = [(plan.library, plan.repeatable) for plan in processes.plans]
    assert asked[:2] == [("transformers", True), ("trainwright", True)]
    assert {repeatable for _, repeatable in asked[2:]} == {False}
    assert any("no deterministic form" in note for note in one._notes([ran([1.0], steps=5)] * 2))


def test_gradients_of_another_size_are_not_called_the_same() -> None:
    theirs = ran([1.0, 1.0], gradient_norms={"1": 4.0, "2": 4.0})
    assert other_gradients(theirs, ran([1.0, 1.0], gradient_norms={"1": 4.0001, "2": 4.0})) is None
    cause = other_gradients(theirs, ran([1.0, 1.0], gradient_norms={"1": 4.0, "2": 1.0}))
    assert cause is not None
    assert "step 2 is 4 with transformers and 1 here" in cause.text
    assert not cause.harmless


def test_a_reason_that_is_harmless_hides_no_other_gradients() -> None:
    theirs, ours = (ran([1.0], gradient_norms={"1": norm}) for norm in (1.0, 100.0))
    cause = cause_from_probes(ran([]), theirs, ours)
    assert cause is not None
    assert cause.name == "gradients"
    near = ran([1.000001], gradient_norms={"1": 100.0})
    rounded = cause_before_probing(theirs, near, ran([1.0]), Difference(1, 1.0, 1.000001))
    assert rounded is not None
    assert not rounded.harmless


def test_other_weights_at_the_end_are_not_called_the_same() -> None:
    assert other_weights(0.0) is None
    for largest in (1.0, None):
        cause = other_weights(largest)
        assert cause is not None
        assert not cause.harmless


def test_what_changes_something_on_the_hub_is_told_from_what_reads() -> None:
    for name in (
        "delete_repo",
        "create_tag",
        "update_repo_settings",
        "move_repo",
        "upload_folder",
        "create_discussion",
    ):
        assert not _only_reads(name), name
    for name in ("hf_hub_download", "model_info", "list_models", "repo_exists", "whoami"):
        assert _only_reads(name), name


@pytest.mark.full
def test_a_difference_has_its_reason(tmp_path: Path) -> None:
    code, out, err = tried(tmp_path, LANGUAGE_MODEL, "train.py")
    assert code == 1, err
    assert "different from step 1 on" in out
    assert "counts labels that the model shifts away" in out
    assert "docs/coming-from-hugging-face.md" in out
    assert "The script sets max_steps=3" in out
    assert "+ transformers.Trainer" not in out
    assert "+ trainwright.Trainer(model, args, train_dataset=data).train()" in out
    assert left(tmp_path) == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "shown"),
    [
        ("raise ValueError('no data here')", ["on transformers itself raised an error", "ValueError: no data here"]),
        pytest.param("import transformers", ["train.py never called train()"], marks=pytest.mark.full),
    ],
    ids=["error", "no training"],
)
def test_a_script_that_does_not_train_is_told_apart(tmp_path: Path, script: str, shown: list[str]) -> None:
    code, out, _ = tried(tmp_path, script, "train.py")
    assert code == 1
    assert all(words in out for words in shown), out
    # Only the log, which the last line names.
    (log,) = left(tmp_path)
    assert log.endswith(".log")
    assert log in out


@pytest.mark.slow
def test_ctrl_c_leaves_neither_processes_nor_folders(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os, time\nopen('pid', 'a').write(f'{os.getpid()} ')\ntime.sleep(60)")
    process = start(tmp_path, "train.py")
    pids, deadline = tmp_path / "pid", time.monotonic() + 60
    while (not pids.exists() or not pids.read_text().endswith(" ")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Interrupted" in err
    for pid in pids.read_text().split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)
    assert left(tmp_path) == {"pid"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [(None, "no Python script"), ("from trainwright import Trainer\n", "from trainwright already")],
    ids=["missing", "ours"],
)
def test_what_cannot_be_tried_is_refused(tmp_path: Path, text: str | None, shown: str) -> None:
    from typer.testing import CliRunner

    from trainwright.cli.app import app

    script = tmp_path / "train.py"
    if text is not None:
        script.write_text(text)
    result = CliRunner().invoke(app, ["try", str(script)])
    assert result.exit_code == 2
    assert shown in result.output


def test_the_lines_to_change_are_found(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "from transformers import (\n    AutoModel,\n    Trainer,\n)\n"
        "def main():\n    from transformers.training_args import TrainingArguments as Args\n"
    )
    first, second = changes_in(script)
    assert (first.line, first.after) == (
        1,
        ["from trainwright import Trainer", "from transformers import (", "    AutoModel,", ")"],
    )
    assert (second.line, second.after) == (6, ["    from trainwright import TrainingArguments as Args"])


def test_a_kill_comes_after_a_save_and_before_the_end() -> None:
    for steps in range(3, 200):
        assert 0 < save_every(steps) < kill_at(steps) < steps
    assert kill_at(2) == 0


def test_a_run_reports_to_nobody_and_is_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    monkeypatch.setenv("TRACKIO_SPACE_ID", "me/it")
    found = environment(tmp_path)
    assert found.keys() & {"WORLD_SIZE", "TRACKIO_SPACE_ID"} == set()
    assert found["TRACKIO_DIR"] == str(tmp_path / "trackers")
    assert (found["CUDA_VISIBLE_DEVICES"], found["WANDB_MODE"]) == ("2", "disabled")


def ran(losses: list[float], **observed: Any) -> Ran:
    numbered = {str(step): loss for step, loss in enumerate(losses, 1)}
    facts = {"outcome": "trained", "losses": numbered, "batches": {"1": ["a"]}, "weights": "w", "accumulation": 1}
    return Ran(Plan("transformers", "train.py", [], "", 3), 0, False, {**facts, **observed})


@pytest.mark.parametrize(
    ("theirs", "ours", "killed", "name"),
    [
        (ran([1.0, 2.0]), ran([1.0, 2.1], weights="other"), ran([1.0]), "initial weights"),
        (ran([1.0, 2.0]), ran([1.0, 2.1]), ran([1.1]), "not repeatable"),
        (ran([1.0, 2.0]), ran([1.1, 2.1], batches={"1": ["b"]}), ran([1.0]), "data"),
        (ran([1.0, 2.0]), ran([1.0, 2.000001]), ran([1.0]), "rounding"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_reason_that_the_runs_show(theirs: Ran, ours: Ran, killed: Ran, name: str) -> None:
    difference = first_difference(theirs.losses, ours.losses)
    assert difference is not None
    cause = cause_before_probing(theirs, ours, killed, difference)
    assert cause is not None
    assert cause.name == name


@pytest.mark.parametrize(
    ("theirs", "ours", "pieces", "name"),
    [
        (ran([1.0]), ran([1.0]), 1, "dropout"),
        (ran([0.9]), ran([1.0], own_loss=[[1.0, 4]]), 1, "loss normalisation"),
        (ran([4.0]), ran([2.0], own_loss=[[1.0, 4], [3.0, 4]]), 2, "gradient accumulation"),
        (ran([1.8]), ran([1.5], own_loss=[[1.0, 6], [3.0, 2]]), 2, None),
        (ran([1.0]), ran([0.9], own_loss=[[1.0, 4]]), 1, None),
        (ran([1.0]), ran([0.9]), 1, None),
    ],
)
def test_a_reason_that_a_closer_look_shows(theirs: Ran, ours: Ran, pieces: int, name: str | None) -> None:
    cause = cause_from_probes(ran([], accumulation=pieces), theirs, ours)
    assert (cause and cause.name) == name
    if name is None:
        assert not unknown(theirs, ours).harmless


def test_what_accumulates_otherwise_is_told_from_what_counts_otherwise() -> None:
    several = ran([], accumulation=4)
    same = cause_from_single_batches(several, ran([1.0]), ran([1.0]))
    assert same is not None
    assert same.name == "gradient accumulation"
    assert "override count_targets" in same.text
    shifted = cause_from_single_batches(several, ran([0.9]), ran([1.0], own_loss=[[1.0, 4]]))
    assert shifted is not None
    assert shifted.name == "loss normalisation"
    assert cause_from_single_batches(several, ran([0.9]), ran([0.8])) is None


def test_losses_are_compared_bit_by_bit() -> None:
    one = {1: 1.0, 2: float("nan"), 3: 2.0}
    assert first_difference(one, dict(one)) is None
    near = {**one, 3: 2.000001}
    found = first_difference(one, near)
    assert found is not None
    assert found.step == 3
    assert only_rounding(one, near)
    assert not only_rounding(one, {**one, 3: 2.1})


def test_a_busy_machine_compares_nothing() -> None:
    def took(*runs: float, quartiles: tuple[float, float]) -> dict[str, Any]:
        return {"step_seconds_of_runs": list(runs), "step_seconds_quartiles": list(quartiles)}

    calm = took(1.0, 1.1, quartiles=(1.0, 1.1))
    assert not is_noisy(calm, calm)
    assert is_noisy(calm, took(1.0, 1.0, quartiles=(1.0, 3.0)))
    assert is_noisy(took(1.0, 2.0, quartiles=(1.0, 1.1)))
    assert within_noise(calm, took(1.05, 1.2, quartiles=(1.0, 1.1)))
    assert not within_noise(calm, took(0.5, 0.6, quartiles=(0.5, 0.6)))


def test_what_a_gpu_still_has_to_do_belongs_to_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def wait(device: Any = None) -> None:
        clock[0] += 1.0

    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(torch.accelerator, "synchronize", wait)
    recorder = Recorder(Plan("trainwright", "train.py", [], "", 3), "")
    args = SimpleNamespace(device=torch.device("cuda"), max_steps=3)
    for step in (1, 2, 3):
        recorder.on_step_end(args, SimpleNamespace(global_step=step), None)
    assert recorder.facts["ends"] == {1: 1.0, 2: 2.0, 3: 3.0}
