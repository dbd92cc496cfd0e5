"""Which samples each of several processes works on."""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Any

from torch.utils.data import Sampler

from trainwright.data.order import Order, RandomOrder, SequentialOrder, set_epoch_of


class ShardedOrder(Order):
    """One process's part of an order: of every ``share`` x ``world_size`` samples, ``share`` neighbours.

    So the processes together see, in each optimizer step, the samples that one process with a batch as large would see.
    The last samples of an epoch are shared out as evenly as they can be. Nothing is dropped and nothing comes twice,
    except where there are fewer samples left than processes: those that would have none get one as a filler, which has
    no weight (``ends_with_filler``); every process takes the same number of steps.
    """

    def __init__(self, order: Any, rank: int, world_size: int, share: int, drop_below: int = 1) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} is not one of {world_size} processes")
        if share < 1:
            raise ValueError(f"share must be at least 1, got {share}")
        self.order = order
        self.rank, self.world_size, self.share = rank, world_size, share
        #: Samples at the end that are dropped: with ``drop_last``, those that do not fill a batch of every process.
        self._dropped = len(order) % (share * world_size) % drop_below
        left = len(order) % (share * world_size) - self._dropped
        start, end = _even_part(left, rank, world_size)
        self.ends_with_filler = 0 < left < world_size and start == end
        whole = len(order) // (share * world_size) * share
        super().__init__(whole + (1 if self.ends_with_filler else end - start))

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        set_epoch_of(self.order, epoch)

    def indices(self) -> list[int]:
        every = [int(index) for index in self.order]
        step = self.share * self.world_size
        whole = len(every) // step * step
        mine: list[int] = []
        for chunk in range(0, whole, step):
            first = chunk + self.rank * self.share
            mine += every[first : first + self.share]
        rest = every[whole : len(every) - self._dropped]
        start, end = _even_part(len(rest), self.rank, self.world_size)
        return mine + (rest[:1] if self.ends_with_filler else rest[start:end])


class ShardedRows(Order):
    """One process's part of an evaluation set: neighbours, so that parts put one after another are in order again."""

    def __init__(self, order: Any, rank: int, world_size: int) -> None:
        self.order = order
        self._start, self._end = _even_part(len(order), rank, world_size)
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
    # torch's DistributedSampler, and those that follow its example.
    return hasattr(sampler, "num_replicas") and hasattr(sampler, "rank")


def _even_part(count: int, rank: int, world_size: int) -> tuple[int, int]:
    """Where part number ``rank`` of ``count`` things starts and ends, the parts differing by one at most."""
    size, longer = divmod(count, world_size)
    start = rank * size + min(rank, longer)
    return start, start + size + (rank < longer)
