"""What a sample looks like to a person: its text, its picture, or its row."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from trainwright.core.data_words import DataWords
from trainwright.plots.png import png

_TEXTS = ("text", "sentence", "question", "prompt", "sentence1", "premise", "content", "document")
_TOKENS, _PICTURES = "input_ids", ("pixel_values", "pixels", "image", "images", "x")
_LABELS = {"labels", "label", "label_ids"}
_LONGEST, _WIDEST = 400, 128


def input_of(row: Any, tokenizer: Any, words: DataWords | None = None) -> dict[str, str]:
    """``{"image": PNG in base64}`` or ``{"input": words}``; empty for what cannot be shown.

    >>> input_of({"text": "a good film", "label": 1}, None)
    {'input': 'a good film'}
    """
    if isinstance(row, (tuple, list)) and len(row):
        # (input, label), as most datasets of images give it.
        row = {"x": row[0]}
    if not isinstance(row, Mapping):
        row = {"x": row}
    for name in _PICTURES:
        if name in row and (picture := _picture(row[name])) is not None:
            return {"image": base64.b64encode(png(picture)).decode()}
    for name in _TEXTS:
        if isinstance(row.get(name), str):
            return {"input": _short(row[name])}
    if _TOKENS in row and hasattr(tokenizer, "decode"):
        return {"input": _short(str(tokenizer.decode(row[_TOKENS], skip_special_tokens=True)))}
    if words is not None and words.columns:
        vectors = [found for value in row.values() if (found := _array(value)) is not None and found.ndim == 1]
        known = next((text for found in vectors if (text := words.row(found.tolist()))), "")
        if known:
            return {"input": _short(known)}
    plain = {name: value for name, value in row.items() if name not in _LABELS and _is_plain(value)}
    return {"input": _short(", ".join(f"{name} {_value(value)}" for name, value in plain.items()))} if plain else {}


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _array(value: Any) -> np.ndarray | None:
    if isinstance(value, (str, bytes, Mapping)) or value is None:
        return None
    if hasattr(value, "detach"):
        value = value.detach().cpu().float().numpy()
    try:
        found = np.asarray(value)
    except (TypeError, ValueError):
        return None
    return found if found.dtype.kind in "biuf" else None


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        return True
    found = _array(value)
    return found is not None and found.size <= 64


def _value(value: Any) -> str:
    found = None if isinstance(value, str) else _array(value)
    if found is None:
        return str(value)
    return " ".join(f"{one:.4g}" for one in found.reshape(-1).tolist())


def _picture(value: Any) -> np.ndarray | None:
    """Pixels from 0 to 255 as (height, width) or (height, width, 3), small enough for a report."""
    found = _array(value)
    if found is None or found.ndim not in (2, 3) or min(found.shape[-2:]) == 0:
        return None
    if found.ndim == 3 and found.shape[0] in (1, 3, 4) and found.shape[2] not in (1, 3, 4):
        found = found.transpose(1, 2, 0)
    if found.ndim == 3:
        if found.shape[2] not in (1, 3, 4):
            return None
        found = found[..., 0] if found.shape[2] == 1 else found[..., :3]
    if min(found.shape[:2]) < 4:
        return None
    step = -(-max(found.shape[:2]) // _WIDEST)
    found = found[::step, ::step]
    if found.dtype == np.uint8:
        return found
    # Whatever it was normalized by, the darkest pixel is black and the brightest white.
    values = np.nan_to_num(found.astype(np.float64))
    low, high = values.min(), values.max()
    return ((values - low) / max(high - low, 1e-12) * 255).astype(np.uint8)
