"""Which batches each of several processes works on, where they are shared out whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice

from trainwright.data.batches import ResumableBatches
from trainwright.data.sharding import FillerIndices


class ShardedBatches(ResumableBatches):
    """One process's part of batches whose sizes differ: of every ``world_size`` batches, one.

    Where the last are fewer than the processes, those without get the first of them as a filler, if it ``fills``.
    """

    def __init__(self, batches: ResumableBatches, rank: int, world_size: int, *, fills: bool = True) -> None:
        super().__init__(batches.sampler, batches.drop_last)
        self.batches, self.rank, self.world_size, self.fills = batches, rank, world_size, fills

    def whole(self) -> int:
        return self.batches_after(0)

    def _counted(self, start: int, sample: int | None) -> int:
        return self.whole() if sample is None else start + self.batches_after(sample)

    def batches_after(self, number: int) -> int:
        """How many batches each process has after ``number`` that all of them have had together."""
        return math.ceil(max(len(self.batches) - number, 0) / self.world_size)

    @property
    def batches_in_epoch(self) -> Callable[[int], int] | None:
        """How many batches each process has in an epoch, where epochs differ."""
        whole = getattr(self.batches, "batches_in_epoch", None)
        return None if whole is None else lambda epoch: self.cut(math.ceil(whole(epoch) / self.world_size))

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches.set_epoch(epoch)

    def _batches_from(self, start: int, sample: int | None) -> Iterator[list[int]]:
        """From round ``start`` on, which begins with batch number ``sample`` of all."""
        number = start * self.world_size if sample is None else sample
        every = (batch for _, batch in self.batches.numbered(number))
        while group := list(islice(every, self.world_size)):
            if self.rank < len(group):
                yield group[self.rank]
            elif self.fills:
                yield FillerIndices(group[0])
