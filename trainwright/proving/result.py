"""What a proof found: a row for each thing that must not change a training."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from trainwright.proving.record import THE_LOSS, Deviation

#: Why a row was not tried for which there was no time left.
OVER = "the rest of the budget is too short for it"
#: The row in which nothing is changed that a mistake could be found by.
AGAIN = "the same steps, another seed"
#: What is said where no other row was tried.
NOTHING_TRIED = "Nothing is proven: no row was tried in which something is changed. Give it more seconds (budget)."

Outcome = Literal["pass", "fail", "not tried"]


@dataclass(frozen=True)
class Allowed:
    """How far a training may be from the plain one."""

    #: Losses, and the gradient of each parameter, as a share of what they should be.
    share: float
    #: The weights of each parameter: how far an optimizer takes them depends on it.
    weights: dict[str, float]
    why: str
    #: Of losses, where it is another one.
    loss: float | None = None


@dataclass(frozen=True)
class Bounds:
    """How far losses, gradients and weights may differ, as shares, and why so far."""

    loss: float
    gradient: float
    #: Of the parameter whose weights are furthest beyond theirs, or nearest to them.
    weights: float
    why: str


@dataclass(frozen=True)
class Row:
    """One thing that was changed, and what it changed.

    Args:
        outcome: "pass", "fail" or "not tried".
        why: Why it was not tried; of a failure, what it usually means.
        loss: The largest deviation over all steps, as a share of what it should be; None where it was not measured.
        gradient: The same of the gradients of a parameter, as a share of their length.
        weights: The same of the change of a parameter's weights.
        worst: The parameter that is furthest from what it may be, or "the loss".
    """

    name: str
    outcome: Outcome
    why: str | None = None
    loss: float | None = None
    gradient: float | None = None
    weights: float | None = None
    bounds: Bounds | None = None
    worst: str | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Proof:
    """All rows, and what was compared in which format.

    >>> Proof("Net", "cpu", "float64", 8, 60.0, 1.0, 7, [Row("the batch in 2 pieces", "pass")]).holds
    True
    """

    model: str
    device: str
    format: str
    #: Samples of each update that was compared.
    samples: int
    budget: float
    seconds: float
    #: Gives the same step to resume after.
    seed: int
    rows: list[Row]
    notes: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether something was changed, and no row failed."""
        return self.is_tried and not self.failures

    @property
    def is_tried(self) -> bool:
        """Whether there was time, and a way, to change anything."""
        return any(row.outcome != "not tried" and row.name != AGAIN for row in self.rows)

    @property
    def failures(self) -> list[Row]:
        return [row for row in self.rows if row.outcome == "fail"]

    def __getitem__(self, name: str) -> Row:
        """The row of a name, or the first whose name begins with it."""
        found = [row for row in self.rows if row.name == name] or [r for r in self.rows if r.name.startswith(name)]
        if not found:
            raise KeyError(f"{name!r}; there are {', '.join(row.name for row in self.rows)}")
        return found[0]

    def as_dict(self) -> dict[str, Any]:
        """The same as JSON has it: neither NaN nor infinity, but the words."""
        found = asdict(self)
        return {"holds": self.holds, **_valid(found)}

    def __str__(self) -> str:
        from trainwright.proving.table import text_of

        return text_of(self)


def measured(name: str, found: Deviation, allowed: Allowed, seconds: float) -> Row:
    """The row of a deviation; a failure names where it is furthest beyond its bound."""
    share = allowed.share
    loss_share = share if allowed.loss is None else allowed.loss
    beyond = {THE_LOSS: _times(found.loss, loss_share)}
    beyond[found.gradient_at] = _times(found.gradient, share)
    times = {one: _times(size, allowed.weights.get(one, share)) for one, size in found.weights.items()}
    weights_at = max(times, key=lambda one: times[one], default="")
    # Weights follow gradients: they are named only where nothing else is wrong.
    if times and max(beyond.values()) <= 1.0:
        beyond[weights_at] = max(times[weights_at], beyond.get(weights_at, 0.0))
    worst = max(beyond, key=lambda one: beyond[one])
    failed = beyond[worst] > 1.0
    return Row(
        name,
        "fail" if failed else "pass",
        loss=found.loss,
        gradient=found.gradient,
        weights=found.weights.get(weights_at),
        bounds=Bounds(loss_share, share, allowed.weights.get(weights_at, share), allowed.why),
        worst=worst if failed else None,
        seconds=seconds,
    )


def _times(found: float | None, bound: float) -> float:
    if found is None:
        return 0.0
    if math.isnan(found):
        return math.inf
    return found / bound if bound else math.inf if found else 0.0


def _valid(value: Any) -> Any:
    """``value`` as JSON has it."""
    if isinstance(value, dict):
        return {name: _valid(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_valid(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
