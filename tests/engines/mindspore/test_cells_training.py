"""A model written for MindSpore, trained by the same Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

mindspore = pytest.importorskip("mindspore")

from tests.engines.contract.engines import Dense, arguments, close, rows, same_weights  # noqa: E402
from trainwright import Trainer  # noqa: E402

pytestmark = pytest.mark.mindspore


class DenseCell(mindspore.nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = mindspore.nn.Dense(6, 8), mindspore.nn.Dense(8, 3)
        for name, value in Dense().state_dict().items():
            layer, key = name.split(".")
            getattr(getattr(self, layer), key).set_data(mindspore.Tensor(value.numpy()))

    def construct(self, x):
        return self.second(mindspore.ops.tanh(self.first(x)))


class WithLoss(mindspore.nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.network = DenseCell()
        self.first, self.second = self.network.first, self.network.second

    def construct(self, x, labels):
        logits = self.network(x)
        return {"loss": mindspore.ops.cross_entropy(logits, labels), "logits": logits}


def loss_of(outputs: Any, labels: Any) -> Any:
    return mindspore.ops.cross_entropy(outputs, labels)


class Noisy(mindspore.nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = mindspore.nn.Dense(6, 8), mindspore.nn.Dense(8, 3)
        self.norm, self.drop = mindspore.nn.BatchNorm1d(8), mindspore.nn.Dropout(p=0.25)

    def construct(self, x):
        return self.second(self.drop(self.norm(self.first(x))))


@pytest.mark.parametrize("jit", [True, False])
@pytest.mark.parametrize("kind", ["loss function", "own loss"])
def test_a_cell_learns_what_the_same_torch_model_learns(kind: str, jit: bool, tmp_path: Path) -> None:
    cell, loss = (DenseCell(), loss_of) if kind == "loss function" else (WithLoss(), None)
    options: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 2, "gradient_accumulation_steps": 2}
    expected = Trainer(
        Dense(), arguments(tmp_path / "torch", "torch", **options), train_dataset=rows(), eval_dataset=rows(10)
    )
    args = arguments(tmp_path / "cell", "mindspore", engine_jit=jit, **options)
    found = Trainer(cell, args, train_dataset=rows(), eval_dataset=rows(10), compute_loss_func=loss)
    expected.train()
    found.train()
    for name in ("loss", "grad_norm", "eval_loss"):
        one, other = ([e[name] for e in t.state.log_history if name in e] for t in (found, expected))
        assert close(one, other)
    learned = {name.removeprefix("network."): value for name, value in found.model.state_dict().items()}
    same_weights({name: learned[name] for name in Dense().state_dict()}, dict(expected.model.state_dict()), 1e-5)
    weight = expected.model.get_parameter("second.weight").detach().numpy()
    np.testing.assert_allclose(cell.second.weight.asnumpy(), weight, atol=1e-5)
    predicted = found.predict(rows(7)).predictions
    np.testing.assert_allclose(predicted, expected.predict(rows(7)).predictions, atol=1e-5)


def test_a_cell_with_dropout_and_statistics_goes_on_exactly(tmp_path: Path) -> None:
    mindspore.set_seed(3)
    start = {name: value.asnumpy().copy() for name, value in Noisy().parameters_dict().items()}

    def run(resume: str | None) -> dict[str, torch.Tensor]:
        cell = Noisy()
        for name, parameter in cell.parameters_dict().items():
            parameter.set_data(mindspore.Tensor(start[name]))
        args = arguments(tmp_path, "mindspore", max_steps=6, save_strategy="steps", save_steps=3)
        trainer = Trainer(cell, args, train_dataset=rows(), compute_loss_func=loss_of)
        trainer.train(resume_from_checkpoint=resume)
        return dict(trainer.model.state_dict())

    whole = run(None)
    same_weights(run(str(tmp_path / "checkpoint-3")), whole)
    moved = whole["norm.moving_mean"].abs().max()
    assert float(moved) > 0


def test_a_cell_needs_the_engine(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="DenseCell is a Cell of MindSpore: train it with TrainingArguments"):
        Trainer(DenseCell(), arguments(tmp_path, "torch"), train_dataset=rows())


class OwnLoss(Trainer):
    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)


def test_losses_that_a_cell_would_not_see_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="compute_loss and label_smoothing_factor cannot act: pass compute_loss_func="):
        OwnLoss(DenseCell(), arguments(tmp_path, "mindspore"), train_dataset=rows())
    args = arguments(tmp_path, "mindspore", label_smoothing_factor=0.1)
    with pytest.raises(ValueError, match="pass compute_loss_func="):
        Trainer(DenseCell(), args, train_dataset=rows(), compute_loss_func=loss_of)


@pytest.mark.parametrize("name", ["fp16", "bf16", "gradient_checkpointing"])
def test_what_a_cell_does_not_follow_is_refused(name: str, tmp_path: Path) -> None:
    args = arguments(tmp_path, "mindspore", **dict[str, Any]({name: True}))
    with pytest.raises(ValueError, match=f"{name}=True cannot act on a Cell"):
        Trainer(DenseCell(), args, train_dataset=rows(), compute_loss_func=loss_of)
