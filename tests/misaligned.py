"""Tensors read from files, put where no tensor of torch's own would lie.

Whatever a resume restores, on some processors (AMD's, with MKL) the last bits of what is computed from it depend on
where it begins in memory. Readers of this library copy what they read; this makes the tests notice where one does not.
"""

from __future__ import annotations

from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch
from torch import Tensor

#: The smallest alignment that numbers of any type allow, and no processor likes.
_OFFSET = 8


def misplaced(tensor: Tensor) -> Tensor:
    """The same numbers at an address that is a multiple of 8 and of nothing larger."""
    if tensor.layout is not torch.strided or not tensor.is_cpu or not tensor.numel():
        return tensor
    room = torch.empty(tensor.nbytes + 64, dtype=torch.uint8)
    start = (_OFFSET - room.data_ptr()) % 64
    return room[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)


class _Slice:
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getitem__(self, where: Any) -> Tensor:
        return misplaced(self._inner[where])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _File:
    """``safe_open`` with what it reads misplaced."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._inner = safetensors.safe_open(*args, **kwargs)

    def __enter__(self) -> _File:
        self._inner.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._inner.__exit__(*error)

    def get_tensor(self, name: str) -> Tensor:
        return misplaced(self._inner.get_tensor(name))

    def get_slice(self, name: str) -> _Slice:
        return _Slice(self._inner.get_slice(name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def misplace_what_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let everything that checkpoints are read with give out misplaced tensors."""

    def of(read: Any) -> Any:
        return lambda *args, **kwargs: {n: misplaced(t) for n, t in read(*args, **kwargs).items()}

    load, load_file = of(safetensors.torch.load), of(safetensors.torch.load_file)
    monkeypatch.setattr("trainwright.checkpoint.sharded.safe_open", _File)
    monkeypatch.setattr("trainwright.training.recipe_folder.safe_open", _File)
    monkeypatch.setattr("trainwright.checkpoint.weights.load_file", load_file)
    monkeypatch.setattr("trainwright.training.recipe_past.load_file", load_file)
    monkeypatch.setattr(safetensors.torch, "load", load)
    monkeypatch.setattr(safetensors.torch, "load_file", load_file)
