"""Few shapes: a graph is compiled for one shape, so batches of text are padded to one of a few lengths."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

#: What stands at a position that is no token, by the name of the column.
_FILL = {
    "attention_mask": 0,
    "token_type_ids": 0,
    "position_ids": 0,
    "labels": -100,
    "special_tokens_mask": 1,
}


def bucket_length(length: int, most: int | None) -> int:
    """The length that texts of ``length`` tokens are padded to, at most ``most``."""
    step = 16 if length <= 128 else 64
    rounded = -(-length // step) * step
    return length if most is not None and length > most else min(rounded, most or rounded)


def padded(given: object, config: object) -> Any:
    """``given`` with every text padded on the right to a bucket's length; as it is where that could change results.

    Padding changes nothing where the model is told what is padding, so there must be an attention mask, and nothing in
    the batch that runs along the text and whose meaning is not known.
    """
    if not isinstance(given, dict):
        return given
    mask: Any = given.get("attention_mask")
    tokens: Any = given.get("input_ids")
    if not _is_table(mask) or not _is_table(tokens) or mask.shape != tokens.shape:
        return given
    length = int(mask.shape[1])
    missing = bucket_length(length, getattr(config, "max_position_embeddings", None)) - length
    along = {
        name: value
        for name, value in given.items()
        if isinstance(value, Tensor) and value.ndim > 1 and length in value.shape[1:]
    }
    known: dict[str, int] = {**_FILL, "input_ids": getattr(config, "pad_token_id", None) or 0}
    if missing == 0 or any(name not in known or value.shape != mask.shape for name, value in along.items()):
        return given
    return given | {name: F.pad(value, (0, missing), value=known[name]) for name, value in along.items()}


def _is_table(value: object) -> bool:
    return isinstance(value, Tensor) and value.ndim == 2 and not torch.is_floating_point(value)
