"""Which samples each of several processes works on."""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Any

from torch.utils.data import Sampler

from trainwright.data.order import Order, RandomOrder, SeededOrder, SequentialOrder, set_epoch_of


class ShardedOrder(Order):
    """One process's part of an order: of every ``share`` x ``world_size`` samples, ``share`` neighbours.

    So the processes together see, in each micro-batch, the samples that one process with a batch as large would see, as
    transformers shares them out. The last samples of an epoch are shared out as evenly as they can be. Nothing is
    dropped and nothing comes twice, except where the last step (of ``accumulation`` micro-batches) has fewer samples
    than there are processes: those that would have none get one as a filler, which has no weight
    (``ends_with_filler``); every process takes the same number of steps.
    """

    def __init__(
        self, order: Any, rank: int, world_size: int, share: int, *, accumulation: int = 1, drop_below: int = 1
    ) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} is not one of {world_size} processes")
        if share < 1:
            raise ValueError(f"share must be at least 1, got {share}")
        self.order = order
        self.rank, self.world_size, self.share = rank, world_size, share
        #: Samples of one process, and of all, in a step.
        self.step_share = share * accumulation
        self._step = self.step_share * world_size
        #: With ``drop_last``, the samples that a batch of every process takes: fewer at the end are dropped.
        self._drop_below = drop_below
        super().__init__(self.length_after(0))

    @property
    def ends_with_filler(self) -> bool:
        return self.fills_after(0)

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        set_epoch_of(self.order, epoch)

    def indices(self) -> list[int]:
        return self.indices_after(0)

    # An epoch may go on after ``sample`` samples that the processes, however many they were, have had together.

    def kept(self, sample: int = 0) -> int:
        """Samples of the epoch that some process has, those before ``sample`` included."""
        left = max(len(self.order) - sample, 0)
        return len(self.order) - left % (self.share * self.world_size) % self._drop_below

    def fills_after(self, sample: int) -> bool:
        """Whether this process's last sample is a filler."""
        _, start, end = self._rest(sample)
        return 0 < max(self.kept(sample) - sample, 0) % self._step < self.world_size and start == end

    def length_after(self, sample: int) -> int:
        """How many samples this process has from there on, with the filler."""
        _, start, end = self._rest(sample)
        whole = max(len(self.order) - sample, 0) // (self.share * self.world_size) * self.share
        return whole + (1 if self.fills_after(sample) else end - start)

    def indices_after(self, sample: int) -> list[int]:
        """Those samples."""
        every = [int(index) for index in self.order][sample:]
        step = self.share * self.world_size
        whole = len(every) // step * step
        mine: list[int] = []
        for chunk in range(0, whole, step):
            first = chunk + self.rank * self.share
            mine += every[first : first + self.share]
        left, start, end = self._rest(sample)
        rest = every[whole : whole + left]
        return mine + (rest[:1] if self.fills_after(sample) else rest[start:end])

    def _rest(self, sample: int) -> tuple[int, int, int]:
        """How many samples there are for the last round that is not whole, and where this process's part of them is."""
        left = max(self.kept(sample) - sample, 0) % (self.share * self.world_size)
        return left, *_even_part(left, self.rank, self.world_size)


class FillerIndices(list[int]):
    """The indices of a batch that is another process's, for one that has none: it is run without weight."""


class ShardedRows(Order):
    """One process's part of an evaluation set: neighbours, so that parts put one after another are in order again.

    ``multiple`` drops samples at the end that do not make a whole batch, as one process would drop them.
    """

    def __init__(self, order: Any, rank: int, world_size: int, multiple: int = 1) -> None:
        self.order = order
        self._start, self._end = _even_part(len(order) // multiple * multiple, rank, world_size)
        super().__init__(self._end - self._start)

    def indices(self) -> list[int]:
        return [int(index) for index in self.order][self._start : self._end]


def train_sampler(seed: int, rank: int, world_size: int, share: int) -> Callable[[Any], Sampler[int]]:
    """What makes the training sampler of a dataset: shuffled by (seed, epoch), this process's part of it.

    >>> make = train_sampler(seed=0, rank=1, world_size=2, share=4)
    >>> len(make(range(20)))
    10
    """

    def make(dataset: Sized) -> Sampler[int]:
        order = RandomOrder(len(dataset), seed)
        return order if world_size == 1 else ShardedOrder(order, rank, world_size, share)

    return make


def val_sampler(rank: int, world_size: int) -> Callable[[Any], Sampler[int]]:
    """What makes the sampler of a validation set: in its own order, this process's part of it."""

    def make(dataset: Sized) -> Sampler[int]:
        order = SequentialOrder(len(dataset))
        return order if world_size == 1 else ShardedRows(order, rank, world_size)

    return make


def is_sharded(sampler: Any) -> bool:
    """Whether ``sampler`` already gives only one process's part."""
    if isinstance(sampler, (ShardedOrder, ShardedRows)):
        return True
    if isinstance(sampler, SeededOrder):
        return is_sharded(sampler.sampler)
    # torch's DistributedSampler, those that follow its example, and those that Accelerate makes.
    return (hasattr(sampler, "num_replicas") and hasattr(sampler, "rank")) or (
        hasattr(sampler, "num_processes") and hasattr(sampler, "process_index")
    )


def _even_part(count: int, rank: int, world_size: int) -> tuple[int, int]:
    """Where part number ``rank`` of ``count`` things starts and ends, the parts differing by one at most."""
    size, longer = divmod(count, world_size)
    start = rank * size + min(rank, longer)
    return start, start + size + (rank < longer)
