"""The layout of tensors in memory, kept in the metadata of a safetensors file, which itself holds them row by row.

Matrix products and sums add up in an order that depends on where a tensor begins and how it is laid out. So a resumed
run goes on with the bits of an uninterrupted one only if what it restores lies in memory as it did before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

_KEY = "strides"
Strides = dict[str, tuple[int, ...]]


def unusual_strides(tensors: Mapping[str, Tensor]) -> Strides:
    """Strides of those tensors that do not lie row by row (``channels_last``, transposed) and have no gaps."""
    return {
        name: tuple(tensor.stride())
        for name, tensor in tensors.items()
        if not tensor.is_sparse and tensor.stride() != _row_by_row(tensor.shape) and _is_dense(tensor)
    }


def strides_as_metadata(strides: Strides) -> dict[str, str]:
    return {_KEY: json.dumps(strides)} if strides else {}


def stored_strides(metadata: Mapping[str, str] | None) -> Strides:
    """Read what :func:`strides_as_metadata` wrote; nothing where it makes no sense."""
    try:
        stored = json.loads((metadata or {}).get(_KEY, "{}"))
        return {name: tuple(int(step) for step in steps) for name, steps in stored.items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {}


def laid_out(tensor: Tensor, strides: tuple[int, ...] | None) -> Tensor:
    """A copy in memory of its own, which torch aligns as it aligns every new tensor, with the given strides."""
    result = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    if strides is not None and _is_permutation(tensor.shape, strides):
        result = torch.empty_strided(tuple(tensor.shape), strides, dtype=tensor.dtype, device=tensor.device)
    return result.copy_(tensor)


def _row_by_row(shape: Iterable[int]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for size in reversed(list(shape)):
        strides.insert(0, step)
        step *= max(size, 1)
    return tuple(strides)


def _is_dense(tensor: Tensor) -> bool:
    return _is_permutation(tensor.shape, tensor.stride())


def _is_permutation(shape: Iterable[int], strides: Iterable[int]) -> bool:
    """Return True where no two elements share a place and none is left free."""
    expected = 1
    for step, size in sorted((step, size) for size, step in zip(shape, strides, strict=False) if size != 1):
        if step != expected:
            return False
        expected *= size
    return True
