"""Checkpoints that several processes wrote: names of files, their index, and reading any part of any tensor.

    model-00001-of-00004.safetensors ...      whole tensors, with the index that ``from_pretrained`` reads
    optimizer-00001-of-00004.safetensors ...  what each process had, with an index of the pieces of each tensor

Any number of processes reads them, each only what it needs; so it does where one process wrote one file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor

from trainwright.checkpoint.layout import laid_out, stored_strides
from trainwright.checkpoint.manifest import holds, is_listable
from trainwright.checkpoint.pieces import like, piece_of, put_in
from trainwright.core.dtensors import is_dtensor

_LETTERS = ".safetensors"


def shard_name(file: str, number: int, count: int) -> str:
    """The name of one of ``count`` files; the only one keeps the plain name.

    >>> shard_name("model.safetensors", 0, 2), shard_name("model.safetensors", 0, 1)
    ('model-00001-of-00002.safetensors', 'model.safetensors')
    """
    return file if count == 1 else f"{file.removesuffix(_LETTERS)}-{number + 1:05d}-of-{count:05d}{_LETTERS}"


def index_name(file: str) -> str:
    """Where it is written what is in which file: for the model by transformers' rule, else by ours."""
    return f"{file}.index.json"


def weights_index(weight_map: Mapping[str, str], total_bytes: int) -> str:
    """transformers' index of a model in several files."""
    contents = {"metadata": {"total_size": total_bytes}, "weight_map": dict(sorted(weight_map.items()))}
    return json.dumps(contents, indent=2) + "\n"


def pieces_index(shapes: Mapping[str, list[int]], parts: list[Mapping[str, Any]], files: list[str]) -> str:
    """Which file holds which part of each tensor; ``parts`` has one entry for each process."""
    pieces: dict[str, Any] = {name: {"shape": shape, "parts": []} for name, shape in sorted(shapes.items())}
    for file, held in zip(files, parts, strict=True):
        for name, (offset, shape) in held.items():
            pieces[name]["parts"].append({"file": file, "offset": offset, "shape": shape})
    return json.dumps({"pieces": pieces}, indent=1) + "\n"


class _Stored(NamedTuple):
    """A tensor, or a part of one, in a file."""

    file: str
    #: Where the part begins; empty for a whole tensor.
    offset: tuple[int, ...] = ()


class StoredTensors(Mapping[str, Tensor]):
    """Tensors of one kind (``file``) in a checkpoint, by name; nothing is read before it is asked for.

    What is given out lies in memory as it did in training: sums over tensors that lie otherwise have other last bits.
    """

    def __init__(self, folder: Path, file: str) -> None:
        self._folder = folder
        self._open: dict[str, Any] = {}
        self._strides: dict[str, dict[str, tuple[int, ...]]] = {}
        #: Name -> shape of the whole (None: look into the file) and the parts that there are.
        self._parts: dict[str, tuple[list[int] | None, list[_Stored]]]
        index = folder / index_name(file)
        if not holds(folder, index.name):
            shard = self._shard(file)
            self._parts = {
                name: (shard.get_slice(name).get_shape(), [_Stored(file)])
                for name in shard.keys()  # noqa: SIM118 - not a dict
            }
            return
        contents = json.loads(index.read_text(encoding="utf-8"))
        if "weight_map" in contents:
            self._parts = {name: (None, [_Stored(file)]) for name, file in contents["weight_map"].items()}
        else:
            self._parts = {
                name: (entry["shape"], [_Stored(part["file"], tuple(part["offset"])) for part in entry["parts"]])
                for name, entry in contents["pieces"].items()
            }

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, name: str) -> Tensor:
        shape = self.shape(name)
        return self.part(name, (0,) * len(shape), shape)

    def shape(self, name: str) -> tuple[int, ...]:
        """Of the whole tensor."""
        shape, parts = self._parts[name]
        return tuple(self._shard(parts[0].file).get_slice(name).get_shape() if shape is None else shape)

    def part(self, name: str, offset: tuple[int, ...], shape: tuple[int, ...]) -> Tensor:
        """The part of a tensor that begins at ``offset`` and is of ``shape``."""
        result: Tensor | None = None
        _, parts = self._parts[name]
        for stored in parts:
            slices = self._shard(stored.file).get_slice(name)
            there = tuple(slices.get_shape())
            begins = stored.offset or (0,) * len(there)
            low = [max(a, b) for a, b in zip(begins, offset, strict=True)]
            high = [min(a + n, b + m) for a, n, b, m in zip(begins, there, offset, shape, strict=True)]
            if any(a >= b for a, b in zip(low, high, strict=True)):
                continue
            cut = tuple(slice(a - b, c - b) for a, b, c in zip(low, begins, high, strict=True))
            found = slices[cut] if cut else self._shard(stored.file).get_tensor(name)
            if tuple(found.shape) == tuple(shape):
                return laid_out(found, self._strides[stored.file].get(name))
            if result is None:
                result = torch.zeros(shape, dtype=found.dtype)
            put_in(result, found, tuple(a - b for a, b in zip(low, offset, strict=True)))
        if result is None:
            # A process may have nothing of a small tensor.
            kind = self._shard(parts[0].file).get_tensor(name).dtype
            result = torch.zeros(shape, dtype=kind)
        return result

    def spread_like(self, name: str, tensor: Tensor) -> Tensor:
        """A stored tensor as ``tensor`` is: the same part of it, where that one is in parts."""
        if not is_dtensor(tensor) or self.shape(name) != tuple(tensor.shape):
            return self[name]
        own = piece_of(tensor)
        part = self.part(name, own.offset, tuple(own.tensor.shape))
        return like(part.to(own.tensor.device), tensor)

    def _shard(self, file: str) -> Any:
        if file not in self._open:
            if not is_listable(file) or not holds(self._folder, file):
                raise ValueError(f"{self._folder} names {file!r} as one of its files, which is not one of ours.")
            self._open[file] = safe_open(str(self._folder / file), framework="pt")
            self._strides[file] = stored_strides(self._open[file].metadata())
        return self._open[file]


def is_stored(folder: Path, file: str) -> bool:
    """Whether ``folder`` has this kind of tensors, in one file or in several."""
    return holds(folder, file) or holds(folder, index_name(file))
