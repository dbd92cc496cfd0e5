"""Where in the data a run stands, what that means, and whether it still means it when the run goes on."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from trainwright.data.batches import FixedBatches, ReplayedBatches, ResumableBatches
from trainwright.data.exact_json import tensor_bytes
from trainwright.data.first_batches import whole_loader
from trainwright.data.loader import Loader, has_length
from trainwright.data.order import LengthGroupedOrder, SeededOrder
from trainwright.data.phased import samples_in
from trainwright.data.sharded_batches import ShardedBatches
from trainwright.data.sharding import ShardedOrder
from trainwright.data.stream_sharing import EveryNth

logger = logging.getLogger("trainwright")

_FIX = "; go on with the old value, or set ignore_data_skip=True to start the interrupted epoch anew"


class Facts(NamedTuple):
    """What a count of batches is worth nothing without."""

    batch_size: int | None
    accumulation: int
    dataset_length: int | None
    seed: int
    sampling: str
    max_tokens: int | None
    #: None where it changes nothing: each batch of a map-style dataset is the same in any worker.
    workers: int | None
    processes: int
    #: How processes share a stream; None for one process, and for data with an index.
    split: str | None

    @property
    def samples_per_step(self) -> int:
        """Samples of an optimizer step over all processes."""
        return (self.batch_size or 1) * self.accumulation * self.processes


#: What may change in the middle of an epoch.
_AMOUNTS = ("batch_size", "accumulation", "processes")


def facts_of(loader: Any, accumulation: int, seed: int, processes: int = 1, epoch: int = 0) -> Facts:
    """The facts of ``loader`` in an epoch."""
    batches = getattr(loader, "batch_sampler", None)
    batches = batches.batches if isinstance(batches, ShardedBatches) else batches
    by_index = starts_by_index(loader)
    return Facts(
        batch_size=_batch_size(loader),
        accumulation=accumulation,
        dataset_length=samples_in(loader, epoch),
        seed=seed,
        sampling=_sampling(loader),
        max_tokens=getattr(batches, "max_tokens", None) if by_index else None,
        workers=None if by_index else getattr(loader, "num_workers", None),
        processes=processes,
        split=None if by_index or processes == 1 else getattr(loader, "split", None) or "itself",
    )


def starts_by_index(loader: Any) -> bool:
    """Whether ``loader`` can start anywhere without reading what comes before."""
    return isinstance(loader, Loader) and isinstance(loader.batch_sampler, ResumableBatches)


def steps_are_alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether an epoch surely has the same steps at two positions, however their samples are shared out."""

    def steps(place: Mapping[str, Any]) -> tuple[Any, ...]:
        size, accumulation, processes = (place.get(name) for name in _AMOUNTS)
        if size is None:
            return place.get("dataset_length"), None, (accumulation or 1) * (processes or 1)
        return place.get("dataset_length"), size * (processes or 1), accumulation

    return steps(one) == steps(other)


class Start(NamedTuple):
    """Where to go on."""

    batches: int
    #: Sample of the epoch (of all processes) with which batch number ``batches`` begins, where it does not follow from
    #: the number; where processes share whole batches, the batch.
    sample: int | None = None
    #: Whether the last batch read past should be the last batch consumed before.
    is_comparable: bool = True
    #: By how many batches a stream may end too early, since the last before it was not whole.
    slack: int = 0


def start_from(saved: Mapping[str, Any], now: Facts, loader: Any) -> Start:
    """Where ``saved`` is with the present settings; raises where it is nowhere, and says what has changed."""
    changes = _changes(saved, now)
    amounts = [change for name, change in changes.items() if name in _AMOUNTS]
    others = [change for name, change in changes.items() if name not in _AMOUNTS]
    if saved["batches"] == 0:
        if changes:
            logger.warning("Resuming at the start of an epoch, with changes: %s.", "; ".join(changes.values()))
        return Start(0)
    if others:
        raise ValueError(
            f"this run stands in epoch {saved['epoch']}, and its place in the data cannot be "
            f"found: {'; '.join(others)}{_FIX}"
        )
    start = _start_in_epoch(saved, now, loader)
    if amounts:
        logger.warning("%s: continuing after the same number of samples.", "; ".join(amounts))
    return start


def _start_in_epoch(saved: Mapping[str, Any], now: Facts, loader: Any) -> Start:
    batches, samples, size = saved["batches"], saved["samples"], now.batch_size
    sampler = getattr(loader, "batch_sampler", None)
    if not starts_by_index(loader):
        return _start_in_stream(saved, now)
    if isinstance(sampler, FixedBatches) and samples is not None and size is not None:
        number = _number_after(samples, now, sampler)
        if _is_same(saved, now):
            number = batches
        return Start(number, None if samples == samples_before(sampler, number) else samples)
    if saved["batch_size"] != size:
        raise ValueError(
            f"this run stands in epoch {saved['epoch']} with batches of {saved['batch_size']} "
            f"samples, now of {size}, and these batches cannot be cut differently in the middle of an epoch{_FIX}"
        )
    if saved["processes"] == now.processes and saved.get("batches_of_all") is None:
        return Start(batches)
    of_all = saved.get("batches_of_all")
    if of_all is None or isinstance(sampler, FixedBatches):
        raise ValueError(
            f"this run stands in epoch {saved['epoch']} with {saved['processes']} processes, "
            f"now it has {now.processes}, and how its batches are shared among processes is not ours to say{_FIX}"
        )
    if not isinstance(sampler, ShardedBatches):
        return Start(of_all)
    number = batches if saved["processes"] == now.processes else math.ceil(of_all / now.processes)
    return Start(number, None if of_all == number * now.processes else of_all)


def _is_same(saved: Mapping[str, Any], now: Facts) -> bool:
    """Whether batches are numbered as they were."""
    if saved["batch_size"] != now.batch_size or saved["processes"] != now.processes:
        return False
    return now.processes == 1 or saved["accumulation"] == now.accumulation


def _number_after(samples: int, now: Facts, sampler: FixedBatches) -> int:
    """The number of the batch that comes after ``samples`` samples of all processes."""
    if now.processes == 1:
        return math.ceil(samples / sampler.batch_size)
    # Of whole steps: only these have the same samples for any number of processes.
    return math.ceil(samples / now.samples_per_step) * now.accumulation


def _start_in_stream(saved: Mapping[str, Any], now: Facts) -> Start:
    batches, old, size = saved["batches"], saved["batch_size"], now.batch_size
    was, are = saved["processes"], now.processes
    if was != are and "itself" in (saved.get("split"), now.split):
        raise ValueError(
            f"this run stands in epoch {saved['epoch']} with {was} processes, now it has {are}, "
            "and its stream is shared out by its own means (a Hugging Face dataset by its shards, others where they "
            f"say splits_by_process): what each process had read means nothing to another number of them{_FIX}"
        )
    if was != are and 1 in (was, are) and (now.workers or 0) > 1:
        raise ValueError(
            f"this run stands in epoch {saved['epoch']} with {was} processes, now it has {are}, "
            f"and the {now.workers} workers of a single process read a stream in an order of their own{_FIX}"
        )
    if (old == size and was == are) or saved["stream"] is not None:
        # A stream that knows its own state goes on after its last sample, whatever the batches are.
        return Start(batches)
    if old != size and (not old or not size or now.workers):
        raise ValueError(
            f"this run stands in epoch {saved['epoch']} with batches of {old} samples, now of "
            f"{size}, and these batches cannot be cut differently in the middle of an epoch{_FIX}"
        )
    consumed, at_once = batches * (old or 1) * was, (size or 1) * are
    if consumed % at_once:
        what = f"batch size was {old} and is {size} now" if was == are else f"there were {was} processes, now {are}"
        raise ValueError(
            f"{what}, and the {consumed} samples consumed in epoch {saved['epoch']} are not a whole number of such "
            f"batches; choose a batch size that divides them{_FIX}"
        )
    return Start(consumed // at_once, is_comparable=False, slack=((old or 1) * was - 1) // at_once)


_BEGINNING = Start(0)


def samples_before(sampler: FixedBatches, batches: int, first: Start = _BEGINNING) -> int:
    """How many samples (of all processes) the batches up to number ``batches`` hold, where ``first`` was the start."""
    before = first.sample or 0
    order = sampler.sampler
    world = order.world_size if isinstance(order, ShardedOrder) else 1
    samples = before + (batches - (0 if first.sample is None else first.batches)) * sampler.batch_size * world
    if isinstance(order, ShardedOrder):
        return min(samples, order.kept(before))
    return min(samples, len(order)) if has_length(order) else samples


def units_in_epoch(sampler: Any) -> int:
    """Samples of an epoch, or batches where processes share these whole."""
    if isinstance(sampler, ShardedBatches):
        return min(len(sampler.batches), len(sampler) * sampler.world_size)
    order = sampler.sampler
    is_shared = isinstance(order, ShardedOrder)
    units = len(order.order) if is_shared else len(order)
    if sampler.limit is None:
        return units
    return min(units, len(sampler) * sampler.batch_size * (order.world_size if is_shared else 1))


def place_of_all(loader: Any, batches: int, first: Start, facts: Facts) -> dict[str, int | None]:
    """What all processes together have consumed of an epoch, after ``batches`` batches of each.

    None where it cannot be said: what is shared out by somebody else's sampler, and steps that are not whole.
    """
    found: dict[str, int | None] = {"samples": None, "batches_of_all": None}
    if batches < first.batches:
        # Not in the epoch that was gone on with.
        first = Start(0)
    sampler = getattr(loader, "batch_sampler", None)
    if not starts_by_index(loader):
        return found
    if isinstance(sampler, FixedBatches):
        found["samples"] = _samples_of_all(sampler, batches, first, facts)
    elif isinstance(sampler, ShardedBatches):
        skipped = 0 if first.sample is None else first.sample - first.batches * facts.processes
        found["batches_of_all"] = min(batches * facts.processes + skipped, len(sampler.batches))
    elif facts.processes == 1:
        found["batches_of_all"] = batches
    return found


def _samples_of_all(sampler: FixedBatches, batches: int, first: Start, facts: Facts) -> int | None:
    order = sampler.sampler
    samples = samples_before(sampler, batches, first)
    if facts.processes == 1:
        return samples
    if not isinstance(order, ShardedOrder) or order.step_share != sampler.batch_size * facts.accumulation:
        return None
    is_whole = (batches - (first.batches if first.sample is not None else 0)) % facts.accumulation == 0
    return samples if is_whole or samples >= order.kept(first.sample or 0) else None


def left_out_now(saved: Mapping[str, Any], now: Facts, start: Start) -> dict[int, set[int]]:
    """What ``saved`` leaves out, in present batches: rather a few good samples too many than a bad one."""
    found: dict[int, set[int]] = {}
    old, new = saved["batch_size"], now.batch_size
    for epoch, numbers in saved["left_out"].items():
        chosen = set(numbers)
        is_current = int(epoch) == saved["epoch"] and saved["samples"] is not None
        if old and new and not _is_same(saved, now):
            chosen = _recut_epoch(chosen, saved, now, start if is_current else None)
        found[int(epoch)] = chosen
    return found


def _recut_epoch(numbers: set[int], saved: Mapping[str, Any], now: Facts, start: Start | None) -> set[int]:
    old, new = saved["batch_size"], now.batch_size or 1
    if saved["processes"] == now.processes == 1:
        groups, made = 1, 1
    else:
        # A batch has its samples in several places of the order; those of a whole step are neighbours.
        groups, made = saved["accumulation"], now.accumulation
        numbers = {number // groups for number in numbers}
        old, new = old * groups * saved["processes"], now.samples_per_step
    shift = 0
    if start is not None:
        old_zero = saved["samples"] - saved["batches"] // groups * old
        shift = old_zero - (saved["samples"] - start.batches // made * new)
    return {number * made + place for number in recut(numbers, old, new, shift) for place in range(made)}


def recut(numbers: set[int], old: int, new: int, shift: int = 0) -> set[int]:
    """The batches of ``new`` samples that share a sample with batches ``numbers`` of ``old`` samples.

    ``shift`` says how many samples after batch 0 of the new ones batch 0 of the old ones begins.
    """
    return {
        part
        for number in numbers
        for part in range((number * old + shift) // new, math.ceil(((number + 1) * old + shift) / new))
        if part >= 0
    }


def _changes(saved: Mapping[str, Any], now: Facts) -> dict[str, str]:
    names = {
        "batch_size": "batch size",
        "accumulation": "gradient accumulation",
        "processes": "the number of processes",
        "dataset_length": "the dataset's length",
        "seed": "the data seed",
        "sampling": "the way of sampling",
        "max_tokens": "max_tokens_per_batch",
        "workers": "the number of workers (dataloader_num_workers)",
    }
    return {
        name: f"{words} was {saved[name]} and is {getattr(now, name)} now"
        for name, words in names.items()
        if saved[name] != getattr(now, name)
    }


def _batch_size(loader: Any) -> int | None:
    if not starts_by_index(loader):
        return getattr(loader, "batch_size", None)
    batches = _whole_batches(loader)
    inner = batches.batch_sampler if isinstance(batches, ReplayedBatches) else batches
    return getattr(inner, "batch_size", None)


def _whole_batches(loader: Any) -> Any:
    batches = loader.batch_sampler
    return batches.batches if isinstance(batches, ShardedBatches) else batches


def _sampling(loader: Any) -> str:
    """What decides which samples come when, in a word or two."""
    if not starts_by_index(loader):
        inner = whole_loader(loader)
        inner = inner.loader if isinstance(inner, EveryNth) else inner
        return "a stream" if isinstance(inner, Loader) else f"a loader of type {type(inner).__name__}"
    batches = _whole_batches(loader)
    if isinstance(batches, ReplayedBatches):
        return type(batches.batch_sampler).__name__
    # However many processes share it, the order is the same.
    order = batches.sampler.order if isinstance(batches.sampler, ShardedOrder) else batches.sampler
    if isinstance(order, LengthGroupedOrder):
        # Its order depends on how many samples are sorted together.
        return f"{type(order).__name__} by {order.batch_size}"
    return type(order.sampler if isinstance(order, SeededOrder) else order).__name__


class LastBatch:
    """A batch as it was when it was read, to be recognised later.

    Remembers the tensors and not their numbers: those are read only if a checkpoint is saved. A tensor that was written
    to in the meantime would not be recognised, so ``digest`` is None then.
    """

    def __init__(self, batch: Any) -> None:
        self._leaves = [(path, leaf, _version(leaf)) for path, leaf in _leaves(batch, "")]

    def digest(self) -> str | None:
        """SHA-256 over names, types, shapes and contents."""
        found = hashlib.sha256()
        for path, leaf, version in self._leaves:
            if _version(leaf) != version:
                return None
            found.update(path.encode())
            found.update(_content(leaf))
        return found.hexdigest()


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _leaves(part, f"{path}/{key}")
    elif isinstance(value, (list, tuple)):
        for place, part in enumerate(value):
            yield from _leaves(part, f"{path}/{place}")
    else:
        yield path, value


def _version(leaf: Any) -> int | None:
    """How often a tensor was written to, where it counts that."""
    return leaf._version if isinstance(leaf, torch.Tensor) and not leaf.is_inference() else None


def _content(leaf: Any) -> bytes:
    """The bytes that tell one value from another; only the type where it is none of the usual."""
    if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and not leaf.is_nested:
        return f"{leaf.dtype}{tuple(leaf.shape)}".encode() + tensor_bytes(leaf)
    if isinstance(leaf, np.ndarray) and not leaf.dtype.hasobject:
        return f"{leaf.dtype}{leaf.shape}".encode() + leaf.tobytes()
    if leaf is None or isinstance(leaf, (bool, int, float, complex, str, bytes, np.generic)):
        return repr(leaf).encode()
    # Other objects may show their address when printed.
    return type(leaf).__qualname__.encode()
