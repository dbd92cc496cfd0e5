"""Small Modules for tests, and how to compare two networks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.models import Plain
from trainwright import Module, TrainerCallback


class Classifier(Module):
    """The network in ``self.model``."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Plain()

    def training_step(self, batch: Any) -> Any:
        return F.cross_entropy(self.model.logits(batch["x"]), batch["labels"])

    def validation_step(self, batch: Any) -> Any:
        logits = self.model.logits(batch["x"])
        return {"loss": F.cross_entropy(logits, batch["labels"]), "logits": logits, "labels": batch["labels"]}


class StopAt(TrainerCallback):
    """Ends a training after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step == self.step


def weights(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def equal(one: nn.Module, other: nn.Module) -> bool:
    """Whether all parameters are the same, to the last bit."""
    return all(torch.equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))
