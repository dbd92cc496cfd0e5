"""Batch samplers that can start anywhere in an epoch, and leave batches out, without fetching a sample.

``start_at(k)`` makes the next iteration begin with batch ``k``. Only indices are skipped; the dataset is never
touched, so resuming late in an epoch costs no more than resuming at its start.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence, Sized
from typing import Any

import torch
from torch.utils.data import Sampler

from trainwright.config.limits import Limit
from trainwright.data.order import mixed_seed, seeded, set_epoch_of
from trainwright.data.replay import Replay
from trainwright.data.sharding import ShardedOrder

# One window is sorted at a time. This many batches make neighbours in it similar in length, while a sample's company
# still changes from epoch to epoch.
_BATCHES_PER_WINDOW = 64
# Keeps the shuffle of batches apart from other streams made from the same (seed, epoch).
_SHUFFLE_STREAM = 0x5EED


class ResumableBatches(Sampler[list[int]]):
    """What the batch samplers share: the epoch, where the next iteration starts, and what it leaves out."""

    def __init__(self, sampler: Any, drop_last: bool) -> None:
        self.sampler = sampler
        self.drop_last = drop_last
        self.epoch = 0
        self._start = 0
        self._start_sample: int | None = None
        self._left_out: Collection[int] = ()
        #: How many batches of an epoch come; None for all.
        self.limit: Limit | None = None

    def cut(self, batches: int) -> int:
        """How many of an epoch's ``batches`` come."""
        return batches if self.limit is None else self.limit.of(batches)

    def ends_with_filler(self, sample: int | None = None) -> bool:
        """Whether the last batch is there only to keep this process in step with others.

        ``sample`` is what ``start_at`` was told, where the epoch did not start at its start.
        """
        if self.limit is not None and len(self) < self.whole():
            return False
        if sample is not None and isinstance(self.sampler, ShardedOrder):
            return self.sampler.fills_after(sample)
        return bool(getattr(self.sampler, "ends_with_filler", False))

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        set_epoch_of(self.sampler, epoch)

    def start_at(self, batches: int, *, sample: int | None = None, leave_out: Collection[int] = ()) -> None:
        """Let the next iteration, and only that one, begin with batch number ``batches``.

        ``sample`` makes that batch begin with this sample of the epoch, where batches have a fixed size; without it the
        batches before are taken to be whole ones. With several processes it counts the samples of all (or the batches
        of all, where whole batches are shared out). Batches whose numbers are in ``leave_out`` do not come.
        """
        if batches < 0:
            raise ValueError(f"start_at counts batches from 0, got {batches}")
        self._start, self._start_sample, self._left_out = batches, sample, leave_out

    def numbered(self, start: int, sample: int | None = None) -> Iterator[tuple[int, list[int]]]:
        """The batches of the current epoch from number ``start`` on, each with its number."""
        batches = self._batches_from(start, sample)
        if self.limit is not None:
            end = self.limit.of(None if isinstance(self.limit.value, int) else self._counted(start, sample))
            batches = itertools.islice(batches, max(end - start, 0))
        return enumerate(batches, start)

    def whole(self) -> int:
        """Batches in the whole of the current epoch, whatever ``start_at`` was told, without the limit."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self.cut(self.whole())

    def _counted(self, start: int, sample: int | None) -> int:
        """Batches of the epoch where batch number ``start`` begins with ``sample``."""
        return self.whole()

    def __iter__(self) -> Iterator[list[int]]:
        # The offset is taken when the first batch is asked for, not when the iterator is made: torch's loader with
        # workers makes two iterators and walks the second.
        start, sample, left_out = self._start, self._start_sample, self._left_out
        self._start, self._start_sample, self._left_out = 0, None, ()
        if not left_out and self.limit is None:
            yield from self._batches_from(start, sample)
            return
        for number, batch in self.numbered(start, sample):
            if number not in left_out:
                yield batch

    def _batches_from(self, start: int, sample: int | None) -> Iterator[list[int]]:
        raise NotImplementedError


class FixedBatches(ResumableBatches):
    """Batches of ``batch_size`` indices around any sampler."""

    def __init__(self, sampler: Any, batch_size: int, drop_last: bool = False) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        super().__init__(sampler, drop_last)
        self.batch_size = batch_size

    def whole(self) -> int:
        if not isinstance(self.sampler, Sized):
            raise TypeError(
                f"the sampler {type(self.sampler).__name__} has no length, so its batches cannot be counted"
            )
        return self.batches_after(0)

    @property
    def batches_in_epoch(self) -> Callable[[int], int] | None:
        """How many batches an epoch has, where epochs differ."""
        order = getattr(self.sampler, "order", self.sampler)
        return self._count_of if getattr(order, "epochs_differ", False) else None

    def _count_of(self, epoch: int) -> int:
        now = self.epoch
        self.set_epoch(epoch)
        try:
            return len(self)
        finally:
            self.set_epoch(now)

    def _counted(self, start: int, sample: int | None) -> int:
        return self.whole() if sample is None else start + self.batches_after(sample)

    def batches_after(self, sample: int) -> int:
        """How many batches the samples from number ``sample`` on make, without the limit.

        Of several processes: the batches of this one, after ``sample`` samples of all.
        """
        if isinstance(self.sampler, ShardedOrder):
            left = self.sampler.length_after(sample)
        else:
            left = max(len(self.sampler) - sample, 0)
        return left // self.batch_size if self.drop_last else math.ceil(left / self.batch_size)

    def _batches_from(self, start: int, sample: int | None) -> Iterator[list[int]]:
        if sample is not None and isinstance(self.sampler, ShardedOrder):
            return self._cut(iter(self.sampler.indices_after(sample)))
        first = start * self.batch_size if sample is None else sample
        return self._cut(itertools.islice(iter(self.sampler), first, None))

    def _cut(self, indices: Iterator[int]) -> Iterator[list[int]]:
        size, least = self.batch_size, self.batch_size if self.drop_last else 1
        while len(batch := list(itertools.islice(indices, size))) >= least:
            yield batch


class ReplayedBatches(ResumableBatches):
    """Makes a user's own batch sampler a function of (seed, epoch) that can start anywhere.

    Its batches are listed at the start of the epoch, as indices; no sample is fetched for that.
    """

    def __init__(self, batch_sampler: Any, seed: int) -> None:
        super().__init__(getattr(batch_sampler, "sampler", None), bool(getattr(batch_sampler, "drop_last", False)))
        self.batch_sampler = batch_sampler
        self.seed = seed
        self.replay = Replay(batch_sampler, seed)

    def whole(self) -> int:
        return len(self.batch_sampler)

    def set_epoch(self, epoch: int) -> None:
        # The user's objects are told in each pass, under the random numbers of that epoch.
        self.epoch = epoch

    def ends_with_filler(self, sample: int | None = None) -> bool:
        is_cut = self.limit is not None and len(self) < self.whole()
        return not is_cut and bool(getattr(self.batch_sampler, "ends_with_filler", False))

    def _batches_from(self, start: int, sample: int | None) -> Iterator[list[int]]:
        return iter(self.replay(self.epoch)[start:])


class TokenBudgetBatches(ResumableBatches):
    """Batches of as many samples as fit a budget: longest sample times rows, so padding too, within ``max_tokens``.

    The sampler's order is cut into windows, each window is sorted by length and packed, and the batches of the epoch
    are shuffled. What does not fill a batch moves on to the next window, so an epoch has at most one batch that could
    have taken more.

    Args:
        sampler: The order of samples. One without ``set_epoch`` is made a function of (seed, epoch).
        lengths: The length of every sample, by dataset index.
        max_tokens: The budget of one batch.
        seed: Shuffles the batches, together with the epoch.
        drop_last: Leave out the one batch that is not full.
        pad_to_multiple_of: What the collator pads to, so that its rounding up is inside the budget.
    """

    def __init__(
        self,
        sampler: Any,
        lengths: Sequence[int],
        max_tokens: int,
        seed: int,
        drop_last: bool = False,
        pad_to_multiple_of: int | None = None,
    ) -> None:
        super().__init__(seeded(sampler, seed), drop_last)
        multiple = pad_to_multiple_of or 1
        # An empty sample still takes a row; counting it as one token keeps the number of rows finite.
        self._widths = [math.ceil(max(length, 1) / multiple) * multiple for length in lengths]
        self.max_tokens = max_tokens
        self.seed = seed
        self._counts: dict[int, int] = {}
        self._plan: tuple[int, list[list[int]]] | None = None
        self._refuse_what_never_fits(lengths)

    def whole(self) -> int:
        return self._count(self.epoch)

    def batches_in_epoch(self, epoch: int) -> int:
        """How many batches ``epoch`` has; epochs differ, since each packs its samples differently."""
        return self.cut(self._count(epoch))

    def _count(self, epoch: int) -> int:
        if epoch not in self._counts:
            self._planned(epoch)
        return self._counts[epoch]

    def forget(self) -> None:
        """Plan all epochs anew: the sampler has changed."""
        self._plan, self._counts = None, {}

    def _refuse_what_never_fits(self, lengths: Sequence[int]) -> None:
        too_long = [index for index, width in enumerate(self._widths) if width > self.max_tokens]
        if too_long:
            first, others = too_long[0], len(too_long) - 1
            more = f" ({others} more samples are too long as well)" if others else ""
            raise ValueError(
                f"sample {first} has length {lengths[first]}, padded to {self._widths[first]}, which exceeds the "
                f"budget of {self.max_tokens} tokens per batch{more}; raise max_tokens_per_batch to at least "
                f"{max(self._widths)}, or truncate the samples"
            )

    def _batches_from(self, start: int, sample: int | None) -> Iterator[list[int]]:
        return iter(self._planned(self.epoch)[start:])

    def _planned(self, epoch: int) -> list[list[int]]:
        if self._plan is None or self._plan[0] != epoch:
            set_epoch_of(self.sampler, epoch)
            try:
                batches = self._pack([int(index) for index in self.sampler])
            finally:
                set_epoch_of(self.sampler, self.epoch)
            generator = torch.Generator().manual_seed(mixed_seed(self.seed, epoch, _SHUFFLE_STREAM))
            shuffled = torch.randperm(len(batches), generator=generator).tolist()
            self._plan = (epoch, [batches[position] for position in shuffled])
            self._counts[epoch] = len(batches)
        return self._plan[1]

    def _pack(self, order: list[int]) -> list[list[int]]:
        window = self._window_size(order)
        batches: list[list[int]] = []
        pending: list[int] = []
        for start in range(0, len(order), window):
            full, pending = self._fill(pending + order[start : start + window])
            batches += full
        if pending and not self.drop_last:
            batches.append(pending)
        return batches

    def _window_size(self, order: list[int]) -> int:
        tokens = sum(self._widths[index] for index in order)
        rows = self.max_tokens * len(order) / tokens if tokens else 1.0
        return max(1, math.ceil(rows * _BATCHES_PER_WINDOW))

    def _fill(self, indices: list[int]) -> tuple[list[list[int]], list[int]]:
        """Full batches from ``indices``, and what was left over."""
        full: list[list[int]] = []
        batch: list[int] = []
        room = 0
        # Longest first: the width of a batch is settled by its first sample, and what is left over is short.
        for index in sorted(indices, key=self._widths.__getitem__, reverse=True):
            if not batch:
                room = self.max_tokens // self._widths[index]
            batch.append(index)
            if len(batch) == room:
                full.append(batch)
                batch = []
        return full, batch
