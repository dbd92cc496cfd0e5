"""Phases: a training whose epochs have settings of their own, one span after the other."""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

#: Epochs are fractions of whole steps; what is nearer than this is the same moment.
_SAME_MOMENT = 1e-9
_MOST_EPOCHS = 1_000_000
_COMPARED: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_CONDITION = re.compile(r"\s*([\w./-]+)\s*(>=|<=|>|<)\s*([-+.\deE]+)\s*")


@dataclass(frozen=True)
class Phase:
    """Some epochs of a training; what a phase does not say is as the training's arguments say.

    Args:
        name: What it is called in the log and the report.
        epochs: How many, at most.
        trainable: Names of the parameters that are trained, the others rest: exact names or ``re:pattern``.
        freeze: Names of those that rest, the others are trained.
        train_dataset: What it learns from; by default the Trainer's ``train_dataset``.
        learning_rate: Its highest rate.
        lr_scheduler_type: Its schedule, over the steps of this phase alone.
        lr_scheduler_kwargs: Options of the schedule.
        warmup_steps: Steps of warm-up, or below 1 a share of the phase's.
        weight_decay: Of the parameters that decay.
        fresh_optimizer: Whether the optimizer forgets its averages of gradients when this begins.
        until: Ends it earlier, at the end of the epoch in which an evaluation shows this: ``"eval_accuracy >= 0.9"``.

    >>> Phase("head", epochs=2, trainable=["re:head"], learning_rate=1e-2).epochs
    2
    """

    name: str
    epochs: int
    trainable: str | Sequence[str] | None = None
    freeze: str | Sequence[str] | None = None
    train_dataset: Any = None
    learning_rate: float | None = None
    lr_scheduler_type: str | None = None
    lr_scheduler_kwargs: dict[str, Any] | None = None
    warmup_steps: float | None = None
    weight_decay: float | None = None
    fresh_optimizer: bool = False
    until: str | None = None

    def __post_init__(self) -> None:
        where = f"The phase {self.name!r}"
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"A phase needs a name, as its first argument: {self.name!r} is none.")
        if isinstance(self.epochs, bool) or not isinstance(self.epochs, int) or self.epochs < 1:
            raise ValueError(f"{where} has epochs={self.epochs!r}: give a whole number of at least 1.")
        if self.epochs > _MOST_EPOCHS:
            raise ValueError(f"{where} has epochs={self.epochs}: at most {_MOST_EPOCHS:,} are possible.")
        if self.trainable is not None and self.freeze is not None:
            raise ValueError(f"{where} has trainable= and freeze=: each says what the other leaves, so keep one.")
        for name, lowest in (("learning_rate", 0.0), ("weight_decay", 0.0), ("warmup_steps", 0.0)):
            value = getattr(self, name)
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, (int, float)) or not lowest <= value < math.inf
            ):
                raise ValueError(f"{where} has {name}={value!r}: give a number of 0 or more.")
        if self.until is not None:
            condition_of(self.until)

    def settings(self) -> dict[str, Any]:
        """What it says besides name, length and data, as JSON has it."""
        said = {name: value for name, value in vars(self).items() if name not in ("name", "epochs", "train_dataset")}
        return json.loads(json.dumps(said, default=str))


@dataclass(frozen=True)
class Condition:
    """A bound that a metric has to reach."""

    metric: str
    compared: str
    bound: float

    def holds(self, metrics: dict[str, float]) -> bool:
        """Whether ``metrics`` show it; a metric that is not there shows nothing."""
        value = metrics.get(self.metric, metrics.get(f"eval_{self.metric}"))
        return value is not None and _COMPARED[self.compared](value, self.bound)


def condition_of(text: str) -> Condition:
    """Read ``"eval_loss < 0.5"``.

    >>> condition_of("accuracy >= 0.9").holds({"eval_accuracy": 0.92})
    True
    """
    found = _CONDITION.fullmatch(str(text))
    try:
        if found is not None:
            return Condition(found[1], found[2], float(found[3]))
    except ValueError:
        pass
    raise ValueError(f"until={text!r} should be a metric and a bound, such as 'eval_accuracy >= 0.9'.")


class PhasePlan:
    """Which phase each epoch of a run belongs to; a phase that ends early moves those after it forward.

    >>> plan = PhasePlan([Phase("one", 2), Phase("two", 3)])
    >>> [plan.number_at(epoch) for epoch in (0, 1.5, 2, 4, 5)], plan.epochs
    ([0, 0, 1, 1, 1], 5)
    >>> plan.end(0, 1)
    >>> plan.number_at(1), plan.epochs
    (1, 4)
    """

    def __init__(self, phases: Sequence[Phase]) -> None:
        self.phases = list(phases)
        names = [phase.name for phase in self.phases]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"phases= takes phases with different names, at least one; these are {names}.")
        self.lengths = [phase.epochs for phase in self.phases]
        #: Batches of an epoch of each phase, and of a step; known once there is a loader.
        self.batches_per_epoch: list[int] = []
        self.accumulation = 1

    @property
    def steps_per_epoch(self) -> list[int]:
        """Optimizer steps of an epoch of each phase."""
        return [math.ceil(batches / self.accumulation) for batches in self.batches_per_epoch]

    @property
    def epochs(self) -> int:
        """Of all phases together."""
        return sum(self.lengths)

    def start_of(self, number: int) -> int:
        """The epoch with which a phase begins."""
        return sum(self.lengths[:number])

    def number_at(self, epoch: float) -> int:
        """The phase that ``epoch`` belongs to; after the end, the last."""
        for number in range(len(self.phases)):
            if epoch < self.start_of(number + 1) - _SAME_MOMENT:
                return number
        return len(self.phases) - 1

    def end(self, number: int, epoch: int) -> None:
        """Let a phase end with ``epoch``."""
        self.lengths[number] = epoch - self.start_of(number)

    def whole_again(self) -> None:
        """Give each phase its full length: a new run begins."""
        self.lengths = [phase.epochs for phase in self.phases]

    def steps_of(self, number: int) -> int:
        """Optimizer steps of a phase that does not end early: what its schedule spans."""
        return self.phases[number].epochs * self.steps_per_epoch[number]

    def step_in(self, number: int, epoch: float) -> int:
        """Optimizer steps of a phase that were made by ``epoch``; the last of an epoch may have fewer batches."""
        whole, part = divmod(epoch - self.start_of(number) + _SAME_MOMENT, 1)
        batches = round(part * self.batches_per_epoch[number])
        return int(whole) * self.steps_per_epoch[number] + math.ceil(batches / self.accumulation)

    def steps_after(self, epoch: int) -> int:
        """Optimizer steps of the epochs from ``epoch`` on."""
        return sum(self.steps_per_epoch[self.number_at(one)] for one in range(epoch, self.epochs))
