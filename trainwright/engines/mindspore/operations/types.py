"""Which type a result has: torch's rules, asked of torch itself."""

from __future__ import annotations

from typing import Any

import mindspore
import torch
from mindspore import Tensor as Array

from trainwright.engines.mindspore.arrays import MINDSPORE_TYPES, to_array, torch_type

Number = bool | int | float


def is_array(value: object) -> bool:
    """Whether ``value`` is an array and not a number."""
    return isinstance(value, Array)


def cast(array: Array, dtype: torch.dtype | None) -> Array:
    """``array`` as ``dtype``; as it is where that is None or its own."""
    if dtype is None or torch_type(array) is dtype:
        return array
    return array.astype(MINDSPORE_TYPES[dtype])


def constant(value: Number | torch.Tensor, dtype: torch.dtype) -> Array:
    """An array known when the graph is compiled.

    Python's numbers become arrays before they meet one: MindSpore would round them to float32 first.
    """
    return to_array(torch.as_tensor(value, dtype=dtype))


def _stand_in(value: Any) -> Any:
    """What decides the type of a result: a number, a tensor without dimensions, or one with."""
    return torch.empty(() if value.ndim == 0 else (1,), dtype=torch_type(value)) if is_array(value) else value


def result_type(one: Any, other: Any) -> torch.dtype:
    """The type in which torch combines the two.

    >>> result_type(to_array(torch.tensor([1, 2])), 0.5)
    torch.float32
    >>> result_type(to_array(torch.ones(2, dtype=torch.float16)), to_array(torch.tensor(1.0)))
    torch.float16
    """
    return torch.result_type(_stand_in(one), _stand_in(other))


def alike(one: object, other: object, *, floating: bool = False) -> tuple[Array, Array]:
    """Both as arrays of the type in which torch combines them; of real numbers, if ``floating``."""
    dtype = result_type(one, other)
    if floating and not dtype.is_floating_point:
        dtype = torch.get_default_dtype()
    return as_type(one, dtype), as_type(other, dtype)


def as_type(value: Any, dtype: torch.dtype) -> Array:
    """An array of ``dtype`` out of an array or a number."""
    return cast(value, dtype) if is_array(value) else constant(value, dtype)


def as_floating(array: Array) -> Array:
    """As functions such as ``exp`` take it: whole numbers become real ones."""
    return array if torch_type(array).is_floating_point else cast(array, torch.get_default_dtype())


def widened(array: Array) -> Array:
    """As torch sums and normalizes it: half precision as float32, so that no step on the way leaves its range."""
    return cast(array, torch.float32) if torch_type(array) in (torch.float16, torch.bfloat16) else array


def is_bool(array: Array) -> bool:
    """Whether it holds truth values."""
    return array.dtype == mindspore.bool_


def dims_of(array: Array, dims: Any) -> tuple[int, ...]:
    """``dims`` counted from the front; all of them where none, or an empty list, is given."""
    if dims is None or (not isinstance(dims, int) and len(dims) == 0):
        return tuple(range(array.ndim))
    listed = (dims,) if isinstance(dims, int) else dims
    return tuple(dim % max(array.ndim, 1) for dim in listed)


def computes_on_cpu() -> bool:
    """Return True where MindSpore's kernels run on the CPU."""
    return mindspore.get_context("device_target") == "CPU"
