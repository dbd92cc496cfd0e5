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
from trainwright.data.loader import Loader, has_length
from trainwright.data.order import LengthGroupedOrder, SeededOrder
from trainwright.data.plain import tensor_bytes

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


def facts_of(loader: Any, accumulation: int, seed: int) -> Facts:
    """The facts of ``loader``."""
    batches = getattr(loader, "batch_sampler", None)
    dataset = getattr(loader, "dataset", None)
    by_index = starts_by_index(loader)
    return Facts(
        batch_size=_batch_size(loader),
        accumulation=accumulation,
        dataset_length=len(dataset) if dataset is not None and has_length(dataset) else None,
        seed=seed,
        sampling=_sampling(loader),
        max_tokens=getattr(batches, "max_tokens", None) if by_index else None,
        workers=None if by_index else getattr(loader, "num_workers", None),
    )


def starts_by_index(loader: Any) -> bool:
    """Whether ``loader`` can start anywhere without reading what comes before."""
    return isinstance(loader, Loader) and isinstance(loader.batch_sampler, ResumableBatches)


class Start(NamedTuple):
    """Where to go on."""

    batches: int
    #: Sample of the epoch with which batch number ``batches`` begins, where it does not follow from the number.
    sample: int | None = None
    #: Whether the last batch read past should be the last batch consumed before.
    is_comparable: bool = True


def start_from(saved: Mapping[str, Any], now: Facts, loader: Any) -> Start:
    """Where ``saved`` is with the present settings; raises where it is nowhere, and says what has changed."""
    changes = _changes(saved, now)
    amounts = [change for name, change in changes.items() if name in ("batch_size", "accumulation")]
    others = [change for name, change in changes.items() if name not in ("batch_size", "accumulation")]
    if saved["batches"] == 0:
        if changes:
            logger.warning("Resuming at the start of an epoch, with changes: %s.", "; ".join(changes.values()))
        return Start(0)
    if others:
        raise ValueError(
            f"this run was interrupted in the middle of epoch {saved['epoch']}, and its place in the data cannot be "
            f"found: {'; '.join(others)}{_FIX}"
        )
    start = _start_in_epoch(saved, now, loader)
    if amounts:
        logger.warning("%s: continuing after the same number of samples.", "; ".join(amounts))
    return start


def _start_in_epoch(saved: Mapping[str, Any], now: Facts, loader: Any) -> Start:
    batches, samples, size = saved["batches"], saved["samples"], now.batch_size
    has_same_size = saved["batch_size"] == size
    sampler = getattr(loader, "batch_sampler", None)
    if samples is not None and size is not None and isinstance(sampler, FixedBatches):
        number = batches if has_same_size else math.ceil(samples / size)
        return Start(number, None if samples == samples_before(sampler, number) else samples)
    if has_same_size or saved["stream"] is not None:
        # A stream that knows its own state goes on after its last sample, whatever the batches are.
        return Start(batches)
    old = saved["batch_size"]
    if starts_by_index(loader) or not old or not size or now.workers:
        raise ValueError(
            f"this run was interrupted in the middle of epoch {saved['epoch']} with batches of {old} samples, now of "
            f"{size}, and these batches cannot be cut differently in the middle of an epoch{_FIX}"
        )
    if batches * old % size:
        raise ValueError(
            f"batch size was {old} and is {size} now, and the {batches * old} samples consumed in epoch "
            f"{saved['epoch']} are not a whole number of such batches; choose a batch size that divides them{_FIX}"
        )
    return Start(batches * old // size, is_comparable=False)


def samples_before(sampler: FixedBatches, batches: int) -> int:
    """How many samples the first ``batches`` batches of an epoch hold."""
    samples = batches * sampler.batch_size
    return min(samples, len(sampler.sampler)) if has_length(sampler.sampler) else samples


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
    batches = loader.batch_sampler
    inner = batches.batch_sampler if isinstance(batches, ReplayedBatches) else batches
    return getattr(inner, "batch_size", None)


def _sampling(loader: Any) -> str:
    """What decides which samples come when, in a word or two."""
    if not starts_by_index(loader):
        return "a stream" if isinstance(loader, Loader) else f"a loader of type {type(loader).__name__}"
    batches = loader.batch_sampler
    if isinstance(batches, ReplayedBatches):
        return type(batches.batch_sampler).__name__
    order = batches.sampler
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
