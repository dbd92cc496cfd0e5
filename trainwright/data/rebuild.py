"""Loaders people bring, made resumable."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from trainwright.config.backends import Place
from trainwright.data.batches import FixedBatches, ReplayedBatches, ResumableBatches
from trainwright.data.loader import Loader
from trainwright.data.order import seeded
from trainwright.data.sharding import ShardedOrder, ShardedRows, is_sharded


def resumable_loader(loader: Any, seed: int) -> Any:
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


def shared_training(loader: Any, place: Place, accumulation: int) -> Any:
    """``loader`` with this process's part of every batch; the loader of one process is left as it is."""
    if place.world_size == 1 or is_sharded(_sampler_of(loader)):
        return loader
    batches = _batches_to_share(loader, "training")
    size = batches.batch_size
    batches.sampler = ShardedOrder(
        batches.sampler,
        place.rank,
        place.world_size,
        size * accumulation,
        drop_below=size * place.world_size if batches.drop_last else 1,
    )
    return loader


def shared_evaluation(loader: Any, place: Place, seed: int) -> Any:
    """``loader`` with this process's part of the data; the loader of one process is left as it is."""
    if place.world_size == 1 or is_sharded(_sampler_of(loader)):
        return loader
    loader = resumable_loader(loader, seed)
    batches = _batches_to_share(loader, "evaluation")
    batches.sampler = ShardedRows(batches.sampler, place.rank, place.world_size)
    return loader


def _sampler_of(loader: Any) -> Any:
    sampler = getattr(loader, "sampler", None)
    return getattr(getattr(loader, "batch_sampler", None), "sampler", sampler)


def _batches_to_share(loader: Any, kind: str) -> FixedBatches:
    batches = getattr(loader, "batch_sampler", None)
    if not isinstance(loader, Loader) or type(batches) is not FixedBatches:
        raise ValueError(
            f"This {kind} data cannot be shared out among several processes yet: it must have a length and batches of "
            "a fixed size. Use such a dataset, give the loader a DistributedSampler, or train with one process."
        )
    return batches
