"""Batches of data in memory, taken from it at once instead of sample by sample.

Where samples are rows of tensors and the collator only stacks them, ``tensor.index_select`` makes the same batch in one
call: same bits, same formats, same order. So it is done where dataset, collator and fetch are known code, none of it
the user's own; whatever is unusual (an index that counts from the end, a tensor that is not contiguous, a missing
field) goes the usual way, with the usual messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import StackDataset, Subset, TensorDataset, default_collate
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

from trainwright.config.origin import class_if_imported, library_of
from trainwright.data.collators import DefaultDataCollator, collate_any, default_data_collator
from trainwright.data.columns import DropColumnsCollator

Collate = Callable[[list[Any]], Any]
#: Makes a batch of the samples with these indices; None where that has to be done the usual way.
Gather = Callable[[Sequence[Any]], Any]

_DENSE = torch.strided
_LABELS = ("label", "label_ids")


class Pinned:
    """A collator whose batches are copied to memory that a GPU reads from directly."""

    def __init__(self, collate: Collate, pin: Callable[[Any], Any]) -> None:
        self.collate, self.pin = collate, pin

    def __call__(self, samples: list[Any]) -> Any:
        return self.pin(self.collate(samples))


def tensor_gather(dataset: Any, collate: Collate) -> Gather | None:
    """How batches are taken from a dataset of tensors; None where it is another, or the collator does more than stack.

    Nothing in it can draw a random number.
    """
    if not is_in_memory(dataset):
        return None
    if isinstance(collate, Pinned):
        inner, pin = tensor_gather(dataset, collate.collate), collate.pin
        return None if inner is None else lambda indices: _pinned(inner(indices), pin)
    if isinstance(dataset, Subset):
        whole = tensor_gather(dataset.dataset, collate)
        return None if whole is None else lambda indices: whole([dataset.indices[index] for index in indices])
    collate, kept = _without_dropping(collate)
    if type(_columns(dataset)) is dict:
        if not _stacks_fields(collate):
            return None
        return lambda indices: _rows_of_dict(_columns(dataset), indices, collate, kept)
    return _tuple_gather(dataset) if _stacks_tuples(collate) else None


def _tuple_gather(dataset: Any) -> Gather:
    checked: Any = None

    def gather(indices: Sequence[Any]) -> Any:
        nonlocal checked
        columns = _columns(dataset)
        if columns is not checked:
            if not _are_plain(columns):
                return None
            checked = columns
        return _rows(columns, indices)

    return gather


def column_gather(dataset: Any, collate: Collate) -> Gather | None:
    """The same for a Hugging Face dataset in torch's format, which gives whole columns and cuts them into samples."""
    kind: Any = class_if_imported("datasets", "Dataset")
    if type(dataset) is not kind or {library_of(kind.__getitem__), library_of(kind.__getitems__)} != {"datasets"}:
        return None
    collate, kept = _without_dropping(collate)
    if dataset.format["type"] != "torch" or not _stacks_fields(collate):
        return None

    def gather(indices: Sequence[Any]) -> Any:
        columns = dataset[list(indices)]
        batch = _batch_of(columns, collate, kept)
        if batch is not None:
            return batch
        # As the dataset itself cuts them.
        count = len(columns[next(iter(columns))])
        return collate([{name: column[row] for name, column in columns.items()} for row in range(count)])

    # Columns that nobody takes are dropped sample by sample, and named once.
    return gather if kept is None or kept.issuperset(dataset.format["columns"]) else None


def is_in_memory(dataset: object) -> bool:
    """Whether ``dataset`` is one of torch's whose samples are rows of tensors in main memory.

    >>> is_in_memory(TensorDataset(torch.ones(3, 2))), is_in_memory([torch.ones(2)])
    (True, False)
    """
    if type(dataset) is Subset and _is_torchs(Subset):
        return is_in_memory(dataset.dataset)
    if type(dataset) not in (TensorDataset, StackDataset) or not _is_torchs(type(dataset)):
        return False
    columns = _columns(dataset)
    values = columns.values() if type(columns) is dict else columns
    return isinstance(columns, (dict, tuple)) and all(type(column) is Tensor for column in values)


def _is_torchs(kind: Any) -> bool:
    """Whether nobody has put another method into torch's class."""
    methods = [getattr(kind, name) for name in ("__getitem__", "__getitems__") if hasattr(kind, name)]
    return all(library_of(method) == "torch" for method in methods)


def _columns(dataset: Any) -> Any:
    """The tensors, as they are now: a tuple, or a dict by field."""
    return dataset.tensors if type(dataset) is TensorDataset else dataset.datasets


def _without_dropping(collate: Any) -> tuple[Any, frozenset[str] | None]:
    """The collator that makes batches, and the only fields that come to it."""
    if type(collate) is DropColumnsCollator and collate.keep is not None:
        return collate.collate, frozenset(collate.keep)
    return collate, None


def _stacks_fields(collate: Any) -> bool:
    if type(collate) is DefaultDataCollator:
        return collate.return_tensors == "pt"
    if default_collate_fn_map[Tensor] is not collate_tensor_fn:
        return False
    return collate in (collate_any, default_data_collator, default_collate)


def _stacks_tuples(collate: Any) -> bool:
    return collate in (collate_any, default_collate) and default_collate_fn_map[Tensor] is collate_tensor_fn


def _rows(columns: tuple[Any, ...], indices: Sequence[Any]) -> list[Tensor] | None:
    try:
        chosen = torch.tensor(indices)
    except (TypeError, ValueError, RuntimeError):
        return None
    try:
        return [column.index_select(0, chosen) for column in columns]
    except (IndexError, RuntimeError):
        # The usual way says what is wrong with the index.
        return None


def _are_plain(columns: Any) -> bool:
    """Whether stacked rows look in memory like rows that were taken at once."""
    for column in columns:
        if type(column) is not Tensor or not column.is_cpu or column.layout is not _DENSE or column.requires_grad:
            return False
        if not column.is_contiguous() or column.is_quantized or column.is_conj() or column.is_neg():
            return False
    return True


def _rows_of_dict(columns: Any, indices: Sequence[Any], collate: Any, kept: frozenset[str] | None) -> Any:
    if type(columns) is not dict or (kept is not None and not kept.issuperset(columns)):
        return None
    tensors = tuple(columns.values())
    rows = _rows(tensors, indices) if _are_plain(tensors) else None
    return None if rows is None else _batch_of(dict(zip(columns, rows, strict=True)), collate, kept)


def _batch_of(columns: Mapping[str, Any], collate: Any, kept: frozenset[str] | None) -> dict[str, Any] | None:
    """What ``collate`` would make of the rows of these columns; None where it has to see them."""
    if kept is not None and not kept.issuperset(columns):
        return None
    for column in columns.values():
        if type(column) is not Tensor or not column.ndim or not column.is_contiguous() or column.layout is not _DENSE:
            return None
    if collate is default_collate:
        return dict(columns)
    batch: dict[str, Any] = {}
    for name in _LABELS:
        if name in columns:
            labels = _labels(name, columns[name])
            if labels is None:
                return None
            batch["labels"] = labels
            break
    return batch | {name: column for name, column in columns.items() if name not in _LABELS}


def _labels(name: str, column: Tensor) -> Tensor | None:
    """As ``default_data_collator`` makes ``labels`` of a field of another name."""
    if name == "label_ids":
        return column
    if column.ndim != 1 or not len(column):
        return None
    return column.to(torch.long if isinstance(column[0].item(), int) else torch.float)


def _pinned(batch: Any, pin: Callable[[Any], Any]) -> Any:
    return None if batch is None else pin(batch)
