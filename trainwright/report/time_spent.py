"""Where the time of a run went, and how far it was at each step: from ``performance.jsonl``."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainwright.report.lines import Entry, number


@dataclass(frozen=True)
class Lap:
    """What one line says, from the line before up to ``step``."""

    step: int
    #: Trained in it; 0 for what came after the last step.
    steps: int
    #: When it was written, and when its process began to train, in seconds since 1970.
    time: float
    start: float
    seconds: dict[str, float]
    tokens: float = 0.0
    flops: float = 0.0
    line: dict[str, Any] = field(default_factory=dict)

    @property
    def train(self) -> float:
        return self.seconds.get("train", 0.0)


def laps_of(lines: list[Entry]) -> list[Lap]:
    """The lines that make sense."""
    found: list[Lap] = []
    for line in lines:
        step, steps, seconds = line.get("step"), line.get("steps"), line.get("seconds")
        time, start = number(line.get("time")), number(line.get("start"))
        if not isinstance(step, int) or not isinstance(steps, int) or not isinstance(seconds, dict):
            continue
        if time is None or start is None or not (math.isfinite(time) and math.isfinite(start)):
            continue
        parts = {str(name): value for name, each in seconds.items() if (value := number(each)) is not None}
        parts = {name: value for name, value in parts.items() if 0 <= value < 1e12}
        rates = [number(line.get(f"{what}_per_second")) or 0.0 for what in ("tokens", "flops")]
        amounts = [rate * parts.get("train", 0.0) for rate in rates]
        found.append(Lap(step, max(steps, 0), time, start, parts, *amounts, line=line))
    return found


def kept_and_redone(laps: list[Lap]) -> tuple[list[Lap], list[Lap]]:
    """Those on the way to the result, and those whose steps were done again after a kill or a rewind.

    >>> laps = [Lap(10, 10, 1.0, 0.0, {}), Lap(20, 10, 2.0, 0.0, {}), Lap(20, 10, 9.0, 8.0, {})]
    >>> kept, redone = kept_and_redone(laps)
    >>> [lap.time for lap in kept], [lap.time for lap in redone]
    ([1.0, 9.0], [2.0])
    """
    kept: list[Lap] = []
    redone: list[Lap] = []
    for lap in laps:
        # A lap that begins before the end of the one before it goes on from an earlier checkpoint.
        begins = lap.step - lap.steps
        while kept and lap.steps and kept[-1].step > begins:
            redone.append(kept.pop())
        kept.append(lap)
    return kept, redone[::-1]


@dataclass(frozen=True)
class Axes:
    """How many seconds, tokens and operations of training there had been at logged steps."""

    step: np.ndarray
    #: Seconds.
    time: np.ndarray
    tokens: np.ndarray
    flops: np.ndarray

    @classmethod
    def of(cls, laps: list[Lap]) -> Axes:
        kept, _ = kept_and_redone(laps)
        sums = [np.cumsum([value(lap) for lap in kept]) for value in (_whole_seconds, _tokens, _flops)]
        return cls(np.array([lap.step for lap in kept], dtype=np.float64), *sums)

    def at(self, steps: np.ndarray, what: str) -> np.ndarray:
        """The value on axis ``what`` at ``steps``, between two lines in proportion."""
        values = getattr(self, what)
        if not len(self.step):
            return np.full(len(steps), np.nan)
        return np.interp(steps, np.concatenate([[0.0], self.step]), np.concatenate([[0.0], values]))


def _whole_seconds(lap: Lap) -> float:
    return sum(value for name, value in lap.seconds.items() if name != "data")


def _tokens(lap: Lap) -> float:
    return lap.tokens


def _flops(lap: Lap) -> float:
    return lap.flops


def goodput(laps: list[Lap]) -> dict[str, float]:
    """Seconds of all processes of the run by what they were spent on.

    >>> goodput([Lap(1, 1, 1.0, 0.0, {"train": 4.0, "data": 1.0, "save": 0.5})])
    {'computing': 3.0, 'waiting for data': 1.0, 'saving': 0.5}
    """
    kept, redone = kept_and_redone(laps)
    parts = {
        "computing": sum(lap.train - lap.seconds.get("data", 0.0) for lap in kept),
        "waiting for data": sum(lap.seconds.get("data", 0.0) for lap in kept),
        "evaluating": sum(lap.seconds.get("evaluate", 0.0) for lap in laps),
        "saving": sum(lap.seconds.get("save", 0.0) for lap in laps),
        "starting": sum(lap.seconds.get("begin", 0.0) for lap in laps),
        "done again": sum(lap.train for lap in redone),
    }
    return {name: value for name, value in parts.items() if value > 0}


def starts_of(laps: list[Lap]) -> list[tuple[float, int]]:
    """When each process of the run began to train, and at which step."""
    found: dict[float, int] = {}
    for lap in laps:
        found.setdefault(lap.start, lap.step - lap.steps)
    return sorted(found.items())
