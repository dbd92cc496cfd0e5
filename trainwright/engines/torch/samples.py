"""A few elements of a tensor, by which a copy made later is compared with the moment it is meant to be of.

torch counts the writes to a tensor, but not those through ``.data``, with which models keep codebooks and slowly
following copies of themselves. A sample has at least one element of each row, so a row written anew shows.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

#: Tensors up to this size are sampled whole.
_WHOLE = 4096
#: Rows looked at, in one tensor, at the most.
_ROWS = 65536


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
