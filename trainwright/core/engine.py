"""The seam between the loop and a framework: a few verbs, and events between them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol


class Portion(NamedTuple):
    """One micro-batch's part in an optimizer step."""

    #: Targets the micro-batch's mean loss is taken over; None where counting would wait for the device.
    targets: Any
    #: Its share of the step's targets: a float, or a scalar on the device.
    weight: Any
    #: Targets of the whole step.
    step_targets: Any
    #: Micro-batches in the step.
    pieces: int


class Engine(Protocol):
    """How a framework trains. The loop calls these in the order they stand here."""

    def mark_boundary(self) -> None:
        """Remember what a step changes before its update, so that an interrupted one can be undone."""
        ...

    #: Whether no other process takes part in a step.
    is_alone: bool

    @property
    def runs_in_step(self) -> bool:
        """Whether every process must run as many forward and backward passes in a step as the others."""
        ...

    def most(self, number: int) -> int:
        """The largest ``number`` of any process."""
        ...

    def sum_counts(self, count: Any) -> Any:
        """``count`` summed over all processes."""
        ...

    def rows(self, batch: Any) -> int:
        """Samples in ``batch``."""
        ...

    def count_targets(self, batch: Any) -> Any:
        """What the mean loss of ``batch`` is taken over, before it goes to the device."""
        ...

    def forward_backward(self, batch: Any, portion: Portion, *, sync: bool) -> Any:
        """Add ``portion.weight`` x gradient of the mean loss; returns weight x loss, on the device."""
        ...

    def is_out_of_memory(self, error: Exception) -> bool:
        """Whether ``error`` means that a forward or backward pass did not fit into memory."""
        ...

    def undo_step(self) -> None:
        """Gradients, random states and buffers as they were at the last boundary, and unused memory given back."""
        ...

    def finish_gradients(self, loss: Any, *, norm_wanted: bool) -> Any:
        """Sum over processes, unscale and clip; returns the loss of the whole step.

        Keeps the gradient norm for the log, and finds out whether the step is finite.
        """
        ...

    def apply_update(self) -> None:
        """Optimizer, scaler, schedule; a step whose loss or gradient is not finite leaves the weights as they are."""
        ...

    def clear_gradients(self) -> None: ...

    def train_mode(self) -> None:
        """Back to training after anything that evaluates."""
        ...

    def record_loss(self, loss: Any) -> None:
        """Keep a step's loss for the next log without waiting for the device; None if the step had no target."""
        ...

    def read_log(self) -> dict[str, float]:
        """loss (mean since the last call), grad_norm and learning_rate; the only place that waits for the device."""
        ...

    def plateau_step(self, value: float) -> None:
        """Tell a metric-driven schedule what the evaluation found."""
        ...


@dataclass(frozen=True)
class Layout:
    """Who holds which weights, and who writes them."""

    #: What users call it: sp, ddp, fsdp, deepspeed.
    name: str = "sp"
    #: Each process holds parts of the weights, and writes its own.
    in_parts: bool = False
    #: The first process writes, but all must come to put weights and optimizer state together.
    gathered_to_save: bool = False
    #: Between passes parameters are empty: their values are in buffers of somebody else's.
    empty_between_passes: bool = False
    #: Neighbouring processes that have the same samples.
    copies: int = 1


class Weights(Protocol):
    """How a model is spread over processes, as those see it who load, save and evaluate it."""

    @property
    def layout(self) -> Layout: ...

    def spread(self, model: Any, backend: Any, called: Any = None) -> Any:
        """Take the model, all processes starting with the weights of the first; returns it as it is to be called."""
        ...

    def bring(self, model: Any, device: Any) -> None:
        """Before the first training: to ``device``, where the Trainer has left that to the engine."""
        ...

    def take_optimizer(self, model: Any, optimizer: Any) -> Any:
        """Once there is an optimizer: the model, as :meth:`spread` returned it, as it is to be called."""
        ...

    def make_schedule(self, optimizer: Any, total_steps: int) -> Any:
        """A learning-rate schedule that the strategy's own configuration names, or None."""
        ...

    def whole(self, model: Any, optimizer: Any = None, *, keep: bool) -> AbstractContextManager[None]:
        """Within it both hold everything in single precision, in processes that ``keep`` it; all must come by."""
        ...

    def rewritten(self, model: Any, optimizer: Any = None) -> AbstractContextManager[None]:
        """The same in every process; what is written to them within it is what training goes on with."""
        ...

    def called_in_parts(self) -> AbstractContextManager[None]:
        """Around calls of the model's inner layers without the model itself, as ``generate`` makes them."""
        ...

    def settle(self) -> None:
        """After passes that no backward pass follows: parameters as they are between steps."""
        ...

    def recover(self) -> None:
        """Put the model back in order after a pass that was broken off."""
        ...
