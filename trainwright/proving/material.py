"""The first samples of a training, put together into as many batches as a comparison wants."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any

import torch

from trainwright.data.asked_order import data_seed
from trainwright.data.position import LastBatch, starts_by_index
from trainwright.data.rebuild import resumable_loader
from trainwright.data.seeding import MapFetch
from trainwright.engines.torch.targets import count_rows
from trainwright.proving.copies import TrainerCopy
from trainwright.proving.formats import batch_in

#: Updates that are compared, and samples in each: enough for what goes wrong to show, few enough to be quick.
UPDATES, FEWEST, MOST = 2, 4, 8


class GivenBatches:
    """A loader over batches that are there; each time anew, since a training may write into them."""

    #: In several processes each is given its own.
    splits_by_process = True

    def __init__(self, batches: list[Any], dtype: torch.dtype | None) -> None:
        self._batches, self._dtype = batches, dtype

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        return (batch_in(batch, self._dtype) for batch in self._batches)


@dataclass(frozen=True)
class Material:
    """For each update a function of a number of pieces that gives its samples in so many batches."""

    updates: list[Callable[[int], list[Any]]]
    #: Samples of the updates.
    rows: list[int]
    #: How it differs from what the training will be given.
    note: str | None
    _put_together: dict[int, list[list[Any]]] = field(default_factory=dict)

    def batches(self, pieces: int = 1) -> list[list[Any]]:
        """For each update the batches, ``pieces`` of them."""
        if pieces in self._put_together:
            return self._put_together[pieces]
        found = [update(pieces) for update in self.updates]
        short = [len(one) for one in found if len(one) != pieces]
        if short:
            raise ValueError(f"an update has {short[0]} pieces only, and not {pieces}")
        self._put_together[pieces] = found
        return found


def material_of(copy: TrainerCopy) -> Material:
    """What the Trainer that was copied would train on first."""
    setup = copy.setup
    loader = resumable_loader(setup.hooks().get_train_dataloader(), data_seed(setup.args))
    if not starts_by_index(loader):
        return _of_batches(copy, list(islice(iter(loader), UPDATES)), "the loader gives whole batches")
    fetch = MapFetch(loader.dataset, loader.collate_fn, loader.fetch_seed)
    groups = _groups([indices for _, indices in islice(loader.batch_sampler.numbered(0), UPDATES * FEWEST)])
    whole = [fetch(0, group) for group in groups]
    again = [fetch(0, group) for group in groups]
    if fetch.draws or _digests(whole) != _digests(again):
        why = "draw random numbers" if fetch.draws else "give other data each time they are asked"
        return _of_batches(copy, whole, f"dataset or collator {why}")

    def pieces_of(group: list[Any]) -> Callable[[int], list[Any]]:
        return lambda pieces: [fetch(0, part) for part in _parts(group, pieces)]

    return Material([pieces_of(group) for group in groups], [len(group) for group in groups], None)


def _digests(batches: list[Any]) -> list[str | None]:
    return [LastBatch(batch).digest() for batch in batches]


def _groups(batches: list[list[Any]]) -> list[list[Any]]:
    """The samples of each update: a batch's, or those of several that are small."""
    found: list[list[Any]] = []
    present: list[Any] = []
    for batch in batches:
        present = [*present, *batch]
        if len(present) >= FEWEST:
            found.append(present[:MOST])
            present = []
        if len(found) == UPDATES:
            return found
    return [*found, present] if len(present) > 1 or not found else found


def _parts(group: Sequence[Any], pieces: int) -> list[list[Any]]:
    size, longer = divmod(len(group), pieces)
    if not size:
        return [list(group)]
    edges = [index * size + min(index, longer) for index in range(pieces + 1)]
    return [list(group[start:end]) for start, end in pairwise(edges)]


def _of_batches(copy: TrainerCopy, batches: list[Any], why: str) -> Material:
    """Batches are cut where they cannot be put together from samples."""
    if not batches:
        raise ValueError("prove needs a batch of training data, and there is none.")
    hooks = copy.setup.hooks()

    def pieces_of(batch: Any) -> Callable[[int], list[Any]]:
        return lambda pieces: [batch] if pieces == 1 else hooks.split_batch(batch, pieces)

    small = []
    for batch in batches:
        try:
            small.append(hooks.split_batch(batch, -(-count_rows(batch) // MOST))[0])
        except ValueError:
            small.append(batch)
    note = f"{why}: batches are cut, and not collated from single samples"
    return Material([pieces_of(batch) for batch in small], [count_rows(batch) for batch in small], note)
