"""Nested values from one place to another: onto a device, to numpy and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


def move(value: object, device: torch.device) -> Any:
    """Tensors of nested dicts, lists and tuples on ``device``; copies from pinned memory do not wait."""
    if isinstance(value, Tensor):
        return value if value.device == device else value.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        moved = {key: move(item, device) for key, item in value.items()}
        kind: Any = type(value)
        return moved if kind is dict else kind(moved)
    if isinstance(value, (list, tuple)):
        return rebuilt(value, [move(item, device) for item in value])
    return value


def rebuilt(like: Any, items: list[Any]) -> Any:
    """``items`` as a list, tuple or named tuple, whatever ``like`` is."""
    return type(like)(*items) if hasattr(like, "_fields") else type(like)(items)


def to_numpy(value: object) -> Any:
    """Numpy arrays in place of tensors; bfloat16, which numpy lacks, as float32."""
    if isinstance(value, Tensor):
        tensor = value.detach()
        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).cpu().numpy()
    if isinstance(value, Mapping):
        return {key: to_numpy(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return rebuilt(value, [to_numpy(item) for item in value])
    return np.asarray(value) if np.isscalar(value) else value


def from_numpy(value: object, device: torch.device) -> Any:
    """Tensors on ``device`` in place of numpy arrays."""
    if isinstance(value, np.ndarray):
        return torch.as_tensor(value).to(device)
    if isinstance(value, Mapping):
        return {key: from_numpy(item, device) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return rebuilt(value, [from_numpy(item, device) for item in value])
    return value
