"""Only the first batches of a loader, by ``limit_train_batches`` and its like."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from typing import Any

from trainwright.config.backends import ProcessRank
from trainwright.config.limits import Limit
from trainwright.data.batches import FixedBatches, ResumableBatches
from trainwright.data.loader import Loader, has_length
from trainwright.data.order import Order
from trainwright.data.rebuild import is_shared, resumable_loader


class FirstBatches:
    """A loader that ends after its first batches; everything else is the loader's."""

    def __init__(self, loader: Any, batches: int) -> None:
        self.loader, self.batch_limit = loader, batches

    def __getattr__(self, name: str) -> Any:
        # Not while it is copied, when there is no loader yet.
        if name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __len__(self) -> int:
        return self.batch_limit

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.loader), self.batch_limit)


class FirstSamples(Order):
    """The first ``count`` samples of an order."""

    def __init__(self, order: Any, count: int) -> None:
        super().__init__(count)
        self.order = order

    def indices(self) -> list[int]:
        return [int(index) for index in islice(iter(self.order), self.n)]


def first_of_training(loader: Any, limit: Limit | None) -> Any:
    """``loader``, of one process already, with the limit on each of its epochs."""
    if limit is None:
        return loader
    # Asked now, so that a share of an unknown number is refused before anything begins.
    batches = limit.of(length_of(loader))
    if not isinstance(loader, Loader):
        return FirstBatches(loader, batches)
    if isinstance(loader.batch_sampler, ResumableBatches) and loader.is_map_style:
        # Batches by token budget differ in number from epoch to epoch.
        loader.batch_sampler.limit = limit
    else:
        loader.batch_limit = batches
    return loader


def length_of(loader: Any) -> int | None:
    """Batches of ``loader``; None where it does not know."""
    return len(loader) if has_length(loader) else None


def whole_loader(loader: Any) -> Any:
    """The loader of which ``loader`` gives the first batches, or it itself."""
    return loader.loader if isinstance(loader, FirstBatches) else loader


def may_end_before(loader: Any) -> bool:
    """Whether the length of ``loader`` is its limit alone, since nobody knows how long its stream is."""
    if isinstance(loader, FirstBatches):
        return not has_length(loader.loader)
    return getattr(loader, "batch_limit", None) is not None and not has_length(loader.dataset)


def first_of_evaluation(loader: Any, limit: Limit | None, place: ProcessRank, seed: int) -> tuple[Any, Limit | None]:
    """``loader``, not shared out yet, with the limit on the batches of each process; and the limit where it has none.

    What has an index is cut before it is shared out, so that the processes together see its first samples, in order;
    anything else can only be cut afterwards, by ``first_batches``.
    """
    if limit is None:
        return loader, None
    found = loader if place.world_size == 1 else resumable_loader(loader, seed)
    batches = getattr(found, "batch_sampler", None)
    if not isinstance(found, Loader) or not found.is_map_style or not isinstance(batches, FixedBatches):
        return loader, limit
    if place.world_size == 1:
        batches.limit = limit
        return found, None
    if is_shared(found):
        return loader, limit
    samples, all_at_once = len(batches.sampler), batches.batch_size * place.world_size
    rounds = limit.of(math.ceil(samples / all_at_once))
    if rounds * all_at_once < samples:
        batches.sampler = FirstSamples(batches.sampler, rounds * all_at_once)
    return found, None


def first_batches(loader: Any, limit: Limit | None) -> Any:
    """``loader``, or only its first batches."""
    return loader if limit is None else FirstBatches(loader, limit.of(length_of(loader)))
