"""Loaders people bring, made resumable."""

from __future__ import annotations

import logging
from collections.abc import Sized
from typing import Any, Literal

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from trainwright.config.backends import ProcessRank
from trainwright.data.batches import FixedBatches, ReplayedBatches, ResumableBatches
from trainwright.data.loader import Loader
from trainwright.data.order import seeded
from trainwright.data.sharded_batches import ShardedBatches
from trainwright.data.sharding import ShardedOrder, ShardedRows, is_sharded
from trainwright.data.stream_sharing import EveryNth, splits_itself

logger = logging.getLogger("trainwright")

#: Samples or batches that processes take turns with; None where each has neighbours.
Sharing = Literal["samples", "batches"] | None


def resumable_loader(loader: object, seed: int) -> Any:
    """A ``Loader`` that does what a user's ``DataLoader`` does, in an order (and with draws) of (seed, epoch).

    Dataset, sampler, collator and worker settings are kept. Anything else comes back as it is, to be resumed by its own
    ``state_dict()`` or by counting: a loader that is not torch's (or a subclass, which may do things of its own),
    batches without end or without batching.
    """
    if type(loader) is not DataLoader or loader.batch_sampler is None:
        return loader
    batching: dict[str, Any]
    if isinstance(loader.dataset, IterableDataset):
        batching = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    else:
        batching = {"batch_sampler": _resumable(loader.batch_sampler, seed)}
        if batching["batch_sampler"] is None:
            return loader
    return _like(loader, seed, **batching)


def _like(loader: Any, seed: int, **batching: Any) -> Loader:
    """A ``Loader`` with the settings of ``loader`` and other batches."""
    return Loader(
        loader.dataset,
        seed=seed,
        collate_fn=loader.collate_fn,
        num_workers=loader.num_workers,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        # torch fills in a factor for workers and accepts none without them; what it holds is what it takes.
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
        in_order=loader.in_order,
        **batching,
    )


def _resumable(batch_sampler: Any, seed: int) -> ResumableBatches | None:
    if isinstance(batch_sampler, ResumableBatches):
        return batch_sampler
    if type(batch_sampler) is BatchSampler:
        sampler = batch_sampler.sampler
        if hasattr(sampler, "set_epoch") or isinstance(sampler, Sized):
            return FixedBatches(seeded(sampler, seed), batch_sampler.batch_size, batch_sampler.drop_last)
        return None
    return ReplayedBatches(batch_sampler, seed) if isinstance(batch_sampler, Sized) else None


def shared_training(loader: object, place: ProcessRank, accumulation: int) -> Any:
    """``loader`` with this process's part of every batch; the loader of one process is left as it is.

    Processes take turns with batches; the last samples of an epoch, where batches have a fixed size, are shared out
    evenly. A stream is shared out sample by sample.
    """
    if place.world_size == 1 or is_shared(loader):
        return loader
    if not isinstance(loader, Loader):
        return _every_nth(loader, place, is_training=True)
    batches = loader.batch_sampler
    if not loader.is_map_style or not isinstance(batches, ResumableBatches):
        loader.share_stream(place, is_training=True)
        return loader
    if not isinstance(batches, FixedBatches):
        return _like(loader, loader.seed, batch_sampler=ShardedBatches(batches, *_numbers(place)))
    size = batches.batch_size
    batches.sampler = ShardedOrder(
        batches.sampler,
        place.rank,
        place.world_size,
        size,
        accumulation=accumulation,
        drop_below=size * place.world_size if batches.drop_last else 1,
    )
    return loader


def shared_evaluation(loader: object, place: ProcessRank, seed: int) -> Any:
    """``loader`` with this process's part of the data; the loader of one process is left as it is."""
    if place.world_size == 1 or is_shared(loader):
        return loader
    loader = resumable_loader(loader, seed)
    if not isinstance(loader, Loader):
        return _every_nth(loader, place, is_training=False)
    batches = loader.batch_sampler
    if not loader.is_map_style or not isinstance(batches, ResumableBatches):
        loader.share_stream(place, is_training=False)
        return loader
    if not isinstance(batches, FixedBatches):
        return _like(loader, loader.seed, batch_sampler=ShardedBatches(batches, *_numbers(place), fills=False))
    multiple = batches.batch_size if batches.drop_last else 1
    rows = ShardedRows(batches.sampler, place.rank, place.world_size, multiple)
    return _like(loader, loader.seed, batch_sampler=FixedBatches(rows, batches.batch_size))


def is_shared(loader: object) -> bool:
    """Whether ``loader`` gives this process its part already, or says so with ``splits_by_process = True``."""
    if isinstance(loader, EveryNth) or (isinstance(loader, Loader) and loader.split is not None):
        return True
    batches = getattr(loader, "batch_sampler", None)
    if isinstance(batches, ReplayedBatches):
        batches = batches.batch_sampler
    if isinstance(batches, ShardedBatches) or is_sharded(batches):
        return True
    return is_sharded(getattr(batches, "sampler", getattr(loader, "sampler", None))) or splits_itself(loader)


def sharing_of(loader: object, place: ProcessRank) -> Sharing:
    """What processes with loaders such as ``loader`` take turns with."""
    if place.world_size == 1:
        return None
    if isinstance(loader, Loader) and loader.split == "stride":
        return "samples"
    is_by_batch = isinstance(loader, EveryNth) or isinstance(getattr(loader, "batch_sampler", None), ShardedBatches)
    return "batches" if is_by_batch else None


def _numbers(place: ProcessRank) -> tuple[int, int]:
    return place.rank, place.world_size


def _every_nth(loader: object, place: ProcessRank, *, is_training: bool) -> EveryNth:
    logger.warning(
        "Each of %d processes reads all batches of %s and takes every %d-th. If it gives each process its own part "
        "already, set splits_by_process = True on it.",
        place.world_size,
        type(loader).__name__,
        place.world_size,
    )
    return EveryNth(loader, place, fills=is_training)
