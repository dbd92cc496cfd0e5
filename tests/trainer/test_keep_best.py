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


def test_a_disk_that_refuses_does_not_end_the_training(
    make_args: Args, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
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
