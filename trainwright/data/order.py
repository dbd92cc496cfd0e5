"""The order in which the samples of an epoch are visited: a function of (seed, epoch) and of nothing else.

Every order owns its random numbers, so building or walking one never moves torch's global generator, and the order is
the same whatever else the process has drawn, with any number of workers, and after a restart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from typing import Any

import torch
from torch.utils.data import RandomSampler, Sampler

from trainwright.data.replay import Replay, follows_epochs, mixed_seed, set_epoch_of

__all__ = [
    "LengthGroupedOrder",
    "LengthSortedOrder",
    "Order",
    "RandomOrder",
    "SeededOrder",
    "SequentialOrder",
    "mixed_seed",
    "seeded",
    "set_epoch_of",
]

# Mega-batches of at most this many batches keep sorting cheap and leave enough randomness between them.
_BATCHES_PER_MEGABATCH = 50
# A small dataset is cut into about this many mega-batches, so that its batches still change between epochs.
_FEWEST_MEGABATCHES = 4


class Order(Sampler[int]):
    """An order over ``n`` samples that is told the epoch and is otherwise fixed."""

    #: Whether epochs have other numbers of samples.
    epochs_differ = False

    def __init__(self, n: int) -> None:
        if n < 0:
            raise ValueError(f"an order needs a sample count of at least 0, got {n}")
        self.n = n
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def indices(self) -> list[int]:
        """The whole order of the current epoch."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices())


class SequentialOrder(Order):
    """0, 1, 2, ... in every epoch."""

    def indices(self) -> list[int]:
        return list(range(self.n))

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.n))


class RandomOrder(Order):
    """A fresh permutation each epoch.

    The generator is seeded with ``seed + epoch``, which is what Accelerate does for Hugging Face's Trainer: a script
    moved here sees its samples in the order it had there.
    """

    def __init__(self, n: int, seed: int) -> None:
        super().__init__(n)
        self.seed = seed

    def indices(self) -> list[int]:
        return _permutation(self.n, self.seed + self.epoch).tolist()


class LengthGroupedOrder(Order):
    """Neighbours have similar lengths, so that batches cut from this order need little padding.

    A permutation is cut into mega-batches and each is sorted, longest first. The longest sample of all is then moved to
    the very front: a model that cannot hold it runs out of memory in the first step and not an hour later.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int) -> None:
        super().__init__(len(lengths))
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.lengths = lengths
        self.batch_size = batch_size
        self.seed = seed

    def indices(self) -> list[int]:
        if self.n == 0:
            return []
        permutation = _permutation(self.n, self.seed + self.epoch).tolist()
        batches = min(self.n // (self.batch_size * _FEWEST_MEGABATCHES), _BATCHES_PER_MEGABATCH)
        size = max(batches, 1) * self.batch_size
        order: list[int] = []
        for start in range(0, self.n, size):
            # `reverse=True` keeps ties in their shuffled order, so equal lengths still mix between epochs.
            order += sorted(permutation[start : start + size], key=self.lengths.__getitem__, reverse=True)
        # Each mega-batch starts with its longest sample, so only those can be the longest of all.
        longest = max(range(0, self.n, size), key=lambda position: self.lengths[order[position]])
        order[0], order[longest] = order[longest], order[0]
        return order


class LengthSortedOrder(Order):
    """Longest first, the same in every epoch: what evaluation wants, where randomness has no use."""

    def __init__(self, lengths: Sequence[int]) -> None:
        super().__init__(len(lengths))
        self.lengths = lengths

    def indices(self) -> list[int]:
        return sorted(range(self.n), key=self.lengths.__getitem__, reverse=True)


class DrawnOrder(Order):
    """As many samples as there are, drawn with repetition by their weights, anew in each epoch."""

    def __init__(self, weights: torch.Tensor, seed: int) -> None:
        super().__init__(len(weights))
        self.weights = weights
        self.seed = seed

    def indices(self) -> list[int]:
        generator = torch.Generator().manual_seed(mixed_seed(self.seed, self.epoch))
        # Not torch.multinomial, which knows no more than 2**24 samples.
        ends = self.weights.double().cumsum(0)
        drawn = torch.rand(self.n, dtype=torch.float64, generator=generator) * ends[-1]
        return torch.searchsorted(ends, drawn, right=True).clamp_(max=self.n - 1).tolist()


class SeededOrder(Order):
    """Makes the order of a user's own sampler a function of (seed, epoch), by ``Replay``."""

    def __init__(self, sampler: object, seed: int) -> None:
        if not isinstance(sampler, Sized):
            raise ValueError(
                f"the sampler {type(sampler).__name__} has no length, so its order cannot be repeated after a restart; "
                "give it a __len__, or a set_epoch(epoch) method that fixes its order"
            )
        super().__init__(len(sampler))
        self.sampler = sampler
        self.seed = seed
        self.replay = Replay(sampler, seed)

    def indices(self) -> list[int]:
        return [int(index) for index in self.replay(self.epoch)]


def seeded(sampler: object, seed: int) -> Any:
    """``sampler`` itself when the epoch decides its order, else an order of (seed, epoch) that does what it does."""
    if callable(getattr(sampler, "set_epoch", None)) and (not isinstance(sampler, Sized) or follows_epochs(sampler)):
        return sampler
    if type(sampler) is RandomSampler and sampler.generator is None and not sampler.replacement:
        count = len(sampler.data_source)
        if sampler.num_samples == count:
            # What Accelerate turns it into, so the same order as under Hugging Face's Trainer.
            return RandomOrder(count, seed)
    return SeededOrder(sampler, seed)


def _permutation(n: int, seed: int) -> torch.Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))
