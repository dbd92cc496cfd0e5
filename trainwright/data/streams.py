"""How far a stream was read, in the stream's own words: ``state_dict()`` and ``load_state_dict()``.

Torch-style stateful datasets, Hugging Face's streaming datasets and loaders such as torchdata's StatefulDataLoader
offer them. Whatever does not is resumed by reading its epoch again and counting.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from trainwright.config.origin import class_if_imported
from trainwright.data.exact_json import from_plain, to_plain
from trainwright.data.loader import Loader
from trainwright.data.seeding import StreamRandom

logger = logging.getLogger("trainwright")


class StreamState:
    """Takes and restores the state of the stream behind ``loader``; ``reason`` says why it cannot, where it cannot."""

    def __init__(self, loader: object) -> None:
        self._holder, self.reason = _state_holder(loader)
        self._was_loaded = False

    @property
    def works(self) -> bool:
        return self.reason is None

    def snapshot(self, *, has_read: bool) -> Any:
        """The state as JSON data; None, with ``works`` False from then on, if it has no such form."""
        if has_read and self._was_loaded:
            self._forget_start()
        try:
            return to_plain(self._holder.state_dict())
        except TypeError as error:
            self.reason = f"the state_dict() of {type(self._holder).__name__} cannot be kept as JSON ({error})"
            return None

    def load(self, plain: object) -> None:
        """Let the next iteration go on where ``plain`` was taken."""
        # What a holder draws while it takes the state up is not drawn in a run that goes straight on. Asked for its
        # state, torchdata's loader takes it up here and not in the next iteration, whose draws count.
        if getattr(self._holder, "num_workers", 0):
            logger.warning(
                "The state of %s does not hold the random numbers of its workers: what its dataset draws at random "
                "will not be what an uninterrupted run had drawn.",
                type(self._holder).__name__,
            )
        with StreamRandom(0, 0):
            self._holder.load_state_dict(from_plain(plain))
            self._holder.state_dict()
        self._was_loaded = True

    def _forget_start(self) -> None:
        """Hugging Face's datasets start every later pass over the same epoch where they were once told to start."""
        self._was_loaded = False
        if getattr(self._holder, "_starting_state_dict", None) is not None:
            self._holder._starting_state_dict = None


def _state_holder(loader: object) -> tuple[Any, str | None]:
    """Whose ``state_dict()`` to use, or why nobody's."""
    if not isinstance(loader, Loader):
        name = type(loader).__name__
        if not _offers_state(loader):
            return None, f"a {name} cannot start in the middle"
        return loader, None
    source = loader.stream_source
    name = type(source).__name__
    if not _offers_state(source):
        return None, f"{name} offers no state_dict() and load_state_dict()"
    if loader.num_workers > 0:
        return None, f"workers read ahead, each with its own copy of {name}, so its state is not that of the run"
    shuffled = class_if_imported("datasets.iterable_dataset", "BufferShuffledExamplesIterable")
    if any(isinstance(part, shuffled) for part in _parts(source)):
        return None, f"the state_dict() of {name} leaves out what its shuffle buffer holds"
    if any(_may_lose_a_batch(part) for part in _parts(source)):
        return None, f"the state_dict() of {name} is inexact where map(batched=True) meets a table format"
    return source, None


def _offers_state(thing: object) -> bool:
    return callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))


def _parts(source: object) -> Iterator[Any]:
    """What a Hugging Face streaming dataset is made of; nothing for others."""
    waiting = [getattr(source, "_ex_iterable", None)]
    while waiting:
        part = waiting.pop()
        if part is not None:
            yield part
            waiting += [getattr(part, "ex_iterable", None), *(getattr(part, "ex_iterables", None) or ())]


def _may_lose_a_batch(part: object) -> bool:
    """Whether this is the case that the documentation of ``IterableDataset.state_dict`` excepts."""
    return bool(getattr(part, "batched", False)) and bool(getattr(getattr(part, "formatting", None), "is_table", False))
