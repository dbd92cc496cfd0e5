"""Attributes and methods of transformers' Trainer that subclasses set, read, call and copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import trainwright
from tests.models import Plain, classification_rows

ROWS: Any = classification_rows(16)


# ---- loss_is_scaled_for_ga


def mean_loss(model: Any, inputs: Any) -> Tensor:
    return nn.functional.cross_entropy(model.logits(inputs["x"]), inputs["labels"])


def first_gradient_norm(library: Any, folder: Path, scaled: bool | None, divides: str | None, late: bool) -> float:
    """The gradient norm of a step of two batches, with a loss that the subclass has scaled, or not, by itself."""

    class Own(library.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch: Any = None):
            loss = mean_loss(model, inputs)
            if divides == "by steps":
                return loss / self.current_gradient_accumulation_steps
            return loss * len(inputs["x"]) / num_items_in_batch if divides == "by items" else loss

    if not late:
        Own.loss_is_scaled_for_ga = scaled
    args = library.TrainingArguments(
        str(folder), max_steps=1, per_device_train_batch_size=4, gradient_accumulation_steps=2, logging_steps=1,
        use_cpu=True, report_to="none", disable_tqdm=True, save_strategy="no", max_grad_norm=1e9,
    )  # fmt: skip
    torch.manual_seed(0)
    trainer: Any = Own(Plain().float(), args, train_dataset=ROWS)
    if late:
        trainer.loss_is_scaled_for_ga = scaled
    trainer.train()
    return float(trainer.state.log_history[0]["grad_norm"])


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("scaled", "divides"), [(True, "by steps"), (True, "by items"), (True, None), (False, None), (False, "by steps")]
)
def test_a_loss_that_says_how_it_is_scaled_gives_transformers_gradient(
    tmp_path: Path, scaled: bool, divides: str | None, late: bool
) -> None:
    ours, theirs = (
        first_gradient_norm(library, tmp_path / library.__name__, scaled, divides, late)
        for library in (trainwright, transformers)
    )
    assert ours == pytest.approx(theirs, rel=1e-5)
