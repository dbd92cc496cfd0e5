"""ACCMT scripts through the door: exact runs, resumes, accumulation, model saving, errors."""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from tests.compat.accmt_modules import Accuracy, Latest, Shared, Told, checkpoints, hyper, make, network, samples
from trainwright.compat.accmt import AcceleratorModule, Handler, StepsCurriculum, Trainer

ROOT = Path(__file__).parents[2]


def same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


# ---- parity


def test_fit_is_a_plain_loop(tmp_path: Path) -> None:
    """Weights after a fit are, to the last bit, those of the loop one would write."""
    model, data = network(), samples()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    for _ in range(2):
        for start in range(0, len(data), 4):
            x, y = data[start : start + 4]
            F.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
    hps = {"epochs": 2, "batch_size": 4, "optim": {"type": "AdamW", "lr": 0.05}}
    module = Shared()
    make(tmp_path, hps, shuffle_train=False, clip_grad=0.5).fit(module, data, data)
    assert same(module.model, model)


def test_accumulation_is_the_larger_batch(tmp_path: Path) -> None:
    large, small = Shared(), Shared()
    make(tmp_path / "a", hyper(batch_size=8), shuffle_train=False).fit(large, samples())
    make(tmp_path / "b", hyper(batch_size=2), shuffle_train=False, grad_accumulation_steps=4).fit(small, samples())
    for a, b in zip(large.model.parameters(), small.model.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_the_tail_of_an_epoch_is_a_step(tmp_path: Path) -> None:
    module, told = Shared(), Told()
    trainer = make(tmp_path, hyper(batch_size=2), grad_accumulation_steps=4, callbacks=told)
    assert trainer.fit(module, samples(), samples(6)).global_step == 8  # 13 batches, 4 steps an epoch
    assert told.moments == ["eval 4", "save 4", "eval 8", "save 8"]
    assert trainer.status_dict["evaluations_done"] == 2
    assert (tmp_path / "model/pytorch_model.bin").is_file()


# ---- checkpoints and resuming


class Broken(Exception):
    pass


def breaking(at: int, error: BaseException) -> Shared:
    """A module whose step fails once it has seen ``at`` batches."""

    class Breaks(Shared):
        def step(self, batch: Any) -> Any:
            if len(self.seen) == at and torch.is_grad_enabled():
                raise error
            return super().step(batch)

    return Breaks()


@pytest.mark.slow
def test_a_resume_in_the_midst_of_an_epoch_is_exact(tmp_path: Path) -> None:
    torch.manual_seed(3)
    whole = Shared()
    make(tmp_path / "whole").fit(whole, samples(), samples(6))
    torch.manual_seed(3)
    first = breaking(5, Broken())
    with pytest.raises(Broken):
        make(tmp_path / "parts", checkpoint_every="2 steps").fit(first, samples(), samples(6))
    second = Shared(seed=9)
    torch.manual_seed(3)
    trainer = make(tmp_path / "parts", checkpoint_every="2 steps", resume=True)
    assert trainer.fit(second, samples(), samples(6)).global_step == 14
    assert torch.equal(torch.cat(first.seen + second.seen), torch.cat(whole.seen))
    assert same(second.model, whole.model)


@pytest.mark.slow
def test_resume_words(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="checkpoint-model"):
        make(tmp_path, resume=True).fit(Shared(), samples())
    make(tmp_path, hyper(epochs=1), resume=None).fit(Shared(), samples())
    assert checkpoints(tmp_path) == ["checkpoint-7"]
    resumed = Shared()
    assert make(tmp_path, hyper(epochs=2), resume=None).fit(resumed, samples()).global_step == 14
    assert len(resumed.seen) == 7
    anew = Shared()
    make(tmp_path, hyper(epochs=1)).fit(anew, samples())
    assert len(anew.seen) == 7
    assert checkpoints(tmp_path) == ["checkpoint-7"]


def test_a_number_resumes_from_that_checkpoint_in_the_row(tmp_path: Path) -> None:
    def trainer(epochs: int, **options: Any) -> Trainer:
        return make(tmp_path, hyper(epochs=epochs), multiple_checkpoints=True, **options)

    trainer(3).fit(Shared(), samples())
    assert checkpoints(tmp_path) == ["checkpoint-14", "checkpoint-21", "checkpoint-7"]
    resumed = Shared()
    assert trainer(3, resume=2).fit(resumed, samples()).global_step == 21
    assert len(resumed.seen) == 7
    with pytest.raises(FileNotFoundError, match="holds 3 checkpoints"):
        trainer(3, resume=4).fit(Shared(), samples())
    for options, said in (({"resume": 0}, "the first checkpoint is 1"), ({"resume": -2}, "-1 is the newest")):
        with pytest.raises(ValueError, match=said):
            trainer(3, **options)
    with pytest.raises(ValueError, match="multiple_checkpoints=True"):
        make(tmp_path, resume=3)
    with pytest.raises(ValueError, match="no max_checkpoints"):
        trainer(3, resume=3, max_checkpoints=2)


@pytest.mark.slow
def test_starting_anew_keeps_the_old_checkpoint(tmp_path: Path) -> None:
    make(tmp_path, hyper(epochs=2)).fit(Shared(), samples())
    with pytest.raises(Broken):
        make(tmp_path, hyper(epochs=2)).fit(breaking(3, Broken()), samples())
    (kept,) = (tmp_path / "checkpoint-model").glob("previous-*/checkpoint-14/manifest.json")
    # The new run's, not the old one's.
    assert checkpoints(tmp_path) == ["checkpoint-3"]
    make(tmp_path, hyper(epochs=2), resume=True).fit(Shared(), samples())
    assert kept.is_file()


def test_a_finished_run_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make(tmp_path).fit(Shared(), samples())
    module = Shared()
    with caplog.at_level(logging.INFO, logger="trainwright"):
        trainer = make(tmp_path, resume=True, verbose=True)
        assert trainer.fit(module, samples()).global_step == 14
    assert not module.seen
    assert "finished already" in caplog.text


@pytest.mark.parametrize(
    ("every", "evaluate", "saved"),
    [
        ("epoch", None, [7, 14, 21]),
        ("2 epochs", None, [14, 21]),
        ("5 steps", None, [5, 10, 15, 20, 21]),
        ("eval", 6, [6, 12, 18, 21]),
        ("3 evals", 3, [9, 18, 21]),
        (None, None, []),
    ],
)
def test_checkpoints_come_when_they_are_due(
    every: str | None, evaluate: int | None, saved: list[int], tmp_path: Path
) -> None:
    told = Told()
    trainer = make(tmp_path, hyper(epochs=3), checkpoint_every=every, evaluate_every_n_steps=evaluate, callbacks=[told])
    trainer.fit(Shared(), samples(), samples(6))
    # The last one is there whatever the rhythm: a finished run is known to be finished. None comes twice.
    assert [moment for moment in told.moments if "save" in moment] == [f"save {step}" for step in saved]
    assert checkpoints(tmp_path) == ([f"checkpoint-{saved[-1]}"] if saved else [])


@pytest.mark.slow
def test_several_checkpoints(tmp_path: Path) -> None:
    make(tmp_path / "a", checkpoint_every="4 st", max_checkpoints=2).fit(Shared(), samples())
    assert checkpoints(tmp_path / "a") == ["checkpoint-12", "checkpoint-14"]
    make(tmp_path / "b", checkpoint_every="4 st", multiple_checkpoints=True).fit(Shared(), samples())
    assert len(checkpoints(tmp_path / "b")) == 4
    make(tmp_path / "c", enable_checkpointing=False).fit(Shared(), samples())
    assert checkpoints(tmp_path / "c") == []


@pytest.mark.parametrize(
    ("handler", "error"),
    [
        (Handler.KEYBOARD, KeyboardInterrupt()),
        (Handler.CUDA_OUT_OF_MEMORY, torch.OutOfMemoryError("CUDA out of memory")),
        (Handler.ANY, Broken("mine")),
        (Handler.ALL, RuntimeError("theirs")),
        ([Handler.KEYBOARD, 3], Broken("listed")),
    ],
)
def test_handlers_save_and_raise(handler: Any, error: BaseException, tmp_path: Path) -> None:
    """Even where checkpoints are off, and what is saved can be gone on from exactly."""
    whole = Shared()
    torch.manual_seed(1)
    make(tmp_path / "whole", checkpoint_every=None).fit(whole, samples())
    torch.manual_seed(1)
    with pytest.raises(type(error)):
        make(tmp_path, checkpoint_every=None, handlers=handler).fit(breaking(5, error), samples())
    assert checkpoints(tmp_path) == ["checkpoint-5"]
    torch.manual_seed(1)
    resumed = Shared(seed=4)
    make(tmp_path, checkpoint_every=None, resume=True).fit(resumed, samples())
    assert same(resumed.model, whole.model)


@pytest.mark.parametrize("handler", [None, Handler.KEYBOARD, Handler.CUDA_OUT_OF_MEMORY])
def test_what_no_handler_names_is_only_raised(handler: Any, tmp_path: Path) -> None:
    with pytest.raises(Broken):
        make(tmp_path, checkpoint_every=None, handlers=handler).fit(breaking(5, Broken()), samples())
    assert checkpoints(tmp_path) == []
    with pytest.raises(ValueError, match=r"Handler\.KEYBOARD"):
        make(tmp_path, handlers="keyboard")


def test_errors_of_the_users_are_raised(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        make(tmp_path).fit(breaking(0, ZeroDivisionError()), samples())


SCRIPT = """
import sys, torch
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.compat.accmt_modules import Shared, hyper, make, samples
import time
class Slow(Shared):
    def step(self, batch):
        print("step", flush=True)
        time.sleep(0.02)
        return super().step(batch)
trainer = make(Path({folder!r}), hyper(epochs=60), checkpoint_every={every!r}, handlers={handler!r}, resume=None)
trainer.fit(Slow(), samples())
"""


def start(folder: Path, every: str | None, handler: int | None) -> subprocess.Popen[str]:
    text = SCRIPT.format(root=str(ROOT), folder=str(folder), every=every, handler=handler)
    process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(20):
        assert process.stdout.readline()
    return process


@pytest.mark.slow
def test_ctrl_c_with_a_handler_saves_and_raises(tmp_path: Path) -> None:
    process = start(tmp_path, None, 1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    assert process.returncode != 0
    assert len(checkpoints(tmp_path)) == 1


@pytest.mark.full
def test_kill_leaves_a_checkpoint_to_go_on_from(tmp_path: Path) -> None:
    process = start(tmp_path, "step", None)
    time.sleep(0.05)
    process.kill()
    process.wait()
    module = Shared()
    trainer = make(tmp_path, hyper(epochs=60), checkpoint_every="step", resume=True)
    assert trainer.fit(module, samples()).global_step == 420
    assert len(module.seen) < 420


# ---- models that are kept


class Scripted(AcceleratorModule):
    """Its validation losses, and its metric, are those given, one for each evaluation."""

    def __init__(self, losses: list[float], metric: list[float] | None = None) -> None:
        self.model: nn.Module = network()
        self.losses, self.metric, self.evaluations = losses, metric, -1

    def before_eval(self) -> None:
        self.evaluations += 1

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        return F.cross_entropy(self.model(x), y)

    def validation_step(self, key: Any, batch: Any) -> Any:
        place = min(self.evaluations, len(self.losses) - 1)
        loss = torch.tensor(self.losses[place])
        if self.metric is None:
            return loss
        return {"loss": loss, "error": (torch.full((len(batch[0]),), self.metric[place]),)}


class Error(Accuracy):
    def compute(self, values: Tensor) -> dict[str, Any]:  # type: ignore[override]
        return {"error": values.mean()}


def steps_kept(folder: Path) -> int | None:
    file = folder / "status.json"
    return json.loads(file.read_text())["global_step"] if file.is_file() else None


@pytest.mark.parametrize(
    ("options", "losses", "kept"),
    [
        ({}, [3.0, 1.0, 2.0], 14),
        ({}, [1.0, 1.0, 1.0], 7),  # strictly better
        ({}, [math.nan, 2.0, 3.0], 14),
        ({"model_saving": None}, [3.0, 1.0, 2.0], None),
        ({"disable_model_saving": True}, [3.0, 1.0, 2.0], None),
        ({"model_saving": "always"}, [3.0, 1.0, 2.0], 21),
        ({"model_saving": "best_error"}, [3.0, 1.0, 2.0], 14),
        ({"model_saving": "best_train_loss"}, [3.0, 1.0, 2.0], 21),
        ({"model_saving_below": 2.5}, [2.5, 2.5, 2.4], 21),
        ({"model_saving_below": 1.0}, [3.0, 1.0, 2.0], None),
        ({"model_saving_above": 1.0}, [3.0, 1.0, 2.0], 21),
        ({"model_saving_aboce": 1.0}, [3.0, 1.0, 2.0], 21),
    ],
)
def test_which_model_is_kept(options: dict[str, Any], losses: list[float], kept: int | None, tmp_path: Path) -> None:
    metrics = [Error("error", comparator="<")]
    make(tmp_path, hyper(epochs=3), metrics=metrics, **options).fit(Scripted(losses, losses), samples(), samples(6))
    assert steps_kept(tmp_path / "model") == kept


def test_several_ways_of_keeping(tmp_path: Path) -> None:
    ways = ["best_valid_loss", "best_train_loss", "best_error", "always"]
    make(tmp_path, hyper(epochs=3), metrics=Error("error", "<"), model_saving=ways).fit(
        Scripted([1.0, 2.0, 3.0], [2.0, 1.0, 3.0]), samples(), samples(6)
    )
    assert {way: steps_kept(tmp_path / "model" / way) for way in ways} == {
        "best_valid_loss": 7,
        "best_train_loss": 21,
        "best_error": 14,
        "always": 21,
    }


@pytest.mark.slow
@pytest.mark.parametrize("evaluate", [None, 4])
def test_without_validation_the_training_loss_decides(evaluate: int | None, tmp_path: Path) -> None:
    # In some orders of the data the first window is the best one, in others a later one.
    for seed in range(6):
        torch.manual_seed(seed)
        trainer = make(tmp_path / str(seed), evaluate_every_n_steps=evaluate)
        trainer.fit(Shared(), samples())
        status = json.loads((trainer.model_path / "status.json").read_text())
        assert status["best_train_loss"] is not None
        assert status["best_train_loss"] == trainer.status_dict["best_train_loss"]
        assert status["best_valid_loss"] is None


@pytest.mark.slow
def test_the_best_survives_a_resume(tmp_path: Path) -> None:
    make(tmp_path, hyper(epochs=1)).fit(Scripted([1.0]), samples(), samples(6))
    trainer = make(tmp_path, hyper(epochs=3), resume=True)
    trainer.fit(Scripted([2.0, 0.5]), samples(), samples(6))
    assert trainer.status_dict["evaluations_done"] == 3
    assert steps_kept(tmp_path / "model") == 21
    make(tmp_path, hyper(epochs=4), resume=True).fit(Scripted([0.6]), samples(), samples(6))
    assert steps_kept(tmp_path / "model") == 21


@pytest.mark.slow
def test_patience_ends_fit_and_stays_ended(tmp_path: Path) -> None:
    losses = [1.0, 2.0, 2.0, 0.1, 0.1]
    trainer = make(tmp_path, hyper(epochs=9), patience=2)
    assert trainer.fit(Scripted(losses), samples(), samples(6)).global_step == 21
    assert trainer.state.patience_left == {"best_valid_loss": 0}
    again = make(tmp_path, hyper(epochs=9), patience=2, resume=True)
    assert again.fit(Scripted(losses), samples(), samples(6)).global_step == 21
    by_way = make(tmp_path / "b", hyper(epochs=9), patience={"best_valid_loss": 1})
    assert by_way.fit(Scripted(losses), samples(), samples(6)).global_step == 14


def test_unknown_ways_are_refused(tmp_path: Path) -> None:
    for way, said in (("best", "must be"), ("best_f1", "needs a Metric"), (3, "must be")):
        with pytest.raises(ValueError, match=said):
            make(tmp_path, model_saving=way).fit(Latest(), samples(), samples(6))
    with pytest.raises(ValueError, match="keep one"):
        make(tmp_path, model_saving_above=1.0, model_saving_aboce=1.0)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.outer.weight = self.inner.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.inner(x))


@pytest.mark.parametrize("safe", [False, True])
@pytest.mark.parametrize("size", ["10GB", "70B"])
def test_files_of_a_kept_model(safe: bool, size: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    class TiedModule(Shared):
        def __init__(self) -> None:
            super().__init__()
            self.model = Tied()

    module = TiedModule()
    make(tmp_path, safe_serialization=safe, max_shard_size=size).fit(module, samples())
    folder = tmp_path / "model"
    files = sorted(folder.glob("*.safetensors" if safe else "*.bin"))
    assert len(files) == (1 if size == "10GB" else 2)
    state: dict[str, Tensor] = {}
    for file in files:
        state |= load_file(file) if safe else torch.load(file, weights_only=True)
    assert set(state) == {"inner.weight", "outer.weight"}
    Tied().load_state_dict(state)
    assert "Infinity" not in (folder / "status.json").read_text()


@pytest.mark.parametrize("safe", [False, True])
def test_from_pretrained_reads_a_kept_model(safe: bool, tmp_path: Path) -> None:
    from transformers import GPT2LMHeadModel

    from tests.models import tiny_gpt2, token_rows

    tiny_gpt2().save_pretrained(tmp_path / "start")
    trainer = make(tmp_path, hyper(epochs=1), safe_serialization=safe)
    trainer.fit((str(tmp_path / "start"), "GPT2LMHeadModel"), token_rows(8), token_rows(4), attn_implementation="eager")
    assert trainer.module is not None
    loaded = GPT2LMHeadModel.from_pretrained(tmp_path / "model")
    assert same(loaded, trainer.module.model)
    with pytest.raises(ValueError, match="returns no loss"):
        make(tmp_path / "b").fit(str(tmp_path / "start"), token_rows(8))


@pytest.mark.slow
def test_a_crash_while_a_model_is_kept_leaves_a_whole_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    make(tmp_path, hyper(epochs=1)).fit(Scripted([1.0]), samples(), samples(6))
    before = (folder / "pytorch_model.bin").read_bytes()
    rename, calls = os.rename, []

    def fails(source: Any, target: Any) -> None:
        if "model.writing" in str(source):
            calls.append(source)
            raise KeyboardInterrupt
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", fails)
        with pytest.raises(KeyboardInterrupt):
            make(tmp_path, hyper(epochs=2), resume=True).fit(Scripted([0.5]), samples(), samples(6))
    assert calls
    make(tmp_path, hyper(epochs=2), resume=True, model_saving_below=0.0).fit(Scripted([0.5]), samples(), samples(6))
    assert (folder / "pytorch_model.bin").read_bytes() == before
    assert (folder / "notes.txt").read_text() == "mine"


# ---- several of everything


@pytest.mark.slow
def test_two_trainers_in_one_process(tmp_path: Path) -> None:
    alone, beside = Shared(), Shared()
    torch.manual_seed(2)
    make(tmp_path / "a").fit(alone, samples())
    first, second = make(tmp_path / "b"), make(tmp_path / "c", hyper(epochs=1))
    second.fit(Latest(), samples())
    torch.manual_seed(2)
    first.fit(beside, samples())
    assert same(alone.model, beside.model)
    assert (tmp_path / "c/model/pytorch_model.bin").is_file()


def test_several_validation_sets(tmp_path: Path) -> None:
    module = Latest()
    trainer = make(tmp_path, metrics=Accuracy("accuracy"), model_saving="best_accuracy@new")
    trainer.fit(module, samples(), {"old": samples(6), "new": samples(5, seed=1)})
    assert set(module.keys) == {"old", "new"}
    assert set(trainer.status_dict["additional_metrics"]) == {"old", "new"}
    assert trainer.status_dict["evaluations_done"] == 2
    lines = [json.loads(line) for line in (tmp_path / "checkpoint-model/metrics.jsonl").read_text().splitlines()]
    assert {"val_loss__new", "accuracy__old"} <= {name for line in lines for name in line}
    assert steps_kept(tmp_path / "model") is not None
    listed = make(tmp_path / "b", metrics={0: Accuracy("accuracy"), 1: Accuracy("accuracy")})
    listed.fit(Latest(), samples(), [samples(6), samples(5)])
    assert set(listed.status_dict["additional_metrics"]) == {"0", "1"}


@pytest.mark.slow
def test_a_curriculum(tmp_path: Path) -> None:
    def run(folder: Path, module: Shared, **options: Any) -> Shared:
        stages = StepsCurriculum()
        stages.add(samples(8, seed=1), steps=3)
        stages.add(samples(10, seed=2), steps=-1)
        torch.manual_seed(0)
        make(folder, hyper(max_steps=8), checkpoint_every="2 steps", **options).fit(module, stages)
        return module

    whole = run(tmp_path / "whole", Shared())
    easy, hard = (set(samples(n, seed=s).tensors[0][:, 0].tolist()) for n, s in ((8, 1), (10, 2)))
    assert set(torch.cat(whole.seen[:3]).tolist()) == easy
    assert set(torch.cat(whole.seen[3:]).tolist()) == hard
    with pytest.raises(Broken):
        run(tmp_path / "parts", breaking(5, Broken()))
    assert same(run(tmp_path / "parts", Shared(seed=5), resume=True).model, whole.model)
    stages = StepsCurriculum()
    stages.add(samples(8), steps=3)
    with pytest.raises(ValueError, match="max_steps"):
        make(tmp_path / "b").fit(Shared(), stages)


def test_data_of_the_modules_own(tmp_path: Path) -> None:
    class Own(Shared):
        def get_train_dataloader(self) -> Any:  # type: ignore[override]
            return DataLoader(samples(), batch_size=13, shuffle=True)

        def get_validation_dataloader(self) -> Any:  # type: ignore[override]
            return DataLoader(samples(6), batch_size=2)

    module = Own()
    assert make(tmp_path).fit(module).global_step == 4
    assert module.validated == 6
    with pytest.raises(ValueError, match="pass train_dataset, or define get_train_dataloader"):
        make(tmp_path / "b").fit(Shared())
    assert not (tmp_path / "b").exists()


def test_evaluate_and_from_config(tmp_path: Path) -> None:
    class Tested(Latest):
        def test_step(self, batch: Any) -> Any:  # type: ignore[override]
            return {"accuracy": (self.model(batch[0]).argmax(-1), batch[1])}

    trainer = make(tmp_path, metrics=Accuracy("accuracy"))
    file = tmp_path / "found.json"
    found = trainer.evaluate(Latest(), samples(), results_output=file)
    assert found.keys() == {"val_loss", "loss", "accuracy", "count"}
    assert found["loss"] == found["val_loss"]
    assert json.loads(file.read_text()) == found
    assert trainer.evaluate(Tested(), samples(), results_output=None)["count"] == 26
    file = tmp_path / "all.yaml"
    file.write_text(f"hps: {json.dumps(hyper()['hps'])}\ntrainer: {{model_path: {tmp_path / 'y'}, log_every: 3}}\n")
    assert Trainer.from_config(str(file), verbose=False).fit(Shared(), samples()).global_step == 14
    assert (tmp_path / "y/pytorch_model.bin").is_file()
    with pytest.raises(ValueError, match="model_path is missing"):
        Trainer.from_config({"hps": hyper()["hps"]})
