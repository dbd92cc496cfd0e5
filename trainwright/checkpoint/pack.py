"""Named tensors copied to main memory, laid out as the body of a safetensors file.

The format is safetensors' own: eight bytes with the header's length, a JSON header, then the raw numbers without gaps.
Its library writes a file in one call that holds Python's interpreter lock and cannot hash on the way; a checkpoint that
is written while training goes on needs neither of the two, so the bytes are laid out here and read back by the library.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trainwright.checkpoint.durable import Chunk
from trainwright.checkpoint.layout import strides_as_metadata, unusual_strides

_NAMES: dict[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
#: From this size on memory is asked for in large pages: touching 1 GB in 4 KiB pages for the first time takes a second.
_LARGE = 8 * 2**20


class TensorPack:
    """Room in main memory for tensors of given names, shapes and types; filled again at every save."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        # Widest types first: then every tensor starts at a multiple of its element size, and nothing has gaps.
        self._names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
        self._kinds = {name: (tensors[name].dtype, tuple(tensors[name].shape)) for name in self._names}
        self._strides = unusual_strides(tensors)
        self._header, sizes = _layout(self._names, tensors)
        self.size = sum(sizes)
        self._on_device = any(tensor.is_cuda for tensor in tensors.values())
        self._body = _room(self.size, pinned=self._on_device)
        self.views: dict[str, Tensor] = {}
        start = 0
        for name, size in zip(self._names, sizes, strict=True):
            dtype, shape = self._kinds[name]
            self.views[name] = self._body[start : start + size].view(dtype).view(shape)
            start += size
        self._copied: torch.cuda.Event | None = None

    @property
    def room(self) -> Tensor:
        """The bytes behind all views."""
        return self._body

    def fits(self, tensors: Mapping[str, Tensor]) -> bool:
        """Return True if ``tensors`` have the names, shapes, strides and types this pack was made for."""
        if self._on_device != any(tensor.is_cuda for tensor in tensors.values()):
            return False
        if self._strides != unusual_strides(tensors):
            return False
        return {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()} == self._kinds

    def copy(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy values in. From a GPU the copies are queued behind the work that is under way; nothing waits here."""
        with torch.no_grad():
            for name, tensor in tensors.items():
                self.views[name].copy_(tensor, non_blocking=True)
        if self._on_device:
            # On the same stream as the training: later updates come after the copy by themselves.
            self._copied = torch.cuda.Event()
            self._copied.record()

    def chunks(self, metadata: Mapping[str, str] | None = None) -> list[Chunk]:
        """The file's bytes; waits for copies from a GPU."""
        if self._copied is not None:
            self._copied.synchronize()
        notes = {**strides_as_metadata(self._strides), **(metadata or {})}
        return [_head(self._header, notes), self._body.numpy().data]


def file_chunks(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> list[Chunk]:
    """The bytes of a safetensors file with ``tensors``, which are in main memory already or small."""
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header, _ = _layout(names, tensors)
    metadata = {**(metadata or {}), **strides_as_metadata(unusual_strides(tensors))}
    bodies = [tensors[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy() for name in names]
    return [_head(header, metadata), *(body.data for body in bodies)]


def unstorable(tensors: Mapping[str, Tensor]) -> str | None:
    """The name of a tensor that a safetensors file cannot hold; None where there is none."""
    return next((n for n, t in tensors.items() if why_unstorable(t) is not None), None)


def why_unstorable(tensor: Tensor) -> str | None:
    """Why a safetensors file cannot hold ``tensor``; None where it can.

    >>> why_unstorable(torch.zeros(2)), why_unstorable(torch.eye(2).to_sparse())
    (None, 'of layout torch.sparse_coo')
    """
    if not isinstance(tensor, Tensor):
        return f"of type {type(tensor).__name__}"
    if tensor.layout != torch.strided:
        return f"of layout {tensor.layout}"
    if tensor.is_meta:
        return "without data (on the meta device)"
    return None if tensor.dtype in _NAMES else f"of type {tensor.dtype}"


def refuse_unstorable(tensors: Mapping[str, Tensor]) -> None:
    """Raise for a tensor that a safetensors file cannot hold."""
    if wrong := unstorable(tensors):
        raise ValueError(
            f"{wrong} is {why_unstorable(tensors[wrong])}, which safetensors cannot hold: keep it out of the state "
            "dict (register_buffer(..., persistent=False)) or convert it."
        )


def _layout(names: list[str], tensors: Mapping[str, Tensor]) -> tuple[dict[str, Any], list[int]]:
    header: dict[str, Any] = {}
    sizes: list[int] = []
    start = 0
    refuse_unstorable(tensors)
    for name in names:
        tensor = tensors[name]
        size = math.prod(tensor.shape) * tensor.element_size()
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, start + size],
        }
        sizes.append(size)
        start += size
    return header, sizes


def _head(header: dict[str, Any], metadata: Mapping[str, str] | None) -> bytes:
    full = {"__metadata__": {"format": "pt", **(metadata or {})}, **header}
    text = json.dumps(full, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _room(size: int, *, pinned: bool) -> Tensor:
    if pinned:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)
    if size < _LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(size, dtype=torch.uint8)
    pages = mmap.mmap(-1, size)
    pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.uint8)
