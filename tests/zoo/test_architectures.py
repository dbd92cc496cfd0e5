"""Architectures of transformers: they train, they evaluate, and their targets are counted as they count them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.zoo.catalogue import CATALOGUE, Entry
from tests.zoo.rows import Row
from trainwright import Trainer, TrainingArguments

Make = Callable[..., TrainingArguments]
INVARIANT = [name for name, entry in CATALOGUE.items() if entry.exception is None]
#: Cutting a batch changes what these compute also in evaluation mode, where batch norm uses its running statistics.
ALSO_IN_EVALUATION = ("mixtral-balanced", "wav2vec2-ctc-sum", "clip")

# A hundred small models: not for the daily loop.
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _transformers_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="transformers")
        yield


def in_double(entry: Entry, count: int = 4) -> tuple[nn.Module, list[Row]]:
    def convert(value: Any) -> Any:
        return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value

    rows = [{key: convert(value) for key, value in row.items()} for row in entry.rows(count)]
    return entry.model().double(), rows


def gradient(make_args: Make, entry: Entry, cut: tuple[int, int]) -> dict[str, Tensor]:
    """The gradient of one optimizer step: what plain SGD with rate 1 subtracts."""
    model, rows = in_double(entry)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    args = make_args(
        per_device_train_batch_size=cut[0],
        gradient_accumulation_steps=cut[1],
        max_steps=1,
        optim="sgd",
        learning_rate=1.0,
        max_grad_norm=0.0,
        train_sampling_strategy="sequential",
    )
    Trainer(model, args, train_dataset=rows, data_collator=entry.collator).train()
    return {name: before[name] - value.detach() for name, value in model.named_parameters()}


def largest_difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Relative to the largest entry of the gradient."""
    scale = max(float(value.abs().max()) for value in one.values())
    return max(float((one[name] - other[name]).abs().max()) for name in one) / scale


@pytest.mark.parametrize("name", CATALOGUE)
def test_two_steps_and_an_evaluation(make_args: Make, name: str) -> None:
    entry = CATALOGUE[name]
    model = entry.model()
    before = {key: value.detach().clone() for key, value in model.named_parameters()}
    args = make_args(
        max_steps=2, per_device_train_batch_size=2, per_device_eval_batch_size=3, learning_rate=1e-2, logging_steps=1
    )
    trainer = Trainer(
        model, args, train_dataset=entry.rows(4), eval_dataset=entry.rows(5), data_collator=entry.collator
    )
    output = trainer.train()
    metrics = trainer.evaluate()
    assert output.global_step == 2
    assert math.isfinite(output.training_loss)
    assert math.isfinite(metrics["eval_loss"])
    changed = [key for key, value in model.named_parameters() if not torch.equal(value, before[key])]
    # Some weights get no gradient from these inputs: mask embeddings, a decoder's cross-attention without an encoder.
    assert len(changed) > 0.5 * len(before)
    assert trainer.predict(entry.rows(5)).predictions is not None


@pytest.mark.parametrize("name", INVARIANT)
def test_the_gradient_does_not_depend_on_the_cut(make_args: Make, name: str) -> None:
    entry = CATALOGUE[name]
    whole = gradient(make_args, entry, (4, 1))
    for cut in ((1, 4), (2, 2), (3, 2)):
        assert largest_difference(whole, gradient(make_args, entry, cut)) < entry.tolerance, cut


@pytest.mark.parametrize("name", [name for name in CATALOGUE if name not in INVARIANT])
def test_exceptions_are_real(make_args: Make, name: str) -> None:
    """An entry may not be excused for a reason that no longer holds."""
    entry = CATALOGUE[name]
    assert largest_difference(gradient(make_args, entry, (4, 1)), gradient(make_args, entry, (1, 4))) > 1e-3, (
        entry.exception
    )


@pytest.mark.parametrize("name", [name for name in CATALOGUE if name not in ALSO_IN_EVALUATION])
def test_eval_loss_does_not_depend_on_the_batch_size(make_args: Make, name: str) -> None:
    entry = CATALOGUE[name]
    model, rows = in_double(entry, 5)
    losses = [
        Trainer(model, make_args(per_device_eval_batch_size=size), data_collator=entry.collator).evaluate(rows)[
            "eval_loss"
        ]
        for size in (1, 2, 5)
    ]
    assert losses == pytest.approx([losses[0]] * 3, rel=max(entry.tolerance, 1e-6))
