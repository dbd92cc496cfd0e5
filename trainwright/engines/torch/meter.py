"""Losses between two logs, kept on the device."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

logger = logging.getLogger("trainwright")

#: Losses held as single tensors before they are summed, so that a run that never logs does not collect millions.
_CHUNK = 1024


class LossMeter:
    """Adds up step losses without touching them: recording a step costs one list append and no kernel.

    With ``skip_nonfinite`` (HF's ``logging_nan_inf_filter``) a NaN or infinite loss is left out of the mean and said;
    an interval with nothing finite logs NaN, never 0.
    """

    def __init__(self, *, skip_nonfinite: bool) -> None:
        self.skip_nonfinite = skip_nonfinite
        self._recent: list[Any] = []
        self._sum: Tensor | None = None
        self._finite: Tensor | None = None
        self._steps = 0
        #: Over the whole run.
        self.total = 0.0
        self.total_steps = 0

    def add(self, loss: Tensor) -> None:
        # On the CPU there is nothing to wait for, and a scalar kept in memory would sit between freed activations.
        self._recent.append(loss.item() if loss.is_cpu else loss)
        self._steps += 1
        if len(self._recent) >= _CHUNK:
            self._fold()

    def _fold(self) -> None:
        on_device = isinstance(self._recent[0], Tensor)
        losses = torch.stack(self._recent).double() if on_device else torch.tensor(self._recent, dtype=torch.float64)
        self._recent.clear()
        finite = torch.isfinite(losses)
        kept = torch.where(finite, losses, 0.0).sum() if self.skip_nonfinite else losses.sum()
        count = finite.sum()
        self._sum = kept if self._sum is None else self._sum + kept
        self._finite = count if self._finite is None else self._finite + count

    def read(self) -> float:
        """Mean loss since the last call; waits for the device."""
        if self._steps == 0:
            return math.nan
        if self._recent:
            self._fold()
        assert self._sum is not None
        assert self._finite is not None
        total, finite = float(self._sum), int(self._finite)
        counted = finite if self.skip_nonfinite else self._steps
        if finite < self._steps:
            logger.warning(
                "%d of the last %d steps had a loss that is NaN or infinite.", self._steps - finite, self._steps
            )
        self.total += total
        self.total_steps += counted
        self._sum = self._finite = None
        self._steps = 0
        return total / counted if counted else math.nan

    def overall(self) -> float:
        """Mean loss of all steps of the run."""
        if self._steps:
            self.read()
        return self.total / self.total_steps if self.total_steps else math.nan

    def sums(self) -> tuple[float, int]:
        """The sum of all losses of the run so far and how many there are; waits for the device."""
        if self._recent:
            self._fold()
        if self._sum is None or self._finite is None:
            return self.total, self.total_steps
        counted = int(self._finite) if self.skip_nonfinite else self._steps
        return self.total + float(self._sum), self.total_steps + counted

    def state(self) -> Callable[[], dict[str, Any]]:
        """What a checkpoint keeps, as JSON; only the call of the answer waits for the device."""
        if self._recent:
            self._fold()
        total, finite = self._sum, self._finite
        counts = {"steps": self._steps, "total": self.total, "total_steps": self.total_steps}
        return lambda: {
            "sum": None if total is None else float(total),
            "finite": None if finite is None else int(finite),
            **counts,
        }

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Continue where ``state`` left off, so that the first log after a resume covers its whole interval."""
        self._recent.clear()
        if state["sum"] is not None:
            self._sum = torch.tensor(state["sum"], dtype=torch.float64, device=device)
            self._finite = torch.tensor(state["finite"], device=device)
        self._steps = state["steps"]
        self.total, self.total_steps = state["total"], state["total_steps"]


class WeightedMean:
    """Sum of loss x weight over sum of weights, added up in place on the device.

    In place, since a scalar kept from each batch would sit between the large blocks that predictions leave behind and
    keep the allocator from using them again: 100 MiB for 40,000 x 1,000 logits.
    """

    def __init__(self, sum_over_processes: Callable[[Tensor], Tensor] | None = None) -> None:
        self._sum: Tensor | None = None
        self._weights: Tensor | None = None
        self._over_processes = sum_over_processes

    def add(self, loss: Tensor, weight: int | float | Tensor) -> None:
        if not isinstance(weight, Tensor) and weight == 0:
            # The mean over no target is NaN and has no part in the whole.
            return
        if self._sum is None or self._weights is None:
            dtype = torch.float32 if loss.device.type == "mps" else torch.float64
            self._sum = torch.zeros((), dtype=dtype, device=loss.device)
            self._weights = torch.zeros_like(self._sum)
        product = loss.reshape(()).to(self._sum.dtype) * weight
        self._sum += torch.where(weight > 0, product, 0.0) if isinstance(weight, Tensor) else product
        self._weights += weight

    def value(self) -> float | None:
        """The mean, over all processes; waits for the device."""
        if self._over_processes is not None:
            return self._value_of_all(self._over_processes)
        if self._sum is None or self._weights is None:
            return None
        return float(self._sum / self._weights)

    def _value_of_all(self, over_processes: Callable[[Tensor], Tensor]) -> float | None:
        own = [0.0, 0.0] if self._sum is None or self._weights is None else [float(self._sum), float(self._weights)]
        total, weights = over_processes(torch.tensor(own, dtype=torch.float64)).tolist()
        return total / weights if weights else None
