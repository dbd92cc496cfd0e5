"""Batches of token sequences with more padding than they need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from trainwright.engines.torch.targets import IGNORED, is_mapping
from trainwright.training.setup import Setup

#: Pad tokens that are put to each sequence.
MORE = 8
_IDS, _MASK, _POSITIONS = "input_ids", "attention_mask", "position_ids"
#: What has an entry for each token for sure; anything else of that shape may have it by chance.
_PER_TOKEN = frozenset({_IDS, _MASK, _POSITIONS, "token_type_ids", "labels"})


def why_not_padded(setup: Setup, batch: Any) -> str | None:
    """Why a batch says nothing about padding, or None."""
    if not is_mapping(batch) or not isinstance(batch.get(_IDS), Tensor) or batch[_IDS].ndim != 2:
        return "its batches have no input_ids to pad"
    mask = batch.get(_MASK)
    if not isinstance(mask, Tensor) or mask.shape != batch[_IDS].shape:
        return "its batches have no attention_mask, which says what is padding"
    if _room(setup, batch) < 1:
        return "its sequences are as long as the model takes them"
    return None


def more(setup: Setup, batch: Any) -> int:
    """Pad tokens for which there is room."""
    return min(MORE, _room(setup, batch))


def _room(setup: Setup, batch: Any) -> int:
    config = getattr(setup.model, "config", None)
    most = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    return MORE if not isinstance(most, int) else most - batch[_IDS].shape[1]


def pads_left(setup: Setup, batch: Any) -> bool:
    """Whether its padding stands before the sequences: as it does already, or as the tokenizer says."""
    mask = batch[_MASK]
    if bool((mask == 0).any()):
        return bool((mask[:, 0] == 0).any()) and not bool((mask[:, -1] == 0).any())
    return getattr(setup.processing_class, "padding_side", "right") == "left"


def padded(setup: Setup, batch: Any, count: int) -> Any:
    """``batch`` with ``count`` more pad tokens in each sequence, which masks and labels leave out."""
    length, left = batch[_IDS].shape[1], pads_left(setup, batch)
    per_token = _PER_TOKEN.union(setup.label_names)
    kind: Any = type(batch)
    found = {
        name: _padded(value, count, left, _filler(setup, name, setup.label_names))
        if name in per_token and _is_per_token(name, value, batch[_IDS])
        else value
        for name, value in batch.items()
    }
    if isinstance(positions := found.get(_POSITIONS), Tensor) and not left:
        steps = torch.arange(1, count + 1)
        positions[..., length:] = positions[..., length - 1 : length] + steps
    return found if kind is dict else kind(found)


def _is_per_token(name: str, value: Any, ids: Tensor) -> bool:
    if not isinstance(value, Tensor) or value.shape != ids.shape:
        return False
    return name == _MASK or not (value.is_floating_point() or value.dtype == torch.bool)


def _padded(value: Tensor, count: int, left: bool, filler: int) -> Tensor:
    block = value.new_full((value.shape[0], count), filler)
    return torch.cat([block, value] if left else [value, block], dim=1)


def _filler(setup: Setup, name: str, labels: Sequence[str]) -> int:
    if name == _IDS:
        found = getattr(setup.processing_class, "pad_token_id", None)
        config = getattr(setup.model, "config", None)
        found = getattr(config, "pad_token_id", None) if found is None else found
        return found if isinstance(found, int) and found >= 0 else 0
    return IGNORED if name in labels or name == "labels" else 0
