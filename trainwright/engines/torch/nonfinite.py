"""Steps whose loss or gradient is NaN or infinite: kept away from the weights, counted, reported."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from trainwright.core.errors import NonFiniteError
from trainwright.core.events import RunEvents
from trainwright.core.run import Rewind


def is_bad(loss: Tensor | None, norm: Tensor | float) -> bool | Tensor:
    """Whether a step must not be applied: a bool on the CPU, elsewhere 0.0 or 1.0 on the device, so nothing waits."""
    if isinstance(norm, Tensor) and not norm.is_cpu:
        # The sum is finite if and only if both are: inf - inf is NaN.
        total = norm if loss is None else norm + loss.to(norm.device)
        return torch.isfinite(total).logical_not_().to(torch.float32)
    return not (math.isfinite(norm) and (loss is None or math.isfinite(loss)))


def divisor_for(norm: Tensor, most: float) -> Tensor:
    """What gradients of this norm are divided by so that it is at most ``most``: 1 where it is."""
    return ((norm + 1e-6) / most).clamp(min=1.0).to(torch.float32)


class GradientCheck:
    """Looks for NaN and infinity in gradients whose norm nobody asked for: one kernel, the one that fp16's scaler uses.

    It also multiplies by a factor, which is 1 here.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        kinds = {(parameter.dtype, parameter.device) for parameter in parameters}
        self._is_uniform = len(kinds) == 1
        device = parameters[0].device if parameters else torch.device("cpu")
        self._found, self._factor = torch.zeros((), device=device), torch.ones((), device=device)

    def is_bad(self, loss: Tensor | None, gradients: list[Tensor]) -> bool | Tensor:
        """As :func:`is_bad`, for gradients instead of their norm."""
        for gradient in gradients:
            if gradient.is_sparse:
                gradients = [each._values() if each.is_sparse else each for each in gradients]
                break
        if not self._is_uniform or not gradients:
            return is_bad(loss, torch.nn.utils.get_total_norm(gradients))
        found = self._found
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, self._factor)
        if found.is_cpu:
            if found.item():
                found.zero_()
                return True
            return loss is not None and not math.isfinite(loss)
        bad = found.clone()
        found.zero_()
        return bad if loss is None else torch.maximum(bad, torch.isfinite(loss).logical_not_().to(torch.float32))


def skips_on_device(optimizer: Optimizer) -> bool:
    """Whether the optimizer's kernel takes ``found_inf`` and then leaves everything as it is (torch's fused ones)."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


@dataclass
class Verdict:
    """Whether one step was bad, and where its data stands."""

    step: int
    epoch: int
    first_batch: int
    last_batch: int
    value: bool | Tensor
    copied: torch.cuda.Event | None = None

    def is_known(self) -> bool:
        return self.copied is None or self.copied.query()

    def is_bad(self) -> bool:
        if self.copied is not None:
            self.copied.synchronize()
        return bool(self.value)


class NonFiniteWatch:
    """Reports bad steps; after ``limit`` in a row it raises ``NonFiniteError``, or says that the run should go back.

    On a GPU the answer is fetched in the background and read when it is there, a step or two late.
    """

    def __init__(self, events: RunEvents, limit: int | None, *, rewind: bool) -> None:
        self._events, self._limit, self._rewind = events, limit, rewind
        self._waiting: deque[Verdict] = deque()
        self._bad: list[Verdict] = []
        self._feed: Any = None
        self._last_step = -1
        self.in_a_row = 0
        #: Bad steps of this process.
        self.skipped = 0

    def look(self, step: int, value: bool | Tensor, feed: Any) -> Rewind | None:
        """Take note of what the engine says of ``step``; called after every step, perhaps more than once."""
        if value is False and not self._waiting:
            self.in_a_row = 0
            return None
        if step == self._last_step:
            return None
        self._last_step, self._feed = step, feed
        first, last = feed.last_group
        verdict = Verdict(step, feed.epoch, first, last, value)
        if isinstance(value, Tensor):
            verdict.value = torch.empty((), dtype=value.dtype, pin_memory=True).copy_(value, non_blocking=True)
            verdict.copied = torch.cuda.Event()
            verdict.copied.record()
        self._waiting.append(verdict)
        return self._read()

    def settle(self) -> Rewind | None:
        """Read what is still on its way; where the device was waited for anyway."""
        return self._read(wait=True)

    def _read(self, *, wait: bool = False) -> Rewind | None:
        while self._waiting and (wait or self._waiting[0].is_known()):
            verdict = self._waiting.popleft()
            if not verdict.is_bad():
                self.in_a_row = 0
            elif (rewind := self._note(verdict)) is not None:
                return rewind
        return None

    def _note(self, verdict: Verdict) -> Rewind | None:
        self.in_a_row += 1
        self.skipped += 1
        self._bad = [*self._bad[-(self.in_a_row - 1) :], verdict] if self.in_a_row > 1 else [verdict]
        data = self._feed.describe(verdict.epoch, verdict.first_batch, verdict.last_batch)
        samples = data.get("samples")
        where = f"samples {samples}" if samples is not None else f"batches {data['batches']}"
        self._events.record(
            "nonfinite_step",
            f"Step {verdict.step} had a loss or gradient that is NaN or infinite and was not applied: epoch "
            f"{verdict.epoch}, {where}.",
            step=verdict.step,
            in_a_row=self.in_a_row,
            data=data,
        )
        if self._limit is not None and self.in_a_row >= max(self._limit, 1):
            return self._stop(verdict)
        return None

    def _stop(self, verdict: Verdict) -> Rewind:
        self._waiting.clear()
        if self._rewind:
            left_out = [(bad.epoch, list(range(bad.first_batch, bad.last_batch + 1))) for bad in self._bad]
            self.in_a_row = 0
            return Rewind(verdict.step, left_out)
        raise NonFiniteError(verdict.step, self.in_a_row)
