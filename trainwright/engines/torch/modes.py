"""Training and evaluation mode of the model, and of optimizers that keep two sets of weights."""

from __future__ import annotations

from typing import Any

from torch import nn

from trainwright.engines.torch.training_flags import TrainingFlags


class Modes:
    """The part of the torch engine that switches modes."""

    model: nn.Module
    optimizer: Any

    def __init__(self) -> None:
        self._flags = TrainingFlags()
        self.appears_evaluated = False

    def train_mode(self) -> None:
        self._flags.put_back()
        self.appears_evaluated = False
        self.model.train()
        # Schedule-free optimizers keep two sets of weights and must be told which are wanted.
        if callable(getattr(self.optimizer, "train", None)):
            self.optimizer.train()

    def eval_mode(self, model: nn.Module) -> None:
        self._flags.put_back()
        self.appears_evaluated = False
        model.eval()
        self.rest_weights()

    def appear_evaluated(self) -> None:
        self._flags.lower(self.model)
        self.appears_evaluated = True

    def keep_mode(self) -> None:
        self._flags, self.appears_evaluated = TrainingFlags(), False

    def rest_weights(self) -> None:
        """The weights that are evaluated and saved: with a schedule-free optimizer, its average."""
        if callable(getattr(getattr(self, "optimizer", None), "eval", None)):
            self.optimizer.eval()
