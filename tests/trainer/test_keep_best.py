"""KeepBest, and the native arguments beside it: rescue_on, eval_on_end, set_grads_to_none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.models import classification_rows, tiny_gpt2, token_rows
from tests.modules import Classifier, equal
from trainwright import KeepBest, NotSavedError, Trainer, TrainerCallback, TrainingArguments
from trainwright.checkpoint.models import ModelFolder, bytes_of
from trainwright.core.state import TrainerControl, TrainerState

Args = Callable[..., TrainingArguments]


def test_the_best_evaluation_is_kept(make_args: Args, tmp_path: Path) -> None:
    values = iter([0.5, 0.7, 0.6, 0.9])

    def metric(prediction: Any) -> dict[str, float]:
        return {"score": next(values)}

    keep = KeepBest("eval_score", tmp_path / "best")
    args = make_args(num_train_epochs=3, eval_strategy="epoch", learning_rate=0.1)
    rows = classification_rows()
    data = {"train_dataset": rows, "eval_dataset": rows}
    trainer = Trainer(Classifier(), args, **data, compute_metrics=metric, callbacks=[keep])
    trainer.train()
    # An evaluation outside training decides nothing.
    assert trainer.evaluate()["eval_score"] == 0.9
    status = json.loads((tmp_path / "best/status.json").read_text())
    assert (status["metric"], status["value"], status["step"]) == ("eval_score", 0.7, 4)
    assert set(load_file(tmp_path / "best/model.safetensors")) == set(Classifier().model.state_dict())


def test_several_at_once_and_the_training_loss(make_args: Args, tmp_path: Path) -> None:
    keeps = [
        KeepBest("train_loss", tmp_path / "train", every="1 epoch"),
        KeepBest("train_loss", tmp_path / "steps", every="3 steps"),
        KeepBest("train_loss", tmp_path / "never", every="1 epoch", below=0.0),
    ]
    args = make_args(num_train_epochs=2, learning_rate=0.1)
    Trainer(Classifier(), args, train_dataset=classification_rows(), callbacks=keeps).train()
    assert (tmp_path / "train/model.safetensors").is_file()
    assert (tmp_path / "steps/model.safetensors").is_file()
    assert not (tmp_path / "never").exists()
    assert keeps[0].best is not None


def test_transformers_read_it(make_args: Args, tmp_path: Path) -> None:
    from transformers import GPT2LMHeadModel

    model = tiny_gpt2()
    keep = KeepBest("eval_loss", tmp_path / "best", safe_serialization=False, max_shard_size="3KB")
    args = make_args(max_steps=2, eval_strategy="steps", eval_steps=2)
    Trainer(model, args, train_dataset=token_rows(8), eval_dataset=token_rows(4), callbacks=[keep]).train()
    assert (tmp_path / "best/pytorch_model.bin.index.json").is_file()
    loaded = GPT2LMHeadModel.from_pretrained(tmp_path / "best")
    assert equal(loaded, model)


def refuses(self: ModelFolder, model: Any, status: Any) -> None:
    raise OSError("disk full")


def test_a_disk_that_refuses_does_not_end_the_training(
    make_args: Args, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ModelFolder, "save", refuses)
    keep = KeepBest("train_loss", tmp_path / "file/best", every="1 epoch")
    trainer = Trainer(Classifier(), make_args(), train_dataset=classification_rows(), callbacks=[keep])
    with pytest.raises(NotSavedError, match="file/best"):
        trainer.train()
    assert trainer.state.global_step == 6
    assert "could not be saved" in caplog.text
    assert keep.best is None


def test_sizes() -> None:
    assert bytes_of("1.5MB") == 1_500_000
    for wrong in ("0GB", "much", "", True):
        with pytest.raises(ValueError, match="max_shard_size"):
            ModelFolder(Path("x"), max_shard_size=wrong)
    with pytest.raises(ValueError, match="patience"):
        KeepBest("eval_loss", "x", patience=0)


class Fails(TrainerCallback):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 3:
            raise self.error


@pytest.mark.parametrize(
    ("kinds", "error", "saves"),
    [
        (["error"], ValueError("x"), True),
        ("error", ValueError("x"), True),
        (["interrupt"], ValueError("x"), False),
        (["interrupt"], KeyboardInterrupt(), True),
        (["error"], KeyboardInterrupt(), False),
        (["out_of_memory"], torch.OutOfMemoryError("CUDA out of memory"), True),
        (["error"], torch.OutOfMemoryError("CUDA out of memory"), False),
        (None, ValueError("x"), False),
    ],
)
def test_what_saves_where_checkpoints_are_off(
    kinds: Any, error: BaseException, saves: bool, make_args: Args, tmp_path: Path
) -> None:
    args = make_args(rescue_on=kinds)
    trainer = Trainer(Classifier(), args, train_dataset=classification_rows(), callbacks=[Fails(error)])
    with pytest.raises(type(error)):
        trainer.train()
    assert (tmp_path / "run/checkpoint-3").is_dir() == saves


def test_rescue_on_is_checked(make_args: Args) -> None:
    with pytest.raises(ValueError, match="rescue_on has"):
        make_args(rescue_on=["errors"])


def test_gradients_are_zeros_where_asked(make_args: Args) -> None:
    for to_none in (True, False):
        module = Classifier()
        args = make_args(max_steps=1, set_grads_to_none=to_none)
        Trainer(module, args, train_dataset=classification_rows()).train()
        assert all((parameter.grad is None) == to_none for parameter in module.parameters())


@pytest.mark.parametrize(("wanted", "steps"), [(True, [4, 6]), (False, [4])])
def test_the_evaluation_after_the_last_step(wanted: bool, steps: list[int], make_args: Args) -> None:
    rows = classification_rows()
    args = make_args(eval_strategy="steps", eval_steps=4, eval_on_end=wanted)
    trainer = Trainer(Classifier(), args, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    assert [entry["step"] for entry in trainer.state.log_history if "eval_loss" in entry] == steps


def test_a_metric_that_no_evaluation_gives_is_named(
    make_args: Args, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = classification_rows()
    args = make_args(num_train_epochs=2, eval_strategy="epoch")
    keep = KeepBest("eval_los", tmp_path / "best")
    Trainer(Classifier(), args, train_dataset=rows, eval_dataset=rows, callbacks=[keep]).train()
    said = [record.getMessage() for record in caplog.records if "No model is saved" in record.getMessage()]
    assert len(said) == 1
    assert "give no eval_los (did you mean 'eval_loss'?)" in said[0]


@pytest.mark.parametrize("place", ["file", "file/best"])
def test_a_file_in_the_folders_place_is_refused_before_the_first_step(
    place: str, make_args: Args, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("my only copy")
    keep = KeepBest("train_loss", tmp_path / place, every="1 epoch")
    trainer = Trainer(Classifier(), make_args(), train_dataset=classification_rows(), callbacks=[keep])
    with pytest.raises(ValueError, match="file is a file"):
        trainer.train()
    assert trainer.state.global_step == 0
    assert (tmp_path / "file").read_text() == "my only copy"


def test_a_file_that_comes_later_is_not_deleted(tmp_path: Path) -> None:
    (tmp_path / "best").write_text("my only copy")
    with pytest.raises(FileExistsError):
        ModelFolder(tmp_path / "best").save(torch.nn.Linear(1, 1), {})
    assert (tmp_path / "best").read_text() == "my only copy"


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far/notes.txt").write_text("mine")
    (tmp_path / "best").symlink_to(tmp_path / "far")
    for _ in range(2):
        ModelFolder(tmp_path / "best").save(torch.nn.Linear(1, 1), {})
    assert (tmp_path / "best").is_symlink()
    assert {path.name for path in (tmp_path / "far").iterdir()} == {"model.safetensors", "status.json", "notes.txt"}


def after_step(step: int, first: bool = True) -> Any:
    return TrainerState(global_step=step, max_steps=99, is_world_process_zero=first)


def told(keep: KeepBest, args: Any, values: list[float], *, start: int = 0, first: bool = True) -> list[bool]:
    """Tell a callback what evaluations found, one a step; returns when it wants to stop."""
    keep.on_train_begin(args, after_step(start, first), TrainerControl())
    stops = []
    for number, value in enumerate(values, start + 1):
        control = TrainerControl()
        keep.on_evaluate(
            args, after_step(number, first), control, metrics={"eval_loss": value}, model=torch.nn.Linear(1, 1)
        )
        stops.append(control.should_training_stop)
    return stops


def test_all_processes_lose_patience_at_once_also_where_the_first_cannot_save(
    make_args: Args, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that went on alone would wait for the others for ever."""
    monkeypatch.setattr(ModelFolder, "save", refuses)
    keeps = [KeepBest("eval_loss", tmp_path / "best", patience=2) for _ in range(2)]
    values = [1.0, 1.0, 0.5, 0.7, 0.6]
    stops = [told(keep, make_args(), values, first=not rank) for rank, keep in enumerate(keeps)]
    assert stops[0] == stops[1] == [False, False, False, False, True]


def test_what_could_not_be_saved_is_made_good_by_the_next_better_one(
    make_args: Args, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = KeepBest("eval_loss", tmp_path / "best")
    told(keep, make_args(), [1.0])
    with monkeypatch.context() as patch:
        patch.setattr(ModelFolder, "save", refuses)
        told(keep, make_args(), [0.5], start=1)
    told(keep, make_args(), [0.7], start=2)
    assert json.loads((tmp_path / "best/status.json").read_text())["value"] == 0.7


def test_a_better_model_of_a_killed_run_stays(
    make_args: Args, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The run was killed after step 3, and goes on from a checkpoint of step 1 in another way."""
    keep = KeepBest("eval_loss", tmp_path / "best")
    told(keep, make_args(), [1.0, 0.9, 0.5])
    again = KeepBest("eval_loss", tmp_path / "best")
    again.best = 1.0
    told(again, make_args(), [0.8, 0.7], start=1)
    status = json.loads((tmp_path / "best/status.json").read_text())
    assert (status["value"], status["step"]) == (0.5, 3)
    told(again, make_args(), [0.4], start=3)
    assert json.loads((tmp_path / "best/status.json").read_text())["value"] == 0.4
    # A new run is a run of its own.
    told(KeepBest("eval_loss", tmp_path / "best"), make_args(), [0.8])
    assert json.loads((tmp_path / "best/status.json").read_text())["value"] == 0.8


def test_a_resume_gives_each_its_own_best(make_args: Args, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = classification_rows()

    def keeps(*names: str) -> list[KeepBest]:
        return [KeepBest(name, tmp_path / name, greater_is_better=name == "eval_score") for name in names]

    def trained(found: list[KeepBest], **options: Any) -> None:
        args = make_args(eval_strategy="epoch", save_strategy="epoch", **options)
        data = {"train_dataset": rows, "eval_dataset": rows, "compute_metrics": lambda _: {"score": 5.0}}
        Trainer(Classifier(), args, **data, callbacks=found).train(
            resume_from_checkpoint=options["num_train_epochs"] > 1
        )

    first = keeps("eval_loss", "eval_score")
    trained(first, num_train_epochs=1)
    other = keeps("eval_score", "train_loss", "eval_loss")
    trained(other, num_train_epochs=2, learning_rate=0.0)
    assert (other[0].best, other[2].best) == (5.0, first[0].best)
    assert other[1].best != first[0].best
    assert "no state of KeepBest (train_loss)" in caplog.text
