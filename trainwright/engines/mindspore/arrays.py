"""Tensors of torch to MindSpore's and back, always as copies, and the types of both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import mindspore
import numpy
import torch
from mindspore import Tensor as Array

MINDSPORE_TYPES = {
    torch.float16: mindspore.float16,
    torch.bfloat16: mindspore.bfloat16,
    torch.float32: mindspore.float32,
    torch.float64: mindspore.float64,
    torch.int8: mindspore.int8,
    torch.int16: mindspore.int16,
    torch.int32: mindspore.int32,
    torch.int64: mindspore.int64,
    torch.uint8: mindspore.uint8,
    torch.bool: mindspore.bool_,
    torch.complex64: mindspore.complex64,
    torch.complex128: mindspore.complex128,
}
TORCH_TYPES = {theirs: ours for ours, theirs in MINDSPORE_TYPES.items()}


def to_array(tensor: torch.Tensor) -> Array:
    """A copy of ``tensor`` for MindSpore.

    >>> to_array(torch.tensor([[1.0, 2.0], [3.0, 4.0]]).T).asnumpy().tolist()
    [[1.0, 3.0], [2.0, 4.0]]
    """
    if tensor.dtype not in MINDSPORE_TYPES:
        raise ValueError(f"MindSpore has no type for {tensor.dtype}: convert the tensor before, e.g. with .float().")
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    if tensor.dtype is torch.bfloat16:  # unknown to numpy, and exact in float32
        return to_array(tensor.float()).astype(mindspore.bfloat16)
    return Array(tensor.contiguous().numpy())


def to_tensor(array: Array) -> torch.Tensor:
    """A copy of ``array`` for torch, in main memory.

    >>> to_tensor(to_array(torch.tensor(2.5, dtype=torch.bfloat16)))
    tensor(2.5000, dtype=torch.bfloat16)
    """
    if array.dtype == mindspore.bfloat16:
        return to_tensor(array.astype(mindspore.float32)).bfloat16()
    return torch.from_numpy(numpy.array(array.asnumpy(), copy=True))


def torch_type(array: Array) -> torch.dtype:
    """The type of ``array`` in torch's words."""
    return TORCH_TYPES[array.dtype]


class _Unprinted(Array):
    """An array without a text."""

    def __repr__(self) -> str:
        return "array"

    __str__ = __repr__


@contextmanager
def unprinted(arrays: Sequence[Array]) -> Iterator[None]:
    """Within it these arrays have no text.

    MindSpore puts every argument of a graph into a message for its debug log, at each call and also where nobody keeps
    that log; writing the numbers out took half of the time of a step.
    """
    plain = [array for array in arrays if type(array) is Array]
    for array in plain:
        array.__class__ = _Unprinted
    try:
        yield
    finally:
        for array in plain:
            array.__class__ = Array
