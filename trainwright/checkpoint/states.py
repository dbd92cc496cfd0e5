"""State that users and checkpointers hand over: nested containers <-> flat tensors and JSON <-> one safetensors file.

    split_state / join_state            nested state <-> (tensors by name, JSON)
    pack_state / unpack_state           nested state <-> bytes
    write_state / read_state            nested state <-> a file that is there whole or not at all
    pack_checkpoint / write_checkpoint  the same for a ``Checkpoint``

The file is an ordinary safetensors file. Its metadata holds the JSON, and a SHA-256 of the whole file (computed with
zeros in the place of the sum), which is checked before anything is read.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainwright.checkpoint.durable import Chunk
from trainwright.checkpoint.layout import laid_out, stored_strides
from trainwright.checkpoint.manifest import DamagedCheckpoint
from trainwright.checkpoint.pack import file_chunks, why_unstorable
from trainwright.core.checkpointer import Checkpoint
from trainwright.core.files import replacing

_ALLOWED = "dicts (with str or int keys), lists and tuples of tensors, numpy arrays, str, int, float, bool and None"
#: What stands in a JSON object that is not a dict of the user's.
_TENSOR, _ARRAY, _SCALAR, _TUPLE, _DICT, _FLOAT = "$tensor", "$array", "$scalar", "$tuple", "$dict", "$float"
#: A tensor of complex128, which safetensors lacks: as pairs of float64.
_COMPLEX = "$complex"
_SUM_KEY = "sha256"
_BLANK = "0" * 64
_PIECE = 16 * 2**20


def split_state(
    state: object, where: str = "state", start: tuple[Any, ...] = (), taken: Collection[str] = ()
) -> tuple[dict[str, Tensor], Any]:
    """Tensors by name (detached, not copied) and the rest as JSON; ``ValueError`` names the path of what is neither.

    Names of tensors begin with ``start``, and none is one of those ``taken``.

    >>> tensors, plain = split_state({"step": 3, "mean": torch.zeros(2)})
    >>> list(tensors), plain
    (['mean'], {'step': 3, 'mean': {'$tensor': 'mean'}})
    """
    tensors: dict[str, Tensor] = {}
    return tensors, _Splitter(tensors, where, start, taken).plain(state, ())


def join_state(tensors: Mapping[str, Tensor], plain: object) -> Any:
    """The inverse of :func:`split_state`.

    >>> join_state({}, {"$tuple": [1, "two"]})
    (1, 'two')
    """
    if isinstance(plain, list):
        return [join_state(tensors, item) for item in plain]
    if not isinstance(plain, dict):
        return plain
    if len(plain) == 1:
        ((tag, value),) = plain.items()
        if tag == _TENSOR:
            return tensors[value]
        if tag == _COMPLEX:
            return torch.view_as_complex(tensors[value])
        if tag == _ARRAY:
            return tensors[value].numpy()
        if tag == _SCALAR:
            return tensors[value].numpy()[()]
        if tag == _TUPLE:
            return tuple(join_state(tensors, item) for item in value)
        if tag == _DICT:
            return {key: join_state(tensors, item) for key, item in value}
        if tag == _FLOAT:
            return float(value)
    return {key: join_state(tensors, item) for key, item in plain.items()}


class _Splitter:
    def __init__(
        self, tensors: dict[str, Tensor], where: str, start: tuple[Any, ...] = (), taken: Collection[str] = ()
    ) -> None:
        self._tensors, self._where, self._start, self._taken = tensors, where, start, taken

    def plain(self, value: Any, path: tuple[Any, ...]) -> Any:
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            # JSON has no infinity.
            return value if math.isfinite(value) else {_FLOAT: str(value)}
        if isinstance(value, Tensor) and value.dtype == torch.complex128 and why_unstorable(value.real) is None:
            return {_COMPLEX: self._keep(torch.view_as_real(value.detach().resolve_conj()), path)}
        if isinstance(value, Tensor):
            return {_TENSOR: self._keep(value.detach(), path)}
        if isinstance(value, (np.ndarray, np.generic)):
            return {
                _ARRAY if isinstance(value, np.ndarray) else _SCALAR: self._keep(self._as_tensor(value, path), path)
            }
        if type(value) is list:
            return [self.plain(item, (*path, index)) for index, item in enumerate(value)]
        if type(value) in (tuple, torch.Size):
            return {_TUPLE: [self.plain(item, (*path, index)) for index, item in enumerate(value)]}
        if isinstance(value, dict):
            return self._mapping(value, path)
        raise self._refusal(value, path)

    def _mapping(self, value: dict[Any, Any], path: tuple[Any, ...]) -> dict[str, Any]:
        for key in value:
            if type(key) not in (str, int):
                raise ValueError(
                    f"{self._in_words(path)} has the key {key!r} ({type(key).__name__}): keys must be str or int."
                )
        items = {key: self.plain(item, (*path, key)) for key, item in value.items()}
        if all(type(key) is str and not key.startswith("$") for key in items):
            return items
        return {_DICT: [[key, item] for key, item in items.items()]}

    def _as_tensor(self, value: Any, path: tuple[Any, ...]) -> Tensor:
        try:
            # A copy: arrays may be read-only or have negative strides, which torch does not take.
            return torch.from_numpy(np.array(value, order="C"))
        except TypeError:
            raise self._refusal(value, path, f" of {value.dtype}") from None

    def _keep(self, tensor: Tensor, path: tuple[Any, ...]) -> str:
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
            raise self._refusal(tensor, path, " that is sparse, quantized or without data")
        try:
            file_chunks({"tensor": torch.empty(0, dtype=tensor.dtype)})
        except ValueError:
            raise self._refusal(tensor, path, f" of {tensor.dtype}") from None
        name = base = ".".join(str(part) for part in (*self._start, *path)) or "value"
        number = 1
        while name in self._tensors or name in self._taken or name == "__metadata__":
            number += 1
            name = f"{base}#{number}"
        self._tensors[name] = tensor
        return name

    def _refusal(self, value: object, path: tuple[Any, ...], detail: str = "") -> ValueError:
        return ValueError(
            f"{self._in_words(path)} is a {type(value).__name__}{detail}, which a checkpoint cannot hold. "
            f"Allowed are {_ALLOWED}: convert it, or leave it out."
        )

    def _in_words(self, path: tuple[Any, ...]) -> str:
        return self._where + "".join(f"[{part!r}]" for part in path)


# ---- bytes and files


def pack_state(state: object, where: str = "state") -> bytes:
    """``state`` as the bytes of a safetensors file.

    >>> unpack_state(pack_state({1: (None, 2.5)}))
    {1: (None, 2.5)}
    """
    return b"".join(bytes(chunk) for chunk in _chunks(state, where))


def unpack_state(data: bytes, where: str | Path = "the checkpoint") -> Any:
    """The inverse of :func:`pack_state`; ``DamagedCheckpoint`` says what is wrong with bytes that were altered."""
    from safetensors.torch import load

    place = Path(where)
    head = _checked_head(data[:8], lambda size: data[8 : 8 + size], len(data), place)
    digest = hashlib.sha256(_blanked(data[: 8 + len(head)], place))
    digest.update(memoryview(data)[8 + len(head) :])
    metadata = _checked_metadata(head, digest.hexdigest(), place)
    return _joined(load(data), metadata)


def write_state(path: str | Path, state: object, where: str = "state") -> Path:
    """Write ``state`` to ``path``: beside it first, forced to disk, then renamed."""
    target = Path(path)
    chunks = _chunks(state, where)
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target, forced=True) as file:
        file.writelines(chunks)
    return target


def read_state(path: str | Path) -> Any:
    """Read what :func:`write_state` wrote, after checking every byte of it."""
    from safetensors.torch import load_file

    place = Path(path)
    with place.open("rb") as file:
        start = file.read(8)
        head = _checked_head(start, file.read, place.stat().st_size, place)
        digest = hashlib.sha256(_blanked(start + head, place))
        while piece := file.read(_PIECE):
            digest.update(piece)
    metadata = _checked_metadata(head, digest.hexdigest(), place)
    return _joined(load_file(place), metadata)


def _joined(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Any:
    strides = stored_strides(metadata)
    return join_state({n: laid_out(t, strides.get(n)) for n, t in tensors.items()}, json.loads(metadata["state"]))


def pack_checkpoint(checkpoint: Checkpoint) -> bytes:
    """A checkpoint as bytes.

    >>> unpack_checkpoint(pack_checkpoint(Checkpoint(trainer_state={"global_step": 3}))).trainer_state
    {'global_step': 3}
    """
    return pack_state(vars(checkpoint), "checkpoint")


def unpack_checkpoint(data: bytes) -> Checkpoint:
    """The inverse of :func:`pack_checkpoint`."""
    return Checkpoint(**unpack_state(data))


def write_checkpoint(path: str | Path, checkpoint: Checkpoint) -> Path:
    """A checkpoint as one file."""
    return write_state(path, vars(checkpoint), "checkpoint")


def read_checkpoint(path: str | Path) -> Checkpoint:
    """The inverse of :func:`write_checkpoint`."""
    return Checkpoint(**read_state(path))


def _chunks(state: object, where: str) -> list[Chunk]:
    tensors, plain = split_state(state, where)
    # The sum comes first in the metadata, so that its place is found without parsing.
    head, *body = file_chunks(tensors, {_SUM_KEY: _BLANK, "state": json.dumps(plain)})
    digest = hashlib.sha256(head)
    for chunk in body:
        digest.update(memoryview(chunk).cast("B"))
    start = _place_of_sum(bytes(head))
    return [bytes(head[:start]) + digest.hexdigest().encode() + bytes(head[start + len(_BLANK) :]), *body]


def _place_of_sum(head: bytes) -> int:
    mark = f'"{_SUM_KEY}":"'.encode()
    found = head.find(mark)
    return -1 if found < 0 else found + len(mark)


def _checked_head(start: bytes, read: Any, size: int, place: Path) -> bytes:
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length + 8 > size:
        raise DamagedCheckpoint(place, [f"it is cut short ({size} bytes)"])
    return read(length)


def _blanked(head: bytes, place: Path) -> bytes:
    start = _place_of_sum(head)
    if start < 0:
        raise DamagedCheckpoint(place, ["it carries no checksum, so it is not a file of ours or its head was altered"])
    return head[:start] + _BLANK.encode() + head[start + len(_BLANK) :]


def _checked_metadata(head: bytes, digest: str, place: Path) -> dict[str, str]:
    try:
        metadata = json.loads(head)["__metadata__"]
        intact, _ = metadata[_SUM_KEY] == digest, metadata["state"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DamagedCheckpoint(place, ["its head cannot be read"]) from None
    if not intact:
        raise DamagedCheckpoint(place, ["it has other contents than were written (its hash differs)"])
    return metadata
