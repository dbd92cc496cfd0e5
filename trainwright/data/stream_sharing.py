"""Streams among several processes: which process, and which of its workers, has which samples.

A stream is read in rounds, a batch for every process. Every process reads all of a round and keeps every
``world_size``-th sample of it, so a step has the samples that one process with a batch as large would have, and all
come to the end of the stream in the same round. Reading costs as much as for one process; where that is too much, a
dataset may share itself out and say so with ``splits_by_process = True``: it then reads, by rank and by worker, only
what is this process's. Hugging Face's streaming datasets do it by their shards.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from typing import Any, Literal, NamedTuple

import torch.utils.data._utils as torch_internals
from torch.utils.data import IterableDataset, IterDataPipe, get_worker_info
from torch.utils.data.graph import traverse_dps

from trainwright.config.backends import ProcessRank
from trainwright.core.filler import Filler
from trainwright.data.iterables import is_hugging_face_stream
from trainwright.data.order import mixed_seed
from trainwright.data.seeding import Generators, seed_generators, seed_of

Split = Literal["stride", "itself"]


class StreamShare(NamedTuple):
    """One process's part of a stream."""

    place: ProcessRank
    #: "stride": every process reads all of it; "itself": what it iterates is its part already.
    split: Split
    #: Whether a process without a sample in a round is given a filler.
    fills: bool
    #: What is iterated, where that is not the dataset itself.
    part: Any = None


def share_of(source: Any, place: ProcessRank, *, is_training: bool) -> StreamShare:
    """How ``source`` is shared out."""
    if splits_itself(source):
        return StreamShare(place, "itself", is_training)
    if isinstance(source, IterDataPipe):
        raise ValueError(
            "This IterDataPipe would give every process all samples: add .sharding_filter() to it, with which torch "
            "shares it out."
        )
    if is_training and is_hugging_face_stream(source):
        from datasets.distributed import split_dataset_by_node

        return StreamShare(place, "itself", True, split_dataset_by_node(source, place.rank, place.world_size))
    # In evaluation also Hugging Face's: by shards, the order of predictions could not be restored.
    return StreamShare(place, "stride", is_training)


def splits_itself(source: Any) -> bool:
    """Whether a dataset or loader gives each process its own part already, or says so."""
    if getattr(source, "splits_by_process", False):
        return True
    if isinstance(source, IterDataPipe):
        return any(hasattr(pipe, "apply_sharding") for pipe in _pipes(traverse_dps(source)))
    # What `split_dataset_by_node` returned, and the shards that Accelerate makes.
    return getattr(source, "_distributed", None) is not None or (
        hasattr(source, "num_processes") and hasattr(source, "process_index")
    )


def _pipes(graph: Any) -> Iterator[Any]:
    for pipe, inner in graph.values():
        yield pipe
        yield from _pipes(inner)


class SharedStream(Iterator[Any]):
    """Batches of one process, and of one of its workers, of a stream that all read.

    Worker ``k`` of ``n`` makes the batches of rounds ``k``, ``k + n``, ...: any number of workers gives the same ones.

    Args:
        samples: The whole stream.
        size: Samples in a batch of one process; None where each item of the stream is a batch.
        drop_last: Leave out a round that is not whole.
        collate: Makes a batch. What it draws at random is a function of seed, epoch, round and rank, so that processes
            do not draw alike and the stream, which draws for all of them alike, does not notice.
        share: Whose batches.
        seed: Of what the collator draws.
        epoch: The epoch.
        worker: Which of ``workers`` this is.
    """

    def __init__(
        self,
        samples: Iterator[Any],
        size: int | None,
        drop_last: bool,
        collate: Callable[[Any], Any],
        share: StreamShare,
        *,
        seed: int,
        epoch: int,
        worker: int = 0,
        workers: int = 1,
    ) -> None:
        self._samples, self._size, self._drop_last, self._collate = samples, size, drop_last, collate
        self._share, self._seed, self._epoch = share, seed, epoch
        self._worker, self._workers = worker, workers
        self._round = -1
        self._generators = Generators()
        self.ended = False

    def __next__(self) -> Any:
        rank, world = self._share.place.rank, self._share.place.world_size
        while not self.ended:
            with _as_in_the_main_process():
                samples = list(islice(self._samples, (self._size or 1) * world))
            self._round += 1
            self.ended = len(samples) < (self._size or 1) * world
            if not samples or (self.ended and self._drop_last):
                break
            if self._round % self._workers != self._worker:
                continue
            if mine := samples[rank::world]:
                return self._batch(mine)
            if self._share.fills:
                return Filler(self._batch(samples[:1]))
        self.ended = True
        raise StopIteration

    def _batch(self, samples: list[Any]) -> Any:
        before = self._generators.capture()
        seed_generators(seed_of(self._seed, self._epoch, "collate", self._round, self._share.place.rank))
        try:
            return self._collate(samples[0] if self._size is None else samples)
        finally:
            self._generators.restore(before)


class StreamForWorkers(IterableDataset[Any]):
    """What each worker of each process iterates; yields finished batches."""

    def __init__(self, loader: Any, share: StreamShare, epoch: int) -> None:
        #: The dataset as the user gave it.
        self.source = loader.dataset
        self._batching = (loader.batch_size, loader.drop_last, loader.collate_fn, share)
        self._seed, self._epoch = loader.fetch_seed, epoch

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None
        # All read the same stream, so it must draw the same in each of them.
        seed_generators(mixed_seed(self._seed, self._epoch))
        with _as_in_the_main_process():
            samples = iter(self.source)
        return SharedStream(
            samples, *self._batching, seed=self._seed, epoch=self._epoch, worker=info.id, workers=info.num_workers
        )


class EveryNth:
    """A loader of somebody else's, of whose batches this process trains on every ``world_size``-th; all are read.

    Whole rounds are read, so what the loader says of its state is the same in all processes.
    """

    split: Split = "stride"

    def __init__(self, loader: Any, place: ProcessRank, *, fills: bool) -> None:
        self.loader, self._place, self._fills = loader, place, fills

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def __len__(self) -> int:
        return math.ceil(len(self.loader) / self._place.world_size)

    def __iter__(self) -> Iterator[Any]:
        rank, world = self._place.rank, self._place.world_size
        batches = iter(self.loader)
        while (first := next(batches, _END)) is not _END:
            mine, count = first, 1
            for batch in islice(batches, world - 1):
                mine = batch if count == rank else mine
                count += 1
            if rank < count:
                yield mine
            elif self._fills:
                yield Filler(mine)


_END = object()


def rounds_of(loader: Any, share: StreamShare) -> int:
    """How many batches each process has of a stream that knows its length."""
    samples = (loader.batch_size or 1) * share.place.world_size
    count = len(loader.dataset)
    return count // samples if loader.drop_last else math.ceil(count / samples)


@contextlib.contextmanager
def _as_in_the_main_process() -> Generator[None, None, None]:
    """A dataset that asks for its worker hears that there is none: it gives all samples, and we share them out."""
    worker = torch_internals.worker
    info, worker._worker_info = worker._worker_info, None
    try:
        yield
    finally:
        worker._worker_info = info
