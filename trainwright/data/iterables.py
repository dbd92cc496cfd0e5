"""Datasets whose samples come by iterating only."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset

from trainwright.data.order import set_epoch_of

logger = logging.getLogger("trainwright")


class Iterated(IterableDataset[Any]):
    """Lets torch iterate an object that has ``__iter__`` and no index, but is none of its ``IterableDataset``s."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        return iter(self.source)

    def set_epoch(self, epoch: int) -> None:
        set_epoch_of(self.source, epoch)


class SizedIterated(Iterated):
    def __len__(self) -> int:
        return len(self.source)


def is_iterable(dataset: Any) -> bool:
    """Whether samples come by iterating only."""
    if isinstance(dataset, IterableDataset):
        return True
    return hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")


def has_length(dataset: Any) -> bool:
    """Whether ``len(dataset)`` gives a number."""
    try:
        return len(dataset) is not None
    except (TypeError, AttributeError, NotImplementedError):
        # Ray's datasets raise AttributeError, and some base classes define a __len__ that only raises.
        return False


def is_hugging_face_stream(dataset: Any) -> bool:
    """Whether ``dataset`` is a streaming one of Hugging Face; imports nothing that nobody has imported."""
    module = sys.modules.get("datasets")
    return module is not None and isinstance(dataset, module.IterableDataset)


def as_iterable(dataset: Any, workers: int, processes: int = 1) -> IterableDataset[Any]:
    """``dataset`` as torch wants it."""
    if not isinstance(dataset, IterableDataset):
        if isinstance(dataset, Iterator):
            raise ValueError(
                f"a {type(dataset).__name__} can be iterated only once, so it cannot serve several epochs or a resumed "
                "run; give an object whose __iter__ starts afresh, or datasets.IterableDataset.from_generator(...)"
            )
        dataset = SizedIterated(dataset) if has_length(dataset) else Iterated(dataset)
    if workers > 1 and processes == 1 and not hasattr(dataset, "column_names"):
        # Hugging Face's streaming datasets share the work out by themselves; among several processes we do.
        logger.warning(
            "%d workers each iterate the whole of %s unless its __iter__ shares the samples out with "
            "torch.utils.data.get_worker_info(); set dataloader_num_workers to 0 or 1 if it does not.",
            workers,
            type(getattr(dataset, "source", dataset)).__name__,
        )
    return dataset
