"""How long a process works on a step by itself, without the time it waits for others: who is slow is seen by that."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import torch

from trainwright.core.backend import Backend

#: Passes on the device whose times are not read yet.
_KEPT = 256


class Untimed:
    """Where nobody asks."""

    def start(self) -> None:
        """A step begins with the wait for its data; what ran since the last pause (an evaluation) is forgotten."""

    def resume(self) -> None:
        """The others have been waited for; passes begin."""

    def pause(self) -> None:
        """What comes now may wait for others; harmless where it is said twice."""

    def told(self) -> list[int]:
        """What this process has to say of itself before a step."""
        return []

    def heard(self, sums: list[int]) -> None:
        """What all have told."""

    def read(self) -> list[float]:
        """Mean seconds per step of each process since the last call, for a log; empty before the first exchange."""
        return []


def sum_told(backend: Backend, count: object, flags: list[int], clock: Untimed) -> tuple[Any, list[int]]:
    """``count`` and ``flags`` summed over all processes, and the times of each on the way, in one exchange."""
    counts = [count] if isinstance(count, int) else []
    sums = backend.sum(torch.tensor([*counts, *flags, *clock.told()], dtype=torch.int64)).tolist()
    total = sums.pop(0) if counts else backend.sum(count)
    clock.heard(sums[len(flags) :])
    return total, sums[: len(flags)]


class StepTimes(Untimed):
    """Seconds of own work per step since the last log, of this process and, as it last heard, of every other.

    In it: fetching the batch, callbacks at the start of the step, and forward and backward passes up to the first
    exchange between processes. That is all of them where gradients are summed afterwards; all but the last backward
    pass where it sums them itself (DDP); none where forward passes exchange weights (FSDP, DeepSpeed). On a GPU passes
    are timed on the device. What is told at a step is the work on its batch and the passes of the step before.
    """

    def __init__(self, rank: int, world_size: int, device: torch.device) -> None:
        self._rank, self._world_size = rank, world_size
        self._on_device = device.type == "cuda"
        self._total = self._told_total = 0.0
        self._steps = 0
        self._began: float | None = None
        self._pass_began: Any = None
        self._passes: deque[tuple[Any, Any]] = deque(maxlen=_KEPT)
        self._every: list[float] = []

    def start(self) -> None:
        self._began, self._pass_began = time.perf_counter(), None

    def resume(self) -> None:
        self._began = time.perf_counter()
        if self._on_device:
            self._pass_began = torch.cuda.Event(enable_timing=True)
            self._pass_began.record()

    def pause(self) -> None:
        if self._began is None:
            return
        if self._pass_began is not None:
            ended = torch.cuda.Event(enable_timing=True)
            ended.record()
            self._passes.append((self._pass_began, ended))
        else:
            self._total += time.perf_counter() - self._began
        self._began = self._pass_began = None

    def told(self) -> list[int]:
        """Microseconds in this process's place, zeros in those of the others: their sum is what everybody knows."""
        while self._passes and self._passes[0][1].query():
            begun, ended = self._passes.popleft()
            self._total += begun.elapsed_time(ended) / 1000
        self._steps += 1
        self._told_total = self._total
        places = [0] * self._world_size
        places[self._rank] = round(1e6 * self._total / self._steps)
        return places

    def heard(self, sums: list[int]) -> None:
        self._every = [value / 1e6 for value in sums]

    def read(self) -> list[float]:
        # The next mean begins, with the passes that nobody was told of yet.
        self._total -= self._told_total
        self._told_total, self._steps = 0.0, 0
        return self._every
