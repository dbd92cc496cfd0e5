"""What a PyMarlin user writes: a module with its data, its steps, its optimizers and its callbacks."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import torch


class Stage(enum.Enum):
    """Which step ``forward`` runs."""

    TRAIN = 1
    VAL = 2
    TEST = 3


class CallbackInterface:
    """Hooks of a training, all optional, in the order in which they are called."""

    def on_begin_train_epoch(self, global_step: int, epoch: int) -> None:
        """Before an epoch's first batch; ``global_step`` counts the optimizer steps done."""

    def on_end_backward(self, global_step: int, loss_tensor: torch.Tensor) -> None:
        """After each micro-batch's backward pass; the loss is its (detached) share of the step's loss."""

    def on_end_train_step(self, global_step: int, *train_step_collated_outputs: object) -> None:
        """After each optimizer step, with what its ``train_step`` calls returned."""

    def on_end_val_epoch(self, global_step: int, *val_step_collated_outputs: object, key: str = "default") -> None:
        """After each validation loader, with everything its ``val_step`` calls returned."""

    def on_end_train_epoch(self, global_step: int, *train_step_collated_outputs: object) -> None:
        """After an epoch and its validation, with what all its ``train_step`` calls returned."""

    def on_end_train(self, global_step: int) -> None:
        """After the last epoch."""


class ModuleInterface(torch.nn.Module, CallbackInterface, ABC):
    """A module that can be trained; Python refuses to make one before the five abstract methods are defined."""

    @abstractmethod
    def get_optimizers_schedulers(
        self, estimated_global_steps_per_epoch: int, epochs: int
    ) -> tuple[Iterable[torch.optim.Optimizer], Iterable[Any]]:
        """Optimizers and learning-rate schedulers; the latter step once per optimizer step."""

    @abstractmethod
    def get_train_dataloader(self, sampler: object, batch_size: int) -> Any:
        """The training loader: ``DataLoader(data, batch_size=batch_size, sampler=sampler(data))``."""

    @abstractmethod
    def get_val_dataloaders(self, sampler: object, batch_size: int) -> Any:
        """A validation loader, or several in a dict by name."""

    def get_test_dataloaders(self, sampler: object, batch_size: int) -> Any:
        """Loaders for your own use: the Trainer does not call this."""

    def forward(self, stage: Stage, global_step: int, batch: Any, device: Any) -> Any:
        """Run the step of ``stage``."""
        steps = {Stage.TRAIN: self.train_step, Stage.VAL: self.val_step, Stage.TEST: self.test_step}
        if stage not in steps:
            raise AttributeError(f"There is no stage {stage!r}; there are: {', '.join(str(known) for known in Stage)}.")
        return steps[stage](global_step=global_step, batch=batch, device=device)

    @abstractmethod
    def train_step(self, global_step: int, batch: object, device: torch.device) -> Any:
        """The loss (a mean over the batch), or a tuple that begins with it."""

    @abstractmethod
    def val_step(self, global_step: int, batch: object, device: torch.device) -> Any:
        """Whatever ``on_end_val_epoch`` is to receive."""

    def test_step(self, global_step: int, batch: object, device: torch.device) -> Any:
        """A step for your own use."""

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint keeps of the module: its weights, unless overridden."""
        return self.state_dict()

    def update_state(self, state: dict[str, Any] | None) -> None:
        """Take up what ``get_state`` returned."""
        if state:
            self.load_state_dict(state)
