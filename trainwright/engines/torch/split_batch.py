"""Cut a batch into pieces along its samples."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from torch import Tensor

from trainwright.engines.torch.targets import count_rows


def cut_batch(batch: object, parts: int) -> list[Any]:
    """``batch`` as ``parts`` pieces of nearly equal size, in order; fewer if it has fewer samples.

    Tensors, arrays and lists with one entry a sample are sliced, without copying; scalars, text and tensors whose first
    dimension is 1 belong to every piece. What cannot be cut (packed sequences, lengths of them) is refused by its name.

    >>> import torch
    >>> [piece["x"].tolist() for piece in cut_batch({"x": torch.arange(5)}, 2)]
    [[0, 1, 2], [3, 4]]
    """
    rows = count_rows(batch)
    parts = max(1, min(parts, rows))
    if parts == 1:
        return [batch]
    size, longer = divmod(rows, parts)
    edges = [index * size + min(index, longer) for index in range(parts + 1)]
    return [_rows_of(batch, slice(start, end), rows, ()) for start, end in pairwise(edges)]


def _rows_of(value: Any, chosen: slice, rows: int, path: tuple[Any, ...]) -> Any:
    """The ``chosen`` samples of one value."""
    if isinstance(value, Mapping):
        pieces = {key: _rows_of(item, chosen, rows, (*path, key)) for key, item in value.items()}
        kind: Any = type(value)
        return pieces if kind is dict else kind(pieces)
    if getattr(value, "is_nested", False):
        raise ValueError(_cannot_cut(path, "is a nested tensor", rows))
    if hasattr(value, "shape") and hasattr(value, "__getitem__"):
        if len(value.shape) == 0 or value.shape[0] == 1:
            return value
        if value.shape[0] != rows:
            raise ValueError(_cannot_cut(path, f"has the shape {tuple(value.shape)}", rows))
        return value[chosen]
    if isinstance(value, (list, tuple)):
        return _rows_of_sequence(value, chosen, rows, path)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError(_cannot_cut(path, f"is a {type(value).__name__}", rows))


def _rows_of_sequence(value: Any, chosen: slice, rows: int, path: tuple[Any, ...]) -> Any:
    """A list with one entry a sample is sliced; (inputs, labels) and the like are structure and kept."""
    if len(value) == rows and not all(_is_batched(item, rows) for item in value):
        return value[chosen]
    pieces = [_rows_of(item, chosen, rows, (*path, index)) for index, item in enumerate(value)]
    return type(value)(*pieces) if hasattr(value, "_fields") else type(value)(pieces)


def _is_batched(value: object, rows: int) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0 and value.shape[0] == rows


def _cannot_cut(path: tuple[Any, ...], what: str, rows: int) -> str:
    name = ".".join(str(part) for part in path) or "the batch"
    return (
        f"A batch of {rows} samples has to be cut into pieces to fit (micro_batch), but cannot be, because {name!r} "
        f"{what}: it has no entry for each sample. Define split_batch(batch, parts) on the Module or the Trainer, or "
        "use smaller batches with gradient_accumulation_steps."
    )
