"""Nested Python data as JSON and back, exactly: tuples, bytes, arrays and tensors included.

States of streams are kept in checkpoints this way. What has no plain form raises ``TypeError``.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import torch

_TUPLE, _PAIRS, _BYTES, _ARRAY, _TENSOR = "__tuple__", "__pairs__", "__bytes__", "__array__", "__tensor__"
_TAGS = frozenset((_TUPLE, _PAIRS, _BYTES, _ARRAY, _TENSOR))


def to_plain(value: object) -> Any:
    """``value`` as data that JSON can hold; shares nothing with it.

    >>> to_plain({"seen": 3, "at": (1, 2)})
    {'seen': 3, 'at': {'__tuple__': [1, 2]}}
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list):
        return [to_plain(part) for part in value]
    if isinstance(value, tuple):
        return {_TUPLE: [to_plain(part) for part in value]}
    if isinstance(value, dict):
        if all(isinstance(key, str) and key not in _TAGS for key in value):
            return {key: to_plain(part) for key, part in value.items()}
        # JSON would turn keys into text.
        return {_PAIRS: [[to_plain(key), to_plain(part)] for key, part in value.items()]}
    if isinstance(value, bytes):
        return {_BYTES: _text(value)}
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return {_ARRAY: [value.dtype.str, list(value.shape), _text(value.tobytes())]}
    if isinstance(value, torch.Tensor):
        return {_TENSOR: [str(value.dtype).removeprefix("torch."), list(value.shape), _text(tensor_bytes(value))]}
    raise TypeError(f"a {type(value).__name__} has no plain form")


def from_plain(value: object) -> Any:
    """What ``to_plain`` was given."""
    if isinstance(value, list):
        return [from_plain(part) for part in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1 or next(iter(value)) not in _TAGS:
        return {key: from_plain(part) for key, part in value.items()}
    tag, content = next(iter(value.items()))
    if tag == _TUPLE:
        return tuple(from_plain(part) for part in content)
    if tag == _PAIRS:
        return {from_plain(key): from_plain(part) for key, part in content}
    if tag == _BYTES:
        return base64.b64decode(content)
    kind, shape, text = content
    raw = bytearray(base64.b64decode(text))
    if tag == _ARRAY:
        return np.frombuffer(raw, np.dtype(kind)).reshape(shape).copy()
    dtype = getattr(torch, kind)
    return torch.frombuffer(raw, dtype=dtype).reshape(shape).clone() if raw else torch.empty(shape, dtype=dtype)


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """The numbers of a tensor as they lie in memory."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")
