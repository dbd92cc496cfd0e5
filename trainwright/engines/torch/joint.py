"""Several optimizers, or schedules, that a run drives as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.optim import Optimizer

from trainwright.config.arguments import TrainingArguments
from trainwright.core.state import TrainerControl, TrainerState
from trainwright.engines.torch.nonfinite import skips_on_device
from trainwright.engines.torch.schedules import needs_metric

#: What each of the joined optimizers keeps that belongs to no parameter.
_OTHERS = "of each optimizer"


class JointOptimizer:
    """Looks like one optimizer to the engine and to checkpoints: groups in a row, parameters numbered through.

    >>> import torch
    >>> first, second = torch.zeros(1, requires_grad=True), torch.zeros(2, requires_grad=True)
    >>> joint = join_optimizers([torch.optim.SGD([first], lr=0.1), torch.optim.SGD([second], lr=0.2)])
    >>> [group["lr"] for group in joint.param_groups]
    [0.1, 0.2]
    >>> [group["params"] for group in joint.state_dict()["param_groups"]]
    [[0], [1]]
    """

    #: Set by the engine, or by fp16's scaler, for one step: see ``skips_on_device``.
    found_inf: Tensor | None = None
    grad_scale: Tensor | None = None

    def __init__(self, optimizers: Sequence[Any]) -> None:
        self.optimizers = list(optimizers)
        self._step_supports_amp_scaling = all(skips_on_device(optimizer) for optimizer in self.optimizers)

    @property
    def kind(self) -> str:
        """What a checkpoint calls it: the state of one kind means nothing to another."""
        return " + ".join(type(optimizer).__name__ for optimizer in self.optimizers)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @property
    def state(self) -> dict[Any, Any]:
        return {key: entry for optimizer in self.optimizers for key, entry in optimizer.state.items()}

    def step(self, closure: Callable[[], Any] | None = None) -> None:
        if closure is not None:
            raise ValueError("Optimizers that need a closure cannot be joined: train with that one alone.")
        # Read once: the scaler deletes its attributes after the step.
        found, scale = self.found_inf, self.grad_scale
        for optimizer in self.optimizers:
            if self._step_supports_amp_scaling:
                optimizer.found_inf, optimizer.grad_scale = found, scale
            optimizer.step()
            if self._step_supports_amp_scaling:
                optimizer.found_inf = optimizer.grad_scale = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=set_to_none)

    def state_dict(self) -> dict[str, Any]:
        state: dict[Any, Any] = {}
        groups: list[dict[str, Any]] = []
        others: list[dict[str, Any]] = []
        for optimizer, start in zip(self.optimizers, self._starts(), strict=True):
            own = optimizer.state_dict()
            state |= {number + start: entry for number, entry in own["state"].items() if isinstance(number, int)}
            groups += [{**g, "params": [number + start for number in g["params"]]} for g in own["param_groups"]]
            of_no_parameter = {key: entry for key, entry in own["state"].items() if not isinstance(key, int)}
            beside = {key: value for key, value in own.items() if key not in ("state", "param_groups")}
            others.append({"state": of_no_parameter, "beside": beside})
        whole = {"state": state, "param_groups": groups}
        return {**whole, _OTHERS: others} if any(any(other.values()) for other in others) else whole

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        groups = list(state_dict["param_groups"])
        others = state_dict.get(_OTHERS) or [{"state": {}, "beside": {}} for _ in self.optimizers]
        for optimizer, start, other in zip(self.optimizers, self._starts(), others, strict=True):
            end = start + _size(optimizer)
            own = [groups.pop(0) for _ in optimizer.param_groups]
            numbered = {n - start: entry for n, entry in state_dict["state"].items() if start <= n < end}
            optimizer.load_state_dict(
                {
                    **other["beside"],
                    "state": {**numbered, **other["state"]},
                    "param_groups": [{**g, "params": [n - start for n in g["params"]]} for g in own],
                }
            )

    def _starts(self) -> list[int]:
        """Number of each optimizer's first parameter."""
        sizes = [_size(optimizer) for optimizer in self.optimizers]
        return [sum(sizes[:index]) for index in range(len(sizes))]


class RestingJointOptimizer(JointOptimizer):
    """With at least one that keeps two sets of weights (schedule-free) and must be told which are wanted."""

    def train(self) -> None:
        self._tell("train")

    def eval(self) -> None:
        self._tell("eval")

    def _tell(self, which: str) -> None:
        for optimizer in self.optimizers:
            if callable(tell := getattr(optimizer, which, None)):
                tell()


def join_optimizers(optimizers: Sequence[Any]) -> Any:
    """One optimizer as it is; several as one."""
    if len(optimizers) == 1:
        return optimizers[0]
    rests = any(callable(getattr(optimizer, "eval", None)) for optimizer in optimizers)
    return (RestingJointOptimizer if rests else JointOptimizer)(optimizers)


def _size(optimizer: Optimizer) -> int:
    return sum(len(group["params"]) for group in optimizer.param_groups)


class ScheduleEntry(NamedTuple):
    """A schedule and when it moves: after each "step", each "epoch", or with each "metric" that is evaluated."""

    scheduler: Any
    interval: str


class JointSchedule:
    """Several schedules, or one that does not move with every step, driven as one."""

    def __init__(self, entries: Sequence[ScheduleEntry]) -> None:
        self.entries = list(entries)

    @property
    def kind(self) -> str:
        return " + ".join(f"{type(entry.scheduler).__name__} by {entry.interval}" for entry in self.entries)

    @property
    def moves_by_epoch(self) -> bool:
        return any(entry.interval == "epoch" for entry in self.entries)

    def step(self) -> None:
        """After an update."""
        self._advance("step")

    def end_epoch(self) -> None:
        """After a whole epoch."""
        self._advance("epoch")

    def step_with_metric(self, value: float) -> None:
        """After an evaluation."""
        self._advance("metric", value)

    def _advance(self, interval: str, *values: float) -> None:
        for entry in self.entries:
            if entry.interval == interval:
                entry.scheduler.step(*values)

    def get_last_lr(self) -> list[float]:
        return [rate for entry in self.entries for rate in entry.scheduler.get_last_lr()]

    def state_dict(self) -> dict[str, Any]:
        return {"schedules": [entry.scheduler.state_dict() for entry in self.entries]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        saved = state_dict["schedules"]
        if len(saved) != len(self.entries):
            raise ValueError(
                f"The checkpoint holds {len(saved)} learning-rate schedules, this run has {len(self.entries)}: return "
                "the same ones from configure_optimizers, or start a new run from the checkpoint's weights."
            )
        for entry, state in zip(self.entries, saved, strict=True):
            entry.scheduler.load_state_dict(in_form_of(state, entry.scheduler.state_dict()))


def join_schedules(entries: Sequence[ScheduleEntry]) -> Any:
    """A single schedule that moves with every step, or with a metric, as it is; None for none."""
    if not entries:
        return None
    if len(entries) == 1 and entries[0].interval != "epoch":
        return entries[0].scheduler
    return JointSchedule(entries)


def natural_interval(scheduler: Any) -> str:
    """When a schedule moves if nobody says otherwise."""
    return "metric" if needs_metric(scheduler) else "step"


class EpochScheduleCallback:
    """Moves per-epoch schedules at the end of each epoch that was not broken off by the end of the training."""

    _is_internal = True

    def __init__(self, schedule: JointSchedule, epoch_is_whole: Callable[[], bool]) -> None:
        self._schedule, self._epoch_is_whole = schedule, epoch_is_whole

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        if self._epoch_is_whole():
            self._schedule.end_epoch()


def in_form_of(saved: object, present: object) -> Any:
    """``saved``, which has been through JSON, with numbers as keys where ``present`` has them (``MultiStepLR``)."""
    if isinstance(saved, dict) and isinstance(present, Mapping):
        if present and all(isinstance(key, int) for key in present):
            numbered = {int(key): value for key, value in saved.items()}
            return Counter(numbered) if isinstance(present, Counter) else numbered
        return {key: in_form_of(value, present.get(key)) for key, value in saved.items()}
    if isinstance(saved, list) and isinstance(present, list) and len(saved) == len(present):
        return [in_form_of(value, now) for value, now in zip(saved, present, strict=True)]
    return saved
