"""Tensors that several processes hold parts of: which part is whose, and how a part is cut from a whole."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trainwright.core.dtensors import is_dtensor


class Piece(NamedTuple):
    """What one process has of a tensor."""

    tensor: Tensor
    #: Where it begins in the whole, in each dimension.
    offset: tuple[int, ...]
    #: Of the whole tensor.
    shape: tuple[int, ...]

    @property
    def is_whole(self) -> bool:
        return tuple(self.tensor.shape) == self.shape


def piece_of(tensor: Tensor) -> Piece:
    """The part of ``tensor`` that is here; all of it, where it is not spread."""
    if not is_dtensor(tensor):
        return Piece(tensor.detach(), (0,) * tensor.ndim, tuple(tensor.shape))
    shape, offset = _place_of(tensor)
    local = tensor.detach().to_local()  # type: ignore[attr-defined]
    # Past the end there is nothing, but a place of its own.
    return Piece(local, offset if math.prod(shape) else (0,) * tensor.ndim, tuple(tensor.shape))


def is_copy(tensor: Any) -> bool:
    """Whether another process has the same part and comes before this one."""
    if not is_dtensor(tensor):
        return False
    coordinate = tensor.device_mesh.get_coordinate()
    copies = [place for place, kind in zip(coordinate, tensor.placements, strict=True) if kind.is_replicate()]
    return any(copies)


def _place_of(tensor: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tuple(shape), tuple(offset)


def like(part: Tensor, model: Any) -> Tensor:
    """``part`` as a tensor that is spread as ``model`` is, of which it is this process's part."""
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        part, model.device_mesh, model.placements, run_check=False, shape=model.shape, stride=model.stride()
    )


def put_in(whole: Tensor, part: Tensor, offset: tuple[int, ...]) -> None:
    """Copy ``part`` to its place."""
    place = tuple(slice(start, start + size) for start, size in zip(offset, part.shape, strict=True))
    whole[place].copy_(part) if place else whole.copy_(part)


def cut(whole: Tensor, piece: Piece) -> Tensor:
    """The part of ``whole`` that ``piece`` is."""
    place = tuple(slice(start, start + size) for start, size in zip(piece.offset, piece.tensor.shape, strict=True))
    return whole[place] if place else whole


def owners(sizes: Mapping[str, int], writers: int) -> dict[str, int]:
    """Which of ``writers`` processes writes each tensor: neighbours together, about as many bytes each.

    >>> owners({"a": 10, "b": 10, "c": 20}, 2)
    {'a': 0, 'b': 0, 'c': 1}
    """
    total, before, chosen = sum(sizes.values()) or 1, 0, {}
    for name, size in sizes.items():
        # By its middle, so that one large tensor does not push everything to the end.
        chosen[name] = min(writers - 1, (2 * before + size) * writers // (2 * total))
        before += size
    used = sorted(set(chosen.values()))
    return {name: used.index(owner) for name, owner in chosen.items()}


def nbytes(piece: Piece) -> int:
    """Of the whole tensor."""
    return math.prod(piece.shape) * torch.empty((), dtype=piece.tensor.dtype).element_size()
