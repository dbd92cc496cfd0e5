"""``--debug-timings``: how long the parts of each step take."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from trainwright.compat.accmt.callbacks import Callback
from trainwright.compat.accmt.debugging import VARIABLE_OF_TIMINGS
from trainwright.config.backends import rank_from_environment


class Timings(Callback):
    """Prints a line after each step, in the first process.

    ``batch_iteration`` is the time between two steps: data, and logs, evaluations and checkpoints where there are any.
    On a GPU these are the times of the process, which does not wait for the device; the device's own work shows where
    the process has to wait for it.
    """

    def __init__(self) -> None:
        self._times: dict[str, float] = {}
        self._last = time.perf_counter()

    def _add(self, part: str) -> None:
        now = time.perf_counter()
        self._times[part] = self._times.get(part, 0.0) + now - self._last
        self._last = now

    def on_fit_start(self) -> None:
        self._times, self._last = {}, time.perf_counter()

    def on_before_training_step(self, batch: object) -> None:
        self._add("batch_iteration")

    def on_after_training_step(self) -> None:
        self._add("training_step")

    def on_after_backward(self) -> None:
        self._add("backward")

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self._add("gradients")

    def on_after_optimizer_step(self, optimizer: Any) -> None:
        self._add("optimizer_step")

    def on_after_scheduler_step(self, scheduler: Any) -> None:
        self._add("scheduler_step")

    def on_after_zero_grad(self, optimizer: Any) -> None:
        self._add("zero_grad")
        parts = "  ".join(f"{part} {seconds:.4f} s" for part, seconds in self._times.items())
        print(f"step {self.state.global_step}: {parts}", flush=True)
        self._times = {}


def timings(environment: Mapping[str, str] = os.environ) -> list[Callback]:
    """The callback, where somebody asked for it.

    >>> timings({})
    []
    """
    is_wanted = environment.get(VARIABLE_OF_TIMINGS, "0") == "1" and rank_from_environment().rank == 0
    return [Timings()] if is_wanted else []
