"""What goes between processes, and between main memory and the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainwright.core.backend import Backend
from trainwright.engines.torch.memory import is_out_of_memory, release_memory
from trainwright.engines.torch.meter import WeightedMean
from trainwright.engines.torch.moving import from_numpy, move, to_numpy
from trainwright.engines.torch.strategies.base import Strategy
from trainwright.engines.torch.targets import count_rows


class TorchExchange:
    """Implements ``core.engine.Exchange`` and what evaluation needs besides, for tensors on one device."""

    def __init__(self, device: torch.device, backend: Backend, strategy: Strategy) -> None:
        self.device = device
        self.backend = backend
        self.weights = strategy
        self.is_alone = backend.world_size == 1
        self.runs_in_step = strategy.runs_in_step and not self.is_alone

    def most(self, number: int) -> int:
        """The largest ``number`` of any process."""
        every = torch.zeros(self.backend.world_size, dtype=torch.int64)
        every[self.backend.rank] = number
        return int(self.backend.sum(every).max())

    def is_out_of_memory(self, error: Exception) -> bool:
        return is_out_of_memory(error)

    def to_device(self, value: object) -> Any:
        """Nested tensors on the run's device."""
        return move(value, self.device)

    def rows(self, batch: object) -> int:
        return count_rows(batch)

    def to_host(self, value: object) -> Any:
        return to_numpy(value)

    def from_host(self, value: object) -> Any:
        return from_numpy(value, self.device)

    def weighted_mean(self) -> WeightedMean:
        return WeightedMean(None if self.is_alone else self._sum_on_host)

    def _sum_on_host(self, values: Tensor) -> Tensor:
        return self.backend.sum(values.to(self.device)).cpu()

    def gather(self, value: object) -> list[Any]:
        """Of the processes that have samples of their own."""
        return self.backend.gather(value)[:: self.weights.copies]

    def release_memory(self) -> None:
        release_memory(self.device)
