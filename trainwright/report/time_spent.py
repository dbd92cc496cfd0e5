"""Where the time of a run went, and how far it was at each step: from ``performance.jsonl``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from trainwright.report.lines import Entry, column

#: No clock, and no training, gets there.
_FAR = 2.0**53


class Lap(NamedTuple):
    """What one line says, from the line before up to ``step``."""

    step: int
    #: Trained in it; 0 for what came after the last step.
    steps: int
    #: When it was written, and when its process began to train, in seconds since 1970.
    time: float
    start: float
    seconds: Mapping[str, float]
    line: Mapping[str, Any] = MappingProxyType({})

    def part(self, step: int, steps: int) -> Lap:
        """So many of its steps up to ``step``, and of its seconds in proportion."""
        share = steps / self.steps
        return self._replace(step=step, steps=steps, seconds={name: s * share for name, s in self.seconds.items()})

    @property
    def train(self) -> float:
        return self.seconds.get("train", 0.0)


def laps_of(lines: list[Entry]) -> list[Lap]:
    """The lines that make sense."""
    found: list[Lap] = []
    for line in lines:
        try:
            step, steps, seconds = line["step"], line["steps"], line["seconds"]
            time, start = line["time"], line["start"]
            # Sums leave the range of numbers for NaN and infinity alone.
            is_sound = -_FAR < time + start + sum(seconds.values()) < _FAR and min(seconds.values(), default=0) >= 0
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError):
            continue
        if is_sound and type(step) is int and type(steps) is int and -_FAR < step < _FAR:
            found.append(Lap(step, max(steps, 0), float(time), float(start), seconds, line))
    return found


def kept_and_redone(laps: list[Lap]) -> tuple[list[Lap], list[Lap]]:
    """Those on the way to the result, and those whose steps were done again after a kill or a rewind.

    >>> laps = [Lap(10, 10, 1.0, 0.0, {}), Lap(20, 10, 2.0, 0.0, {}), Lap(20, 10, 9.0, 8.0, {})]
    >>> kept, redone = kept_and_redone(laps)
    >>> [lap.time for lap in kept], [lap.time for lap in redone]
    ([1.0, 9.0], [2.0])

    One that was done again in part is counted in proportion:

    >>> kept, redone = kept_and_redone([Lap(10, 10, 1.0, 0.0, {"train": 5.0}), Lap(10, 2, 9.0, 8.0, {"train": 1.0})])
    >>> [lap.train for lap in kept], [lap.train for lap in redone]
    ([4.0, 1.0], [1.0])
    """
    kept: list[Lap] = []
    redone: list[Lap] = []
    for lap in laps:
        # A lap that begins before the end of the one before it goes on from an earlier checkpoint.
        begins = lap.step - lap.steps
        while kept and lap.steps and kept[-1].step > begins:
            last = kept.pop()
            stayed = begins - (last.step - last.steps)
            if stayed > 0:
                kept.append(last.part(begins, stayed))
                last = last.part(last.step, last.steps - stayed)
            redone.append(last)
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
        trained, lines = np.array([lap.train for lap in kept]), [lap.line for lap in kept]
        whole = np.array([sum(lap.seconds.values()) - lap.seconds.get("data", 0.0) for lap in kept])
        amounts = [np.nan_to_num(column(lines, f"{what}_per_second")) * trained for what in ("tokens", "flops")]
        steps = np.array([lap.step for lap in kept], dtype=np.float64)
        return cls(steps, np.cumsum(whole), *map(np.cumsum, amounts))

    def at(self, steps: np.ndarray, what: str) -> np.ndarray:
        """The value on axis ``what`` at ``steps``, between two lines in proportion."""
        values = getattr(self, what)
        if not len(self.step):
            return np.full(len(steps), np.nan)
        return np.interp(steps, np.concatenate([[0.0], self.step]), np.concatenate([[0.0], values]))


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
