"""However batches are cut to fit, and whenever they turn out not to, a step has the gradient of all its targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from tests.models import Plain, classification_rows
from trainwright import Trainer, TrainingArguments


class Small(Plain):
    """Holds ``most`` rows at once."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def forward(self, x: Tensor, labels: Tensor | None = None, **kwargs: Any) -> dict[str, Tensor]:
        if len(x) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory (a test)")
        return super().forward(x, labels)


@pytest.mark.slow
@settings(
    max_examples=10 if settings().max_examples <= 100 else 100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    batch=st.integers(1, 9),
    accumulation=st.integers(1, 3),
    most=st.integers(1, 9),
    micro=st.one_of(st.just("auto"), st.integers(1, 10)),
    keep=st.lists(st.booleans(), min_size=20, max_size=20).filter(any),
)
def test_any_piece_size_gives_the_gradient_of_the_whole(
    make_args: Callable[..., TrainingArguments],
    batch: int,
    accumulation: int,
    most: int,
    micro: int | str,
    keep: list[bool],
) -> None:
    rows = classification_rows(20, dtype=torch.float64)
    for row, kept in zip(rows, keep, strict=True):
        row["labels"] = row["labels"] if kept else torch.tensor(-100)
    model = Small(most if micro == "auto" else 10).double()
    seen: list[dict[str, Tensor]] = []

    class Look:
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            named = model.named_parameters()
            seen.append({n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in named})

    args = make_args(
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulation,
        num_train_epochs=1,
        learning_rate=0.0,
        max_grad_norm=0,
        micro_batch=micro,
        train_sampling_strategy="sequential",
    )
    Trainer(model, args, train_dataset=rows, callbacks=[Look()]).train()
    step = batch * accumulation
    parts = [rows[start : start + step] for start in range(0, len(rows), step)]
    assert len(seen) == len(parts)
    for part, gradients in zip(parts, seen, strict=True):
        whole = Plain().double()
        x, y = torch.stack([row["x"] for row in part]), torch.stack([row["labels"] for row in part])
        if (y != -100).any():
            F.cross_entropy(whole.logits(x), y).backward()
        for name, parameter in whole.named_parameters():
            expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            torch.testing.assert_close(gradients[name], expected, rtol=1e-12, atol=1e-13)
