"""Words of the Module API that need no framework."""

from __future__ import annotations

from typing import NamedTuple


class StepPlan(NamedTuple):
    """How long a training is; what ``configure_optimizers`` gets to build its schedules for.

    >>> plan = StepPlan(max_steps=30, steps_per_epoch=10, epochs=3)
    >>> plan.max_steps == plan.steps_per_epoch * plan.epochs
    True
    """

    #: Optimizer steps of the whole training.
    max_steps: int
    #: Optimizer steps of one epoch; for data without a length the same as ``max_steps``.
    steps_per_epoch: int
    #: Epochs that are begun; the last may be cut short by ``max_steps``.
    epochs: int


#: Names that the log gives to values of its own.
RESERVED_NAMES = frozenset(
    {"loss", "learning_rate", "grad_norm", "epoch", "step", "micro_batch", "num_input_tokens_seen"}
)
