"""Collators that need no tokenizer: a list of samples in, one batch out.

The names, arguments and results are those of Hugging Face's collators, so that either can stand in for the other.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch.utils.data import default_collate, get_worker_info

from trainwright.config.origin import class_if_imported
from trainwright.data.collators_lm import (
    DataCollatorForLanguageModeling,
    DataCollatorForPermutationLanguageModeling,
    DataCollatorForWholeWordMask,
)
from trainwright.data.collators_text import (
    DataCollatorForMultipleChoice,
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
)

__all__ = [
    "DataCollatorForLanguageModeling",
    "DataCollatorForMultipleChoice",
    "DataCollatorForPermutationLanguageModeling",
    "DataCollatorForSeq2Seq",
    "DataCollatorForTokenClassification",
    "DataCollatorForWholeWordMask",
    "DataCollatorWithFlattening",
    "DataCollatorWithPadding",
    "DefaultDataCollator",
    "collate_any",
    "default_data_collator",
]

_LABEL_KEYS = ("label", "label_ids")


def collate_any(features: list[Any]) -> Any:
    """A batch from samples of any usual kind.

    Dicts and objects with fields go through ``default_data_collator``; tensors, arrays, numbers, strings, tuples and
    lists through torch's own collation.
    """
    first = features[0]
    # The abstract class is asked last: that takes a microsecond, twice a batch.
    if type(first) is dict or isinstance(first, Mapping):
        return default_data_collator(features)
    if isinstance(first, (tuple, list)):
        return _collate_tuples(features)
    # Tensors have a __dict__ too, so only what torch cannot collate counts as an object with fields.
    if dataclasses.is_dataclass(first) or (
        hasattr(first, "__dict__") and not isinstance(first, (torch.Tensor, np.ndarray))
    ):
        return default_data_collator(features)
    return default_collate(features)


def only_stacks(collate: Callable[..., Any]) -> bool:
    """Whether samples go into a batch as they are, so that all have the same shape; others pad, pack or cut.

    >>> only_stacks(default_data_collator), only_stacks(DataCollatorWithPadding)
    (True, False)
    """
    theirs = sys.modules.get("transformers.data.data_collator")
    functions = (collate_any, default_data_collator, default_collate, getattr(theirs, "default_data_collator", None))
    classes = (DefaultDataCollator, class_if_imported("transformers.data.data_collator", "DefaultDataCollator"))
    return collate in functions or isinstance(collate, classes)


def default_data_collator(features: list[Any], return_tensors: str = "pt") -> dict[str, Any]:
    """Stack each field of the samples; ``label`` and ``label_ids`` become ``labels``.

    The first sample says which fields there are. Fields that are None or a string in it are left out.
    """
    if type(features[0]) is not dict and not isinstance(features[0], Mapping):
        features = [vars(feature) for feature in features]
    if return_tensors == "pt":
        stack, labels = _stack_torch, _labels_torch
    elif return_tensors == "np":
        stack, labels = _stack_numpy, _labels_numpy
    else:
        raise ValueError(f"return_tensors must be 'pt' or 'np', got {return_tensors!r}")
    first: Mapping[str, Any] = features[0]
    batch: dict[str, Any] = {}
    for key in _LABEL_KEYS:
        if first.get(key) is not None:
            batch["labels"] = labels(key, [feature[key] for feature in features])
            break
    for key, value in first.items():
        if value is not None and key not in _LABEL_KEYS and not isinstance(value, str):
            batch[key] = stack(key, [feature[key] for feature in features])
    return batch


@dataclasses.dataclass
class DefaultDataCollator:
    """``default_data_collator`` as an object that remembers ``return_tensors``."""

    return_tensors: str = "pt"

    def __call__(self, features: list[Any], return_tensors: str | None = None) -> dict[str, Any]:
        return default_data_collator(features, return_tensors or self.return_tensors)


class DataCollatorWithFlattening(DefaultDataCollator):
    """Joins the samples of a batch into one row without padding.

    The first label of each sample is ``separator_id``, so that no sample is asked to predict the start of the next.
    ``position_ids`` start again with each sample. The attention must keep samples apart by itself: by position ids, by
    ``return_flash_attn_kwargs`` (the boundaries, for FlashAttention) or by ``return_seq_idx``.
    """

    def __init__(
        self,
        *args: Any,
        return_position_ids: bool = True,
        separator_id: int = -100,
        return_flash_attn_kwargs: bool = False,
        return_seq_idx: bool = False,
        position_ids_start: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.return_position_ids = return_position_ids
        self.separator_id = separator_id
        self.return_flash_attn_kwargs = return_flash_attn_kwargs
        self.return_seq_idx = return_seq_idx
        self.position_ids_start = position_ids_start

    def __call__(
        self, features: list[Any], return_tensors: str | None = None, separator_id: int | None = None
    ) -> dict[str, Any]:
        array = _array_maker(return_tensors or self.return_tensors)
        separator = self.separator_id if separator_id is None else separator_id
        rows = [_as_list(feature["input_ids"]) for feature in features]
        targets = [_as_list(feature["labels"]) for feature in features] if "labels" in features[0] else rows
        sizes = [len(row) for row in rows]
        batch: dict[str, Any] = {
            "input_ids": array([[token for row in rows for token in row]], 64),
            "labels": array([[token for target in targets for token in [separator, *target[1:]]]], 64),
        }
        if self.return_position_ids:
            start = self.position_ids_start
            batch["position_ids"] = array([[start + place for size in sizes for place in range(size)]], 64)
        if self.return_seq_idx:
            batch["seq_idx"] = array([[number for number, size in enumerate(sizes) for _ in range(size)]], 32)
        if self.return_flash_attn_kwargs:
            boundaries = [0, *np.cumsum(sizes).tolist()]
            batch["cu_seq_lens_q"] = array(boundaries, 32)
            batch["cu_seq_lens_k"] = array(boundaries, 32)
            batch["max_length_q"] = batch["max_length_k"] = max(sizes)
        return batch


def _collate_tuples(features: list[Any]) -> Any:
    first = features[0]
    # Inside a worker torch's collation writes straight into shared memory, which saves a copy; outside, it is slower.
    if type(first) is tuple and all(type(part) is torch.Tensor for part in first) and get_worker_info() is None:
        try:
            return [torch.stack(parts) for parts in zip(*features, strict=True)]
        except (RuntimeError, TypeError, ValueError):
            pass  # torch's own collation says what does not fit
    return default_collate(features)


def _stack_torch(key: str, values: list[Any]) -> torch.Tensor:
    first = values[0]
    try:
        if isinstance(first, torch.Tensor):
            return torch.stack(values)
        if isinstance(first, np.ndarray):
            return torch.from_numpy(np.stack(values))
        return _from_lists(values)
    except (RuntimeError, TypeError, ValueError) as error:
        _explain(key, values, error)


def _from_lists(values: list[Any]) -> torch.Tensor:
    """``torch.tensor(values)``, by way of numpy for whole numbers, where that is several times faster."""
    leaf: Any = values
    while type(leaf) is list and leaf:
        leaf = leaf[0]
    if type(leaf) is int:
        array = np.array(values)
        # Numbers too large for int64, or a fraction further on: torch decides what becomes of them.
        if array.dtype == np.int64:
            return torch.from_numpy(array)
    return torch.tensor(values)


def _stack_numpy(key: str, values: list[Any]) -> np.ndarray:
    try:
        return np.stack(values) if isinstance(values[0], np.ndarray) else np.array(values)
    except ValueError as error:
        _explain(key, values, error)


def _labels_torch(key: str, values: list[Any]) -> torch.Tensor:
    first = values[0]
    try:
        if key == "label_ids":
            if isinstance(first, torch.Tensor):
                return torch.stack(values)
            return torch.tensor(values, dtype=torch.long if _is_whole(first[0]) else torch.float)
        if isinstance(first, torch.Tensor):
            if first.ndim:  # one-element tensors of any shape are one label each
                values = [value.reshape(()) for value in values]
            return torch.stack(values).to(torch.long if _is_whole(first.item()) else torch.float)
        return torch.tensor(values, dtype=torch.long if _is_whole(first) else torch.float)
    except (RuntimeError, TypeError, ValueError) as error:
        _explain(key, values, error)


def _labels_numpy(key: str, values: list[Any]) -> np.ndarray:
    first = values[0]
    if key == "label_ids":
        if isinstance(first, np.ndarray):
            return np.stack(values)
        return np.array(values, dtype=np.int64 if _is_whole(first[0]) else np.float32)
    label = first.item() if isinstance(first, np.ndarray) else first
    return np.array(values, dtype=np.int64 if _is_whole(label) else np.float32)


def _is_whole(value: object) -> bool:
    return isinstance(value, (int, np.integer))


def _explain(key: str, values: Sequence[Any], error: Exception) -> NoReturn:
    """Say which field did not fit, and what to do about it."""
    word = next((value for value in values if isinstance(value, str)), None)
    if word is not None:
        raise ValueError(
            f"cannot make one tensor of {key!r}: it holds words, such as {word!r}. Give each class a number, as in "
            "label2id = {'negative': 0, 'positive': 1}; texts are tokenized before they come here"
        ) from error
    text = _first_leaf(values)
    if isinstance(text, str):
        raise ValueError(
            f"cannot make one tensor of {key!r}: it holds text, such as {text!r}, where numbers belong: convert it in "
            "the dataset, as in [float(value) for value in values]; texts are tokenized before they come here"
        ) from error
    shapes = {tuple(np.shape(value)) if hasattr(value, "shape") else _outer_length(value) for value in values}
    reason = f"its samples differ in shape: {', '.join(sorted(map(str, shapes)))}" if len(shapes) > 1 else str(error)
    raise ValueError(
        f"cannot make one tensor of {key!r}: {reason}. Pad or truncate the samples to one shape, or give a padding "
        "data_collator such as DataCollatorWithPadding(tokenizer)"
    ) from error


def _first_leaf(values: Any) -> Any:
    while isinstance(values, (list, tuple)) and values:
        values = values[0]
    return values


def _outer_length(value: object) -> Any:
    return (len(value),) if isinstance(value, (list, tuple)) else type(value).__name__


def _as_list(values: Any) -> list[int]:
    return values.tolist() if hasattr(values, "tolist") else list(values)


def _array_maker(return_tensors: str) -> Callable[[list[Any], int], Any]:
    if return_tensors == "pt":
        return lambda values, bits: torch.tensor(values, dtype=torch.int64 if bits == 64 else torch.int32)
    if return_tensors == "np":
        return lambda values, bits: np.array(values, dtype=np.int64 if bits == 64 else np.int32)
    raise ValueError(f"return_tensors must be 'pt' or 'np', got {return_tensors!r}")
