"""A few elements of a tensor, by which a copy made later is compared with the moment it is meant to be of.

torch counts the writes to a tensor, but not those through ``.data``, with which models keep codebooks and slowly
following copies of themselves. A sample has at least one element of each row, so a row written anew shows.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
#: Tensors up to this size are sampled whole.
_WHOLE = 4096
#: Rows looked at, in one tensor, at the most.
_ROWS = 65536


class Whole(NamedTuple):
    """A sum over all bits of a tensor at one moment: any element that is written anew shows."""

    sum: Tensor

    def matches(self, tensor: Tensor) -> bool:
        """Return True if ``tensor`` has the same sum."""
        return torch.equal(self.sum, whole(tensor).sum)


def whole(tensor: Tensor) -> Whole:
    """Sum up ``tensor``, without a copy of it.

    >>> weight = torch.zeros(100, 100)
    >>> seen = whole(weight)
    >>> weight.data[70, 3] = 1.0
    >>> seen.matches(weight)
    False
    """
    with torch.no_grad():
        plain = torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()
        return Whole(plain.view(_WORDS[plain.element_size()]).sum(dtype=torch.int64))


class Sample(NamedTuple):
    """Elements of a tensor at one moment, and where they were taken."""

    where: tuple[slice | int, ...]
    elements: Tensor

    def matches(self, tensor: Tensor) -> bool:
        """Return True if ``tensor`` has the same bits in the same places; NaN counts as equal to itself."""
        return torch.equal(_bits(self.elements), _bits(tensor[self.where]))


def sample(tensor: Tensor, turn: int = 0) -> Sample:
    """Sample ``tensor``; each ``turn`` looks at other columns.

    >>> weight = torch.zeros(100, 100)
    >>> seen = sample(weight)
    >>> weight.data[70] = 1.0
    >>> seen.matches(weight)
    False
    """
    where = _places(tuple(tensor.shape), turn)
    with torch.no_grad():
        return Sample(where, tensor.detach()[where].clone())


def _places(shape: tuple[int, ...], turn: int) -> tuple[slice | int, ...]:
    if math.prod(shape) <= _WHOLE:
        return (slice(None),) * len(shape)
    rows, *middle = shape
    step = math.ceil(rows / _ROWS)
    if not middle:
        return (slice(turn % step, None, step),)
    *middle, columns = middle
    per_row = max(1, _WHOLE // math.ceil(rows / step))
    stride = math.ceil(columns / per_row)
    return (
        slice(turn % step, None, step),
        *(turn % size for size in middle),
        slice(turn % stride, None, stride),
    )


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8) if tensor.numel() else tensor
