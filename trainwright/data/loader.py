"""Loaders: a dataset, an order of batches and a collator, brought together.

    order.py (which sample is next) -> batches.py (which samples make a batch) -> Loader (fetch, collate)

A loader leaves the global random generators as they are: what samples and collators draw comes from seeds of their own
(seeding.py), in this process and in workers (workers.py).
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, IterDataPipe
from torch.utils.data._utils.pin_memory import pin_memory

from trainwright.config.arguments import TrainingArguments
from trainwright.config.backends import ProcessRank
from trainwright.data.asked_order import data_seed, train_batches
from trainwright.data.batches import FixedBatches, ResumableBatches
from trainwright.data.columns import DropColumnsCollator
from trainwright.data.in_memory import Pinned
from trainwright.data.iterables import Iterated, as_iterable, has_length, is_iterable
from trainwright.data.order import (
    Order,
    SequentialOrder,
    mixed_seed,
    set_epoch_of,
)
from trainwright.data.seeding import CollatedStream, MapFetch, StreamRandom, StreamRun
from trainwright.data.sharding import ShardedRows
from trainwright.data.stream_sharing import SharedStream, Split, StreamForWorkers, StreamShare, rounds_of, share_of
from trainwright.data.worker_count import auto_workers
from trainwright.data.workers import LoaderNow, WorkerIterator

logger = logging.getLogger("trainwright")

Collate = Callable[[list[Any]], Any]


class Loader(DataLoader[Any]):
    """torch's ``DataLoader``, told the epoch and where in it to start, whose data draws random numbers of its own.

    Without workers it yields batches from its own plain iterators: the same batches as torch's, without their fixed
    cost for each.

    Args:
        dataset: Map-style or iterable.
        seed: Data seed; what samples and collator draw is a function of it, of ``rank``, epoch and sample.
        rank: Ranks see different samples and must not augment them alike.
        poll: Called at least every half second while waiting for workers; what it raises ends the wait.
        options: What ``DataLoader`` takes.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        seed: int = 0,
        rank: int = 0,
        poll: Callable[[], None] | None = None,
        **options: Any,
    ) -> None:
        options.setdefault("generator", torch.Generator())
        super().__init__(dataset, **options)
        self.seed = seed
        #: Seeds what data draws; differs between ranks.
        self.fetch_seed = mixed_seed(seed, rank)
        self._now = LoaderNow(poll)
        self._fetch: MapFetch | None = None
        self._share: StreamShare | None = None
        self._running: weakref.WeakSet[WorkerIterator] = weakref.WeakSet()
        #: How many batches of a stream come in an epoch; ``StreamReader`` ends there.
        self.batch_limit: int | None = None

    @property
    def epoch(self) -> int:
        return self._now.epoch

    @property
    def poll(self) -> Callable[[], None] | None:
        return self._now.poll

    @poll.setter
    def poll(self, call: Callable[[], None] | None) -> None:
        self._now.poll = call

    @property
    def is_map_style(self) -> bool:
        return not isinstance(self.dataset, IterableDataset)

    @property
    def stream_source(self) -> Any:
        """The iterable dataset that is read, as the user gave it or, of several processes, this one's part."""
        return self.stream.source if isinstance(self.stream, Iterated) else self.stream

    @property
    def stream(self) -> Any:
        """What is iterated: the dataset, or this process's part where it comes in parts."""
        return self.dataset if self._share is None or self._share.part is None else self._share.part

    @property
    def split(self) -> Split | None:
        """How processes share a stream; None where there is one process, or the dataset has an index."""
        return None if self._share is None else self._share.split

    def share_stream(self, place: ProcessRank, *, is_training: bool) -> None:
        """Let this process have its part of the stream only."""
        source = self.stream_source
        share = share_of(source, place, is_training=is_training)
        if share.split == "stride" and self.worker_init_fn is not None and self.num_workers > 1:
            raise ValueError(
                f"worker_init_fn may share {type(source).__name__} out among workers, and several processes have to "
                "share it too: let its __iter__ do both, by rank and by worker, and set splits_by_process = True on "
                "it, or use one worker."
            )
        self._share = share
        # Who reads the same stream must read the same; who reads a part of it must not augment it alike.
        self.fetch_seed = mixed_seed(self.seed, 0 if share.split == "stride" else place.rank)

    def filler(self) -> Any:
        """A batch for a process that has none, or no further one: a function of the epoch alone."""
        if self.is_map_style:
            return MapFetch(self.dataset, self.collate_fn, self.fetch_seed)(self.epoch, [0])
        with StreamRandom(self.fetch_seed, self.epoch):
            set_epoch_of(self.dataset, self.epoch)
            samples = list(islice(iter(self.dataset), 1))
            if not samples:
                raise ValueError(
                    f"{type(self.stream_source).__name__} gave this process no sample and others some: each process "
                    "must get at least one."
                )
            # Two rows, since BatchNorm refuses one.
            return self.collate_fn(samples[0] if self.batch_size is None else samples * 2)

    def __len__(self) -> int:
        if self.batch_limit is not None:
            return self.batch_limit
        if self._share is None or self._share.split == "itself":
            return super().__len__()
        return rounds_of(self, self._share)

    @property
    def sample_order(self) -> list[int] | None:
        """The dataset index of each row the loader yields; None when that is plain dataset order (or unknowable)."""
        sampler = getattr(self.batch_sampler, "sampler", None)
        if isinstance(sampler, ShardedRows):
            # Parts of all processes, put together, are in this order.
            sampler = sampler.order
        if not isinstance(sampler, Order) or isinstance(sampler, SequentialOrder):
            return None
        return sampler.indices()

    def set_epoch(self, epoch: int) -> None:
        """Tell the batch sampler, and a dataset that shuffles itself (Hugging Face's streaming ones), the epoch."""
        self._now.epoch = epoch
        set_epoch_of(self.batch_sampler, epoch)
        set_epoch_of(self.stream, epoch)

    def start_at(self, batches: int, *, sample: int | None = None, leave_out: Collection[int] = ()) -> None:
        """Let the next iteration begin with batch number ``batches``, without fetching those before it.

        Only a map-style dataset in an order of ours can do that; reading past batches is the business of ``TrainFeed``.
        """
        if not isinstance(self.batch_sampler, ResumableBatches):
            raise ValueError("an iterable dataset cannot start in the middle; use TrainFeed, which reads past batches")
        self.batch_sampler.start_at(batches, sample=sample, leave_out=leave_out)

    def close(self) -> None:
        """End all workers, whether kept between epochs or left by an iteration that was broken off.

        Those that do not leave within two seconds are killed. A later iteration starts new ones. Left to the garbage
        collector they would stop whenever it comes by.
        """
        self._iterator = None
        for iterator in list(self._running):
            iterator._shutdown_workers()
        self._running.clear()

    def __iter__(self) -> Any:
        if self.generator is not None:
            # By (seed, epoch) and not by how often this was iterated, so a resumed run seeds its workers alike.
            self.generator.manual_seed(mixed_seed(self.fetch_seed, self.epoch))
        if self.num_workers == 0:
            return self._batches_here()
        if not self.is_map_style and self._iterator is not None:
            # Workers that are kept would go on with the random numbers, and with the copy of the dataset, that the last
            # epoch left them; new ones are seeded by (seed, epoch) and know the epoch.
            self.close()
        batches = super().__iter__()
        if isinstance(self.collate_fn, DropColumnsCollator):
            # The workers of this epoch have their copies and one of them speaks; those of later epochs need not.
            self.collate_fn.has_spoken = True
        return batches

    def _get_iterator(self) -> Any:
        if self.num_workers == 0:
            return super()._get_iterator()
        self.check_worker_number_rationality()
        iterator = WorkerIterator(self, self._now)
        self._running.add(iterator)
        return iterator

    def _batches_here(self) -> Iterator[Any]:
        """Batches fetched in this process."""
        if self.is_map_style and self.batch_sampler is not None:
            return self._map_batches(iter(self.batch_sampler))
        if self.split != "stride" and (self.batch_size is None or isinstance(self.dataset, IterDataPipe)):
            # torch's own iterator knows what else these want.
            return StreamRun(super()._get_iterator, self.fetch_seed, self.epoch)
        return StreamRun(self._stream_batches, self.fetch_seed, self.epoch)

    def _map_batches(self, batches: Iterator[list[int]]) -> Iterator[Any]:
        # Kept from epoch to epoch: it remembers whether the data draws random numbers.
        self._fetch = self._fetch or MapFetch(self.dataset, self.collate_fn, self.fetch_seed)
        self._fetch.use_collator(self._collate_here())
        fetch, epoch = self._fetch, self.epoch
        for indices in batches:
            yield fetch(epoch, indices)

    def _stream_batches(self) -> Iterator[Any]:
        collate = self._collate_here()
        if self._share is not None and self._share.split == "stride":
            seed, epoch = self.fetch_seed, self.epoch
            return SharedStream(
                iter(self.dataset), self.batch_size, self.drop_last, collate, self._share, seed=seed, epoch=epoch
            )
        assert self.batch_size is not None
        return CollatedStream(iter(self.stream), self.batch_size, self.drop_last, collate)

    def for_workers(self) -> StreamForWorkers | None:
        """What workers iterate, where processes share a stream that all of them read."""
        if self._share is None or self._share.split == "itself":
            return None
        return StreamForWorkers(self, self._share, self.epoch)

    def _collate_here(self) -> Collate:
        """The collator, with pinning where asked for."""
        collate = self.collate_fn
        if not self.pin_memory or not torch.accelerator.is_available():
            return collate
        return Pinned(collate, pin_memory)


def train_loader(
    dataset: object,
    *,
    batch_size: int,
    collate: Collate,
    args: TrainingArguments,
    batch_sampler: Any | None = None,
) -> Loader:
    """The loader of training.

    Args:
        dataset: Map-style (a list will do), or iterable: torch's, Hugging Face's streaming, or any object with
            ``__iter__``.
        batch_size: Samples in a batch, where ``batch_sampler`` does not say.
        collate: Makes a batch of a list of samples.
        args: Training arguments, by Hugging Face's names.
        batch_sampler: Which samples make a batch, for a map-style dataset; ``train_batches`` decides if not given.
    """
    if is_iterable(dataset):
        source = as_iterable(dataset, workers_for(dataset, args), _processes(args))
        return _loader(source, collate, args, batch_size=batch_size, drop_last=args.dataloader_drop_last)
    if batch_sampler is None:
        batch_sampler = train_batches(dataset, batch_size, args)
    return _loader(dataset, collate, args, batch_sampler=batch_sampler)


def eval_loader(
    dataset: Any,
    *,
    collate: Collate,
    args: TrainingArguments,
    sampler: Any | None = None,
    batch_size: int | None = None,
) -> Loader:
    """The loader of evaluation and prediction: every sample once, in dataset order or that of ``sampler``.

    ``sample_order`` says which row is which sample. The last batch is kept unless ``dataloader_drop_last`` asks
    otherwise; that of an iterable dataset is always kept.
    """
    size = args.per_device_eval_batch_size if batch_size is None else batch_size
    if is_iterable(dataset):
        source = as_iterable(dataset, workers_for(dataset, args), _processes(args))
        return _loader(source, collate, args, batch_size=size)
    order = SequentialOrder(len(dataset)) if sampler is None else sampler
    return _loader(dataset, collate, args, batch_sampler=FixedBatches(order, size, args.dataloader_drop_last))


def close_loader(loader: object) -> None:
    """Stop the workers of a loader of ours; others belong to whoever made them."""
    if isinstance(loader, Loader):
        loader.close()


def num_examples(loader: Any) -> int:
    """Samples in one pass of ``loader``; where its dataset has no length, batches times batch size."""
    if (dataset := getattr(loader, "dataset", None)) is not None and has_length(dataset):
        return len(dataset)
    return len(loader) * (getattr(loader, "batch_size", None) or 1)


def _processes(args: TrainingArguments) -> int:
    """Processes that have samples of their own."""
    return args.data_processes


def _rank(args: TrainingArguments) -> int:
    # Processes that compute layers together have the same samples.
    together = args.world_size // _processes(args)
    return args.process_index // max(together, 1)


def workers_for(dataset: Any, args: TrainingArguments) -> int:
    """The number of worker processes that ``args`` ask for."""
    return auto_workers(dataset) if args.dataloader_num_workers == "auto" else int(args.dataloader_num_workers)


def _loader(dataset: Any, collate: Collate, args: TrainingArguments, **batching: Any) -> Loader:
    # What an indexed sample draws depends on its index alone, so that any number of processes gives the same samples.
    rank = 0 if "batch_sampler" in batching else _rank(args)
    workers = workers_for(dataset, args)
    # Where "auto" came to none, what was said about workers is about none.
    has_workers = workers > 0
    return Loader(
        dataset,
        seed=data_seed(args),
        rank=rank,
        collate_fn=collate,
        num_workers=workers,
        # Pinning serves copies to a GPU; without one torch warns and ignores it.
        pin_memory=bool(args.dataloader_pin_memory) and torch.cuda.is_available(),
        persistent_workers=has_workers and args.dataloader_persistent_workers,
        prefetch_factor=args.dataloader_prefetch_factor if has_workers else None,
        multiprocessing_context=args.dataloader_multiprocessing_context if has_workers else None,
        in_order=args.dataloader_in_order,
        **batching,
    )
