"""Values that a Module logs in its step methods: weighted means, kept on the device until a log is due."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trainwright.core.module import RESERVED_NAMES
from trainwright.engines.torch.meter import LossMeter

Gather = Callable[[Any], list[Any]]


class Entry(NamedTuple):
    """One call of ``log``."""

    name: str
    value: float | Tensor
    weight: float | Tensor


class Means:
    """Weighted means by name. Values are added one after the other, so that a resumed run rounds as if never stopped.

    Args:
        skip_nonfinite: Leave values out that are NaN or infinite, as the log does with losses.
    """

    def __init__(self, *, skip_nonfinite: bool = False) -> None:
        self._skip_nonfinite = skip_nonfinite
        self._sums: dict[str, tuple[Any, Any]] = {}

    def add(self, entry: Entry) -> None:
        name, value, weight = entry
        total, weights = self._sums.get(name, (0.0, 0.0))
        if isinstance(value, Tensor) or isinstance(weight, Tensor):
            value, weight = _on_one_device(value, weight)
            counts = weight > 0
            if self._skip_nonfinite:
                counts = counts & torch.isfinite(value)
            # A mean over nothing is NaN, and 0 x NaN is too.
            product, weight = torch.where(counts, value * weight, 0.0), torch.where(counts, weight, 0.0)
        else:
            counted = weight > 0 and (math.isfinite(value) or not self._skip_nonfinite)
            product, weight = (value * weight, weight) if counted else (0.0, 0.0)
        self._sums[name] = (total + product, weights + weight)

    def read(self, gather: Gather) -> dict[str, float]:
        """The means, over all processes; waits for the device. A name of which nothing counted is NaN."""
        sums: dict[str, tuple[float, float]] = {}
        # Plain numbers and not a tensor: one process may have logged names that another did not.
        for part in gather(self.state()()):
            for name, (total, weight) in part.items():
                before = sums.get(name, (0.0, 0.0))
                sums[name] = (before[0] + total, before[1] + weight)
        return {name: total / weight if weight else math.nan for name, (total, weight) in sums.items()}

    def clear(self) -> None:
        self._sums.clear()

    def state(self) -> Callable[[], dict[str, list[float]]]:
        """What a checkpoint keeps; only the call of the answer waits for the device."""
        sums = dict(self._sums)
        return lambda: {name: [float(total), float(weight)] for name, (total, weight) in sums.items()}

    def load_state_dict(self, state: dict[str, list[float]]) -> None:
        self._sums = {name: (total, weight) for name, (total, weight) in state.items()}


class LoggedValues:
    """From ``Module.log`` to the log: what a step logged counts once the step is done, and is dropped if it is redone.

    >>> values = LoggedValues()
    >>> with values.training(weight=2):
    ...     values.log("accuracy", 0.5)
    >>> with values.training(weight=6):
    ...     values.log("accuracy", 1.0)
    >>> values.commit()
    >>> values.read()
    {'accuracy': 0.875}
    """

    def __init__(self, *, skip_nonfinite: bool = False, gather: Gather | None = None) -> None:
        #: What all processes have in the place of a value, in a list.
        self.gather: Gather = gather or _alone
        self.means = Means(skip_nonfinite=skip_nonfinite)
        self._pending: list[Entry] = []
        self._open: list[Entry] | None = None
        self._weight: Callable[[], Any] = _one

    def log(self, name: str, value: object, weight: object = None) -> None:
        """Keep ``value`` for the step method that is running."""
        if self._open is None:
            raise ValueError(_OUTSIDE.format(name=name))
        if name in RESERVED_NAMES:
            raise ValueError(
                f"self.log({name!r}, ...) would hide the log's own {name!r}: choose another name. The loss that a step "
                "method returns is logged by itself."
            )
        chosen = self._weight() if weight is None else weight
        self._open.append(Entry(name, _scalar(name, value), _scalar(name, chosen)))

    @contextmanager
    def training(self, weight: object) -> Iterator[None]:
        """While a micro-batch with ``weight`` targets (None: unknown) is trained on."""
        with self._collecting(self._pending, lambda: 1.0 if weight is None else weight):
            yield

    @contextmanager
    def evaluating(self, means: Means, weight: Callable[[], Any]) -> Iterator[None]:
        """While one evaluation batch is looked at; what was logged counts if nothing was raised."""
        entries: list[Entry] = []
        with self._collecting(entries, weight):
            yield
        for entry in entries:
            means.add(entry)

    @contextmanager
    def _collecting(self, entries: list[Entry], weight: Callable[[], Any]) -> Iterator[None]:
        before = (self._open, self._weight)
        self._open, self._weight = entries, weight
        try:
            yield
        finally:
            self._open, self._weight = before

    def commit(self) -> None:
        """The step is done: what it logged counts."""
        for entry in self._pending:
            self.means.add(entry)
        self._pending.clear()

    def drop(self) -> None:
        """The step is undone, or only a try."""
        self._pending.clear()

    def read(self) -> dict[str, float]:
        """Means since the last call; waits for the device."""
        found = self.means.read(self.gather)
        self.means.clear()
        return found


class ModuleMeter(LossMeter):
    """Losses between two logs, and with them, in checkpoints, the values logged meanwhile."""

    def __init__(self, values: LoggedValues, *, skip_nonfinite: bool) -> None:
        super().__init__(skip_nonfinite=skip_nonfinite)
        self._values = values

    @property
    def is_empty(self) -> bool:
        """Whether no step since the last log had a loss."""
        return self._steps == 0

    def state(self) -> Callable[[], dict[str, Any]]:
        losses, logged = super().state(), self._values.means.state()
        return lambda: {**losses(), "logged": logged()}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        super().load_state_dict(state, device)
        self._values.means.load_state_dict(state.get("logged", {}))


_OUTSIDE = (
    "self.log({name!r}, ...) was called outside a step: use it in training_step, validation_step, test_step or "
    "predict_step while a Trainer runs them. In an on_log hook, put values into `logs` instead."
)


def _scalar(name: str, value: Any) -> float | Tensor:
    """A number as it is now: a float, or for a value on an accelerator a copy there, so that nothing waits."""
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(f"self.log({name!r}, ...) takes one number, not a tensor of shape {tuple(value.shape)}.")
        if value.is_cpu:
            return float(value.detach())
        precise = torch.float32 if value.device.type == "mps" else torch.float64
        return value.detach().reshape(()).to(precise, copy=True)
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"self.log({name!r}, ...) takes a number, not a {type(value).__name__}.") from None


def _on_one_device(value: float | Tensor, weight: float | Tensor) -> tuple[Tensor, Tensor]:
    like = value if isinstance(value, Tensor) else weight
    assert isinstance(like, Tensor)
    value, weight = (part if isinstance(part, Tensor) else like.new_full((), part) for part in (value, weight))
    return value, weight


def _alone(value: object) -> list[Any]:
    return [value]


def _one() -> float:
    return 1.0
