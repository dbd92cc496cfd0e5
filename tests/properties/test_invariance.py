"""The gradient of an update does not depend on how its batch was cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from tests.models import Plain, classification_rows, sentence_rows, tiny_bert, tiny_gpt2, tiny_llama, token_rows
from trainwright import Trainer, TrainingArguments

CUTS = [(16, 1), (4, 4), (1, 16), (8, 2)]
UNEVEN = [(16, 1), (5, 4), (3, 6), (7, 3)]


class NormRecorder:
    """Keeps the gradient norm and loss of each step."""

    def __init__(self) -> None:
        self.norms: list[float] = []
        self.losses: list[float] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **kwargs: Any) -> None:
        if "grad_norm" in logs:
            self.norms.append(logs["grad_norm"])
            self.losses.append(logs["loss"])


def run(
    make_args: Callable[..., TrainingArguments],
    model: nn.Module,
    rows: list[Any],
    cut: tuple[int, int],
    trainer_class: type[Trainer] = Trainer,
    steps: int = 10,
    learning_rate: float = 1e-2,
    optim: str = "adamw_torch_fused",
    **kwargs: Any,
) -> tuple[NormRecorder, dict[str, torch.Tensor]]:
    recorder = NormRecorder()
    args = make_args(
        per_device_train_batch_size=cut[0],
        gradient_accumulation_steps=cut[1],
        max_steps=steps,
        learning_rate=learning_rate,
        optim=optim,
        logging_steps=1,
        train_sampling_strategy="sequential",
        max_grad_norm=0.5,
    )
    trainer = trainer_class(model, args, train_dataset=rows, callbacks=[recorder], **kwargs)
    trainer.train()
    return recorder, {name: value.detach().clone() for name, value in model.state_dict().items()}


def assert_same(results: list[tuple[NormRecorder, dict[str, torch.Tensor]]], tolerance: float) -> None:
    (first, weights), *others = results
    assert len(first.norms) >= 1
    for recorder, other in others:
        assert recorder.norms == pytest.approx(first.norms, rel=tolerance, abs=tolerance)
        assert recorder.losses == pytest.approx(first.losses, rel=tolerance, abs=tolerance)
        for name in weights:
            torch.testing.assert_close(other[name], weights[name], rtol=tolerance, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("cuts", [CUTS, UNEVEN], ids=["even", "uneven"])
def test_plain_module_with_kwargs(
    make_args: Callable[..., TrainingArguments], cuts: list[tuple[int, int]], seed: int
) -> None:
    rows = classification_rows(16, dtype=torch.float64, seed=seed)
    assert_same([run(make_args, Plain(seed=seed).double(), rows, cut) for cut in cuts], 1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("cuts", [CUTS, UNEVEN], ids=["even", "uneven"])
def test_bert_classifier(make_args: Callable[..., TrainingArguments], cuts: list[tuple[int, int]], seed: int) -> None:
    rows = sentence_rows(16, seed=seed)
    assert_same([run(make_args, tiny_bert(seed=seed).double(), rows, cut) for cut in cuts], 1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("make_model", [tiny_gpt2, tiny_llama])
@pytest.mark.parametrize("empty_row", [False, True], ids=["", "a row without targets"])
@pytest.mark.parametrize("cuts", [CUTS, UNEVEN], ids=["even", "uneven"])
def test_causal_models_on_padded_rows(
    make_args: Callable[..., TrainingArguments],
    make_model: Callable[[], Any],
    empty_row: bool,
    cuts: list[tuple[int, int]],
    seed: int,
) -> None:
    rows = token_rows(16, empty_row=empty_row, seed=seed)
    # These models compute their loss in fp32. Adam would turn the rounding in a gradient near 0 into a step of its own
    # (one weight of a thousand moved by 8e-6 in ten steps); SGD takes it for what it is.
    results = [run(make_args, make_model().double(), rows, cut, learning_rate=0.1, optim="sgd") for cut in cuts]
    assert_same(results, 1e-6)


class WithoutCount(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False):  # type: ignore[override]
        outputs = model(**inputs)
        return (outputs["loss"], outputs) if return_outputs else outputs["loss"]


class Oldest(Trainer):
    def compute_loss(self, model, inputs):  # type: ignore[override]
        return model(**inputs)["loss"]


class WithKwargs(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):  # type: ignore[override]
        outputs = model(**inputs)
        return (outputs["loss"], outputs) if return_outputs else outputs["loss"]


class DividesSum(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch: Any = None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = F.cross_entropy(outputs["logits"], labels, reduction="sum") / num_items_in_batch
        return (loss, outputs) if return_outputs else loss


class CallsSuper(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch)
        loss = 2 * loss
        return (loss, outputs) if return_outputs else loss


class StepCallsSuper(Trainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        return super().training_step(model, inputs, num_items_in_batch)


@pytest.mark.slow
@pytest.mark.parametrize("trainer_class", [WithoutCount, Oldest, WithKwargs, DividesSum, CallsSuper, StepCallsSuper])
def test_overrides_of_every_signature(
    make_args: Callable[..., TrainingArguments], trainer_class: type[Trainer]
) -> None:
    rows = classification_rows(16, dtype=torch.float64)
    results = [run(make_args, Plain().double(), rows, cut, trainer_class) for cut in CUTS + UNEVEN]
    assert_same(results, 1e-10)


def _sum_over_count(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    return F.cross_entropy(outputs["logits"], labels, reduction="sum") / num_items_in_batch


def _mean(outputs: Any, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(outputs["logits"], labels)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [_sum_over_count, _mean])
def test_compute_loss_func(make_args: Callable[..., TrainingArguments], loss: Callable[..., torch.Tensor]) -> None:
    rows = classification_rows(16, dtype=torch.float64)
    results = [run(make_args, Plain().double(), rows, cut, compute_loss_func=loss) for cut in CUTS + UNEVEN]
    reference = [run(make_args, Plain().double(), rows, (16, 1))]
    assert_same(reference + results, 1e-10)


class MaskedMean(nn.Module):
    """A hand-written mean over a mask: 0/0 and a NaN gradient where nothing is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Plain(6, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layer.logits(x)
        kept = (labels != -100).to(logits.dtype)
        losses = F.cross_entropy(logits, labels.clamp(min=0), reduction="none")
        return {"loss": (losses * kept).sum() / kept.sum(), "logits": logits}


@pytest.mark.slow
def test_a_micro_batch_without_targets_cannot_poison_the_step(make_args: Callable[..., TrainingArguments]) -> None:
    rows = classification_rows(16, dtype=torch.float64)
    for index in (4, 5, 6, 7):
        rows[index]["labels"] = torch.tensor(-100)
    results = [run(make_args, MaskedMean().double(), rows, cut) for cut in CUTS]
    assert_same(results, 1e-10)
    assert all(torch.isfinite(value).all() for value in results[0][1].values())


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batch=st.integers(1, 9),
    accumulation=st.integers(1, 5),
    keep=st.lists(st.booleans(), min_size=12, max_size=12).filter(any),
)
def test_any_cut_gives_the_gradient_of_the_whole(
    make_args: Callable[..., TrainingArguments], batch: int, accumulation: int, keep: list[bool]
) -> None:
    """One step over any cut equals the gradient of the mean over all its targets."""
    rows = classification_rows(12, dtype=torch.float64)
    for row, kept in zip(rows, keep, strict=True):
        row["labels"] = row["labels"] if kept else torch.tensor(-100)
    used = rows[: batch * accumulation]
    model, whole = Plain().double(), Plain().double()
    x, y = torch.stack([r["x"] for r in used]), torch.stack([r["labels"] for r in used])
    if (y != -100).any():
        F.cross_entropy(whole.logits(x), y).backward()
    else:
        for parameter in whole.parameters():
            parameter.grad = torch.zeros_like(parameter)
    seen: dict[str, torch.Tensor] = {}

    class Look:
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seen.update(
                {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}
            )

    args = make_args(
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulation,
        max_steps=1,
        max_grad_norm=0,
        train_sampling_strategy="sequential",
    )
    Trainer(model, args, train_dataset=rows, callbacks=[Look()]).train()
    for name, parameter in whole.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(seen[name], parameter.grad, rtol=1e-12, atol=1e-13)
