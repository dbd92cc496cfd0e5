"""``trainwright train`` and its relatives from outside: what they print, what they leave, how they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import datasets
import jsonschema
import pytest
import yaml
from safetensors.torch import load_file
from typer.testing import CliRunner

from trainwright.checkpoint.directory import list_checkpoints
from trainwright.cli.app import app
from trainwright.config.loading import load_experiment
from trainwright.config.yaml12 import read_yaml_file
from trainwright.experiment.library import descriptions
from trainwright.experiment.schema import schema_text

COMMAND = [sys.executable, "-m", "trainwright"]
TABLE = "a,b,kind\n" + "\n".join(f"{i},{i * i % 11},{'xy'[i % 2]}" for i in range(96))
EXPERIMENT = """
model: {name: mlp, options: {width: 8, layers: 1}}
data: {train: t.csv, target: kind, holdout: 0.25}
training: {num_train_epochs: 3, per_device_train_batch_size: 8, use_cpu: true, seed: 7}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "t.csv").write_text(TABLE)
    (tmp_path / "e.yaml").write_text(EXPERIMENT)
    return tmp_path


def call(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


@pytest.mark.slow
def test_train_evaluate_predict(place: Path) -> None:
    done = call("train", "e.yaml", "training.learning_rate=1e-3", "--checkpoint.save_total_limit", "1")
    assert done.exit_code == 0, done.output
    assert "predicts kind (2 classes) from 2 numbers and 0 categories" in done.output
    assert "eval_accuracy" in done.output
    stored = yaml.safe_load((place / "runs/e/experiment.yaml").read_text())
    assert stored["training"]["learning_rate"] == 1e-3
    assert stored["checkpoint"] == {"save_total_limit": 1}
    assert stored["data"]["train"] == str(place / "t.csv")
    curve = (place / "runs/e/metrics.jsonl").read_text()
    shown = call("evaluate", "runs/e", "--json")
    metrics = json.loads(shown.output)
    assert metrics == json.loads((place / "runs/e/eval_results.json").read_text())
    last = call("evaluate", "e.yaml", "--checkpoint", "last", "--json")
    assert json.loads(last.output)["eval_loss"] > 0
    assert (place / "runs/e/metrics.jsonl").read_text() == curve
    told = call("predict", "runs/e", "--data", "t.csv", "--output", "out/p.jsonl")
    assert "96 predictions in out/p.jsonl" in told.output
    assert json.loads((place / "out/p.jsonl").read_text().splitlines()[0])["prediction"] in ("x", "y")


@pytest.mark.slow
def test_the_same_command_goes_on(place: Path) -> None:
    """Stopped in the middle and run again, it ends with the weights of a run that was never stopped."""
    assert call("train", "e.yaml", "name=whole").exit_code == 0
    assert call("train", "e.yaml", "name=parts", "training.max_hours=1e-9").exit_code == 75
    for _ in range(40):
        done = call("train", "e.yaml", "name=parts", "training.max_hours=0.00002")
        if done.exit_code == 0:
            break
        assert done.exit_code == 75, done.output
    else:
        done = call("train", "e.yaml", "name=parts")
    assert done.exit_code == 0, done.output
    whole, parts = (load_file(place / "runs" / name / "model.safetensors") for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert all(bool((whole[name] == parts[name]).all()) for name in whole)
    again = call("train", "e.yaml", "name=parts")
    assert again.exit_code == 0
    assert "runs/parts is finished at step" in again.output


def test_resume_from_the_folder_alone_even_if_it_moved(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert call("train", "e.yaml", "training.max_steps=5").exit_code == 0
    (place / "runs/e").rename(place / "moved")
    done = call("resume", "moved", "training.max_steps=8")
    assert done.exit_code == 0, done.output
    assert "From step 5 on with max_steps 8 (was 5)" in caplog.text
    changed = [json.loads(line) for line in (place / "moved/config.history.jsonl").read_text().splitlines()]
    assert [(one["step"], one["what"], one["from"], one["to"]) for one in changed] == [(5, "max_steps", 5, 8)]
    assert list_checkpoints(place / "moved")[-1].name == "checkpoint-8"
    assert not (place / "runs/e").exists()


@pytest.mark.slow
def test_data_that_changed_in_between_is_refused(place: Path) -> None:
    assert call("train", "e.yaml", "training.max_steps=2").exit_code == 0
    # Written again with the same contents: nothing has changed.
    (place / "t.csv").write_text(TABLE)
    assert call("train", "e.yaml", "training.max_steps=3").exit_code == 0
    before = contents(place / "runs/e")
    (place / "t.csv").write_text(TABLE.replace("0,0,x", "9,9,x"))
    done = call("train", "e.yaml", "training.max_steps=4")
    assert done.exit_code == 2
    assert f"{place / 't.csv'} is not what it was when the run in runs/e began" in done.output
    assert contents(place / "runs/e") == before


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "run.lock"
    }


def test_a_finished_run_is_not_touched_by_running_it_again(place: Path) -> None:
    assert call("train", "e.yaml", "training.max_steps=3").exit_code == 0
    before = contents(place / "runs/e")
    same = call("train", "e.yaml", "training.max_steps=3")
    assert same.exit_code == 0
    assert "finished at step 3 of 3: there is nothing left to do" in same.output
    free = call("train", "e.yaml", "training.max_steps=3", "training.logging_steps=1")
    assert free.exit_code == 0
    idle = call("train", "e.yaml", "training.max_steps=3", "training.learning_rate=0.5")
    assert idle.exit_code == 2
    assert "no step left for learning_rate 0.5 (was 0.001)" in idle.output
    seed = call("resume", "runs/e", "training.seed=99")
    assert seed.exit_code == 2
    assert "and is 99 now" in seed.output
    assert contents(place / "runs/e") == before


def test_predictions_are_not_written_through_a_link(place: Path) -> None:
    assert call("train", "e.yaml", "training.max_steps=2").exit_code == 0
    (place / "mine.txt").write_text("precious")
    (place / "runs/e/predictions.jsonl").symlink_to(place / "mine.txt")
    assert call("predict", "runs/e", "--data", "t.csv").exit_code == 0
    assert (place / "mine.txt").read_text() == "precious"
    assert len((place / "runs/e/predictions.jsonl").read_text().splitlines()) > 1


def test_another_seed_of_an_unfinished_run_is_refused_with_what_can_be_done(place: Path) -> None:
    assert call("train", "e.yaml", "training.max_steps=2").exit_code == 0
    (place / "runs/e/finished.json").unlink()
    done = call("train", "e.yaml", "training.max_steps=3", "training.seed=99")
    assert done.exit_code == 2
    assert "and is 99 now" in done.output
    assert "--fresh" in done.output


def test_data_that_was_only_moved_goes_on(place: Path) -> None:
    assert call("train", "e.yaml", "training.max_steps=2").exit_code == 0
    (place / "elsewhere").mkdir()
    (place / "t.csv").rename(place / "elsewhere/table.csv")
    done = call("resume", "runs/e", "training.max_steps=3", "data.train=elsewhere/table.csv")
    assert done.exit_code == 0, done.output
    shown = json.loads(call("show", "runs/e", "--json").output)
    moved = [one for one in shown["history"] if one["what"] == "data.train"]
    assert [(Path(one["to"]).name, one["effect"]) for one in moved] == [("table.csv", "free")]
    # The model is for whoever may read the rest.
    modes = {path.name: path.stat().st_mode for path in (place / "runs/e").iterdir() if path.is_file()}
    assert modes["model.safetensors"] == modes["config.yaml"]
    (place / "elsewhere/table.csv").write_text(TABLE.replace("0,0,x", "9,9,x"))
    (place / "elsewhere/table.csv").rename(place / "t.csv")
    other = call("resume", "runs/e", "training.max_steps=4", "data.train=t.csv")
    assert other.exit_code == 2
    assert "holds another experiment: data.train was" in other.output


@pytest.mark.slow
def test_a_changed_rate_acts_when_a_run_goes_on(place: Path) -> None:
    assert call("train", "e.yaml", "training.max_steps=3").exit_code == 0
    changes = ("training.max_steps=6", "training.learning_rate=1e-7", "training.logging_steps=1")
    done = call("resume", "runs/e", *changes)
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in (place / "runs/e/metrics.jsonl").read_text().splitlines()]
    assert [line["learning_rate"] for line in lines if line["step"] == 4 and "loss" in line] == [1e-7 * 3 / 6]
    shown = json.loads(call("show", "runs/e", "--json").output)
    assert {(one["what"], one["to"]) for one in shown["history"]} >= {("learning_rate", 1e-7), ("max_steps", 6)}
    assert shown["settings"]["learning_rate"] == 1e-7
    assert "learning_rate: 0.001 -> 1e-07" in call("show", "runs/e").output
    assert call("show", ".").exit_code == 2


@pytest.mark.slow
def test_another_experiment_does_not_overwrite_a_run(place: Path) -> None:
    assert call("train", "e.yaml", "training.max_steps=2").exit_code == 0
    before = (place / "runs/e/model.safetensors").read_bytes()
    other = call("train", "e.yaml", "training.max_steps=2", "model.options={width: 4}")
    assert other.exit_code == 2
    assert "runs/e holds another experiment: model.options.width was 8 and is 4 now" in other.output
    assert (place / "runs/e/model.safetensors").read_bytes() == before
    # A mistake begins nothing.
    assert call("train", "e.yaml", "training.optim=sdg", "--fresh").exit_code == 2
    assert not (place / "runs/e-2").exists()
    fresh = call("train", "e.yaml", "training.max_steps=2", "model.options={width: 4}", "--fresh")
    assert fresh.exit_code == 0, fresh.output
    assert "A new run in runs/e-2" in fresh.output
    assert (place / "runs/e-2/model.safetensors").is_file()
    assert (place / "runs/e/model.safetensors").read_bytes() == before
    stopped = call("train", "e.yaml", "training.max_hours=1e-9", "--fresh")
    assert (stopped.exit_code, "resume runs/e-3" in stopped.output) == (75, True)


def test_check_says_what_will_happen_and_leaves_nothing(place: Path) -> None:
    done = call("check", "e.yaml", "data.features=[a]")
    assert done.exit_code == 0, done.output
    found = dict(line.strip().split("  ", 1) for line in done.output.splitlines() if line.startswith("  "))
    assert found["task"].strip() == "tabular"
    assert "27 in 3 epochs" in found["steps"]
    assert "linear: 0.001 at step 0" in found["learning rate"]
    assert found["metrics"].strip() == "eval_accuracy, eval_f1, eval_loss"
    assert found["save and load"].strip() == "the weights came back as they were"
    assert "a checkpoint" in found["disk"]
    assert "parameters" in found["memory"]
    assert not (place / "runs").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "e.yaml", "training.learning_rat=1"], "did you mean 'learning_rate'"),
        (["train", "e.yaml", "training.learning_rate=fast"], "learning_rate='fast' must be a number"),
        (["train", "e.yaml", "data.train=none.csv"], "there is no none.csv"),
        (["check", "e.yaml", "model.task=singing"], "model.task: there is no task 'singing'; choose one of text-class"),
        (["evaluate", "e.yaml"], "train it first"),
        (["predict", "."], "it is not the folder of an experiment"),
        (["cp", "digitz", "."], "did you mean 'digits'"),
    ],
)
def test_bad_configuration_exits_with_2_and_leaves_nothing(place: Path, words: list[str], message: str) -> None:
    done = call(*words)
    assert done.exit_code == 2, done.output
    assert message in done.output
    assert "Traceback" not in done.output
    assert not (place / "runs").exists()


def test_a_failure_exits_with_1(place: Path) -> None:
    (place / "mine.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layer = torch.nn.Linear(1, 2)\n"
        "    def forward(self, x):\n"
        "        raise RuntimeError('out of luck')\n"
        "def rows():\n"
        "    return [{'x': torch.ones(1), 'labels': torch.tensor(0)}] * 8\n"
    )
    done = call("train", "e.yaml", "model=mine.py:Net", "model.options={}", "data={train: mine.py:rows}")
    assert done.exit_code == 1
    assert "Failed: RuntimeError: out of luck" in done.output


def started(place: Path, *words: str) -> subprocess.Popen[str]:
    """A run that would take minutes, once it has taken a few steps."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*COMMAND, "train", "e.yaml", "training.num_train_epochs=100000", "training.logging_steps=20", *words],
        cwd=place,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = place / "runs/e/metrics.jsonl"
    deadline = time.monotonic() + 90
    while not (metrics.is_file() and '"loss"' in metrics.read_text()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_stopped_run_has_saved_and_says_how_to_go_on(place: Path, sent: signal.Signals, code: int) -> None:
    process = started(place)
    process.send_signal(sent)
    shown, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert "Resume with: " in errors
    assert "Traceback" not in errors
    # Not a terminal: plain lines, nothing else.
    assert "step 20/" in shown
    assert "\r" not in shown + errors
    assert "\x1b" not in shown + errors
    assert list_checkpoints(place / "runs/e")


@pytest.mark.slow
def test_asked_twice_it_still_ends_with_75(place: Path) -> None:
    process = started(place)
    assert process.stderr is not None
    process.send_signal(signal.SIGTERM)
    while "Resume with: " not in (line := process.stderr.readline()):
        assert line, "it ended without a word"
    time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 75


def test_packaged_experiments_are_valid_and_the_schema_is_current(tmp_path: Path) -> None:
    listed = call("ls")
    assert listed.exit_code == 0
    for name in descriptions():
        assert name in listed.output
        assert call("cp", name, str(tmp_path / name)).exit_code == 0
        load_experiment(tmp_path / name / f"{name}.yaml", trust=True)
    kept = (tmp_path / "digits" / "experiment.schema.json").read_text()
    assert kept == schema_text(), "run: python -m trainwright.experiment.schema > .../library/experiment.schema.json"
    assert call("cp", "digits", str(tmp_path / "digits")).exit_code == 2


@pytest.mark.slow
def test_the_schema_accepts_what_loads_and_marks_what_does_not(tmp_path: Path) -> None:
    schema = json.loads(schema_text())
    for name in descriptions():
        call("cp", name, str(tmp_path / name))
        jsonschema.validate(read_yaml_file(tmp_path / name / f"{name}.yaml").data, schema)
    for wrong in ({"model": "x", "trainig": {}}, {"model": {"nam": "x"}}, {"model": "x", "training": {"lr": 1}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["digits", "characters", "table", "own-module"])
def test_packaged_experiments_that_need_nothing_run(name: str, place: Path) -> None:
    assert call("cp", name, ".").exit_code == 0
    done = call("train", f"{name}.yaml", "training.max_steps=6", "training.use_cpu=true", "--trust")
    assert done.exit_code == 0, done.output
    assert "eval_loss" in done.output
    assert call("check", f"{name}.yaml", "--trust").exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("words", [["train", "--help"], ["check", "--help"], ["ls"]])
def test_help_and_lists_answer_without_torch(words: list[str]) -> None:
    script = (
        "import sys; from trainwright.cli import main\n"
        f"sys.argv = ['trainwright', *{words!r}]\n"
        "try: main()\n"
        "except SystemExit as end: code = end.code\n"
        "heavy = [m for m in ('torch', 'transformers', 'numpy', 'datasets') if m in sys.modules]\n"
        "assert not heavy, heavy\n"
        "assert not code, code\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.full
def test_launch_hands_on_the_exit_code_of_its_processes(place: Path) -> None:
    def launch(*words: str) -> int:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        command = [*COMMAND, "launch", "-N", "2", "--cpu", "e.yaml", *words]
        return subprocess.run(command, cwd=place, env=environment, capture_output=True, check=False).returncode

    assert launch("training.learning_rat=1") == 2
    assert launch("training.max_hours=1e-9") == 75
    assert launch() == 0
    assert json.loads(call("evaluate", "runs/e", "--json").output)["eval_loss"] > 0
