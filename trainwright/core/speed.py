"""How fast a training goes, as measured between two logs. A clock's numbers: no part of the log or of a checkpoint."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

#: Where the time of a training goes: before its first step, in steps, waiting for data (within steps), evaluating,
#: saving.
PARTS = ("begin", "train", "data", "evaluate", "save")


@dataclass(frozen=True)
class Speed:
    """What was measured since the log before; None where it is not known.

    ``state.speed`` in ``on_log`` is one of these.
    """

    #: Steps since the log before, and the seconds that went into each of ``PARTS``; "data" is a part of "train".
    steps: int
    seconds: dict[str, float] = field(default_factory=dict)
    #: Of training alone: evaluations and saves in between are left out.
    steps_per_second: float = 0.0
    samples_per_second: float | None = None
    tokens_per_second: float | None = None
    flops_per_second: float | None = None
    #: Share of what this GPU can do at most; None where that is not known.
    mfu: float | None = None
    #: Share of the time that training waited for data, 0 to 1.
    data_wait: float | None = None
    #: Bytes: of a GPU the most that tensors have taken so far, of a CPU training those of the process now.
    memory: int | None = None
    #: Bytes that there are.
    memory_total: int | None = None


@dataclass
class Stretch:
    """Some part of a training that becomes one line of ``performance.jsonl``."""

    steps: int = 0
    tokens: float = 0.0
    flops: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, steps: int, tokens: float, flops: float, seconds: dict[str, float]) -> None:
        """Take in what came between two logs."""
        self.steps, self.tokens, self.flops = self.steps + steps, self.tokens + tokens, self.flops + flops
        for name, value in seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + value

    @property
    def length(self) -> float:
        """Seconds; waiting for data is a part of training."""
        return sum(value for name, value in self.seconds.items() if name != "data")


@dataclass
class TimeSpent:
    """Seconds of this process by what they were spent on, and what had been counted when that was last read."""

    #: When this process began to train, in seconds since 1970: lines of several processes are told apart by it.
    start: float = field(default_factory=time.time)
    #: Step, tokens and floating point operations at the last reading.
    counted: tuple[int, int, float] = (0, 0, 0.0)
    #: Whether the first step has come, or is next.
    has_begun: bool = False
    #: What no line tells of yet, and how long this process has gone on with all before.
    stretch: Stretch = field(default_factory=Stretch)
    told: float = 0.0
    #: Lines for the run directory, and when such were last written.
    unwritten: list[str] = field(default_factory=list)
    written_at: float = 0.0
    _asked: float = field(default_factory=time.perf_counter)
    _aside: dict[str, float] = field(default_factory=dict)
    _depth: int = 0

    def begin_steps(self, counted: tuple[int, int, float]) -> None:
        """All that came before was preparation."""
        self.counted, self.has_begun = counted, True
        self._aside["begin"] = time.perf_counter() - self._asked

    @contextmanager
    def on(self, part: str) -> Iterator[None]:
        """Count what happens within to ``part`` and not to training; a save within an evaluation is the evaluation."""
        began, self._depth = time.perf_counter(), self._depth + 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                self._aside[part] = self._aside.get(part, 0.0) + time.perf_counter() - began

    def take(self, waited: float) -> dict[str, float]:
        """Seconds since the last reading, of which training ``waited`` so many for data."""
        now = time.perf_counter()
        passed, self._asked = now - self._asked, now
        aside, self._aside = self._aside, {}
        train = max(passed - sum(aside.values()), 0.0)
        return {name: round(value, 6) for name, value in ({"train": train, "data": min(waited, train)} | aside).items()}
