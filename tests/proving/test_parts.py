"""Parts of a proof: deviations, padding, copies."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.models import Plain, classification_rows, tiny_gpt2, token_rows
from trainwright import Trainer
from trainwright.proving import stage
from trainwright.proving.causes import factor_of
from trainwright.proving.copies import copied
from trainwright.proving.formats import all_in
from trainwright.proving.material import material_of
from trainwright.proving.padding import padded, pads_left, why_not_padded
from trainwright.proving.record import Deviation, Record, compare, shares
from trainwright.proving.result import Allowed, measured

ALLOWED = Allowed(1e-10, {"a": 1e-3}, "rounding")


def record(scale: float = 1.0, *, loss: float = 1.0) -> Record:
    return Record([loss], [{"a": torch.tensor([scale, 2 * scale])}], {"a": torch.zeros(2)}, {"a": torch.ones(2)})


def test_one_factor_of_all_gradients_is_seen() -> None:
    assert factor_of(record(0.25), record()) == pytest.approx(0.25)
    assert factor_of(record(), record()) is None
    other = Record([1.0], [{"a": torch.tensor([2.0, 1.0])}], weights={"a": torch.ones(2)})
    assert factor_of(other, record()) is None


def test_a_parameter_without_a_gradient_is_measured_by_the_others() -> None:
    found = shares(
        {"a": torch.tensor([1.0]), "b": torch.tensor([1e-17])}, {"a": torch.tensor([1.0]), "b": torch.zeros(1)}
    )
    assert found["b"] < 1e-12
    assert shares({"a": torch.tensor([1.0])}, {}) == {"a": pytest.approx(1e300)}


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_a_number_fails(bad: float) -> None:
    found = record()
    found.gradients[0]["a"] = torch.tensor([bad, 1.0])
    row = measured("a row", compare(found, record()), ALLOWED, 0.0)
    assert (row.outcome, row.worst) == ("fail", "a")
    row = measured("a row", compare(record(loss=bad), record()), ALLOWED, 0.0)
    assert (row.outcome, row.worst) == ("fail", "the loss")


def test_weights_are_named_only_where_nothing_else_is_wrong() -> None:
    assert measured("a row", Deviation(0.0, 1e-12, "b", {"a": 1e-2}), ALLOWED, 0.0).worst == "a"
    assert measured("a row", Deviation(0.0, 1e-9, "b", {"a": 1e-2}), ALLOWED, 0.0).worst == "b"
    assert measured("a row", Deviation(0.0, 1e-12, "b", {"a": 1e-4}), ALLOWED, 0.0).outcome == "pass"


def test_padding_goes_where_there_is_padding_already(make_args: Callable[..., Any]) -> None:
    trainer = Trainer(tiny_gpt2(), make_args(), train_dataset=token_rows())
    setup = trainer._setup
    ids = torch.tensor([[0, 0, 5, 6], [3, 4, 5, 6]])
    batch = {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.where(ids > 0, ids, -100)}
    assert why_not_padded(setup, batch) is None
    assert pads_left(setup, batch)
    more = padded(setup, batch, 2)
    assert more["input_ids"].tolist() == [[0, 0, 0, 0, 5, 6], [0, 0, 3, 4, 5, 6]]
    assert more["attention_mask"].sum() == 6
    assert (more["labels"] == -100).sum() == 6
    turned = {name: value.flip(1) for name, value in batch.items()} | {"position_ids": torch.arange(4).repeat(2, 1)}
    more = padded(setup, turned, 2)
    assert more["input_ids"].tolist() == [[6, 5, 0, 0, 0, 0], [6, 5, 4, 3, 0, 0]]
    assert more["position_ids"].tolist() == [[0, 1, 2, 3, 4, 5]] * 2
    assert "no attention_mask" in (why_not_padded(setup, {"input_ids": ids}) or "")
    # As long as the sequences by chance.
    others = {"labels": torch.ones(2, 4), "features": torch.ones(2, 4), "pairs": torch.ones(2, 4, 4)}
    more = padded(setup, turned | others, 2)
    assert all(more[name] is value for name, value in others.items())
    full = {name: value.repeat(1, 8) for name, value in batch.items()}
    assert "as long as the model takes them" in (why_not_padded(setup, full) or "")


def test_a_copy_shares_large_data_and_nothing_else(make_args: Callable[..., Any], tmp_path: Any) -> None:
    class Own(Trainer):
        first: Any
        given: Any

        def weights(self) -> Any:
            return self.first.weight

    rows = classification_rows(2000)
    trainer = Own(Plain(), make_args(), train_dataset=rows)
    trainer.first = trainer.model.first
    trainer.compute_loss = trainer.compute_loss
    trainer.given = trainer.args
    copy = copied(trainer._setup, {"gradient_accumulation_steps": 3}, str(tmp_path / "copy"), torch.float64).trainer
    assert copy.train_dataset is rows
    # References lead to the copy's own.
    assert copy.weights() is copy.model.first.weight
    assert copy.weights().dtype == torch.float64
    assert trainer.weights().dtype == torch.float32
    assert copy.compute_loss.__self__ is copy
    assert copy.given is copy.args
    assert copy.args.gradient_accumulation_steps == 3
    assert trainer.args.gradient_accumulation_steps == 1


def test_a_copy_is_let_go_when_it_has_trained(
    make_args: Callable[..., Any], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = []

    def noted(*args: Any) -> Any:
        copy = copied(*args)
        copies.append(weakref.ref(copy.setup.model))
        return copy

    monkeypatch.setattr(stage, "copied", noted)
    trainer = Trainer(Plain(), make_args(), train_dataset=classification_rows())
    material = material_of(copied(trainer._setup, {}, str(tmp_path / "material")))
    monkeypatch.setattr("trainwright.proving.copies._LARGE", 0)
    stage.Stage(trainer._setup, material, tmp_path, torch.float64).train(stage.Way(pieces=2))
    assert [model() for model in copies] == [None]


def test_a_model_that_cannot_be_copied_is_refused_in_words(make_args: Callable[..., Any]) -> None:
    model = Plain()
    model.history = model.first(torch.ones(1, 6))  # type: ignore[assignment]
    trainer = Trainer(model, make_args(), train_dataset=classification_rows())
    with pytest.raises(ValueError, match=r"Plain cannot be copied .*keep tensors with a history out"):
        trainer.prove(5)


def test_in_float64_nothing_is_narrower() -> None:
    layer = nn.Linear(2, 2).double()
    with all_in(torch.float64):
        x = torch.ones(1, 2).float()
        assert x.dtype == torch.float64
        out = torch.softmax(layer(x), -1, dtype=torch.float32).to(torch.float32)
        assert out.dtype == torch.float64
        out.sum().backward()
    assert torch.ones(1).dtype == torch.float32
    assert layer.weight.grad is not None
