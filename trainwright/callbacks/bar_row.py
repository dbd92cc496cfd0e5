"""One bar of a progress display: how far, how fast, how long still; without anything that draws it."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from trainwright.callbacks.wording import clock, speed


@dataclass
class Row:
    """One bar: how far, of how much, and what stands beside it."""

    label: str
    #: None when nobody knows how much there is.
    total: int | None
    done: Callable[[], int]
    #: Name and value, in the order shown.
    fields: dict[str, str] = field(default_factory=dict)
    #: What one unit of ``done`` is worth in samples; None shows steps.
    samples_per_unit: float | None = None
    started: float = field(default_factory=time.perf_counter)
    #: When the count was seen to change, and to what: slow steps need a longer look than fast ones.
    _seen: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=30))
    _settled: tuple[float, int] | None = None
    _last_done: int | None = None
    _last_rate: str = ""

    def pause(self) -> None:
        """Forget the recent pace: what comes next is not comparable with what was before."""
        self._seen.clear()

    def text(self, room: int | None = None, *, shortly: bool = False) -> str:
        """Everything but the bar: in ``room`` columns what matters most, and ``shortly`` count and time alone."""
        now, done = time.perf_counter(), self.done()
        self._look(now, done)
        count = f"{done}/{self.total}" if self.total is not None else str(done)
        rate, remaining = self._rate(), self._remaining(now, done)
        took = clock(now - self.started) + (f"<{clock(remaining)}" if remaining is not None else "")
        between = [] if shortly else [*(f"{name} {value}" for name, value in self.fields.items()), rate]
        words = [count, *filter(None, between), took]
        while room is not None and len(words) > 2 and sum(map(len, words)) + 2 * (len(words) - 1) > room:
            # How long it still takes is the last to go.
            del words[-2]
        return "  ".join(words)

    def _look(self, now: float, done: int) -> None:
        if self._last_done is not None and done > self._last_done:
            # The first step compiles, allocates and starts workers: the rest must not be judged by it.
            self._settled = self._settled or (now, done)
            self._seen.append((now, done))
        self._last_done = done

    def _rate(self) -> str:
        if len(self._seen) > 1:
            (start, first), (end, last) = self._seen[0], self._seen[-1]
            per_second = (last - first) / max(end - start, 1e-9)
            in_samples = self.samples_per_unit is not None
            rate = per_second * (self.samples_per_unit or 1.0)
            self._last_rate = speed(rate, "samples" if in_samples else "steps")
        return self._last_rate

    def _remaining(self, now: float, done: int) -> float | None:
        if self.total is None or self._settled is None or done <= self._settled[1]:
            return None
        settled_at, settled_with = self._settled
        return (now - settled_at) / (done - settled_with) * (self.total - done)


@dataclass
class EpochRow:
    """How far the present epoch is, where there are several."""

    epochs: float
    #: Epochs done, with the share of the present one.
    progress: Callable[[], float]
    label: str = "epoch"
    total: int = 1000

    def done(self) -> int:
        """Of the present epoch, in thousandths."""
        whole, share = divmod(self._within(), 1.0)
        return self.total if whole >= self.epochs else int(share * self.total)

    def text(self, room: int | None = None, *, shortly: bool = False) -> str:
        """``3 of 10``."""
        return f"{min(int(self._within()) + 1, math.ceil(self.epochs))} of {self.epochs:g}"

    def _within(self) -> float:
        # Sums of shares miss whole numbers by a hair.
        return round(max(self.progress() or 0.0, 0.0), 6)
