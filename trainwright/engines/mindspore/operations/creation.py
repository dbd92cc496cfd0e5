"""Arrays out of nothing but numbers: known when the graph is compiled, so torch itself makes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from mindspore import Tensor as Array
from mindspore import ops

from trainwright.engines.mindspore.arrays import to_array, torch_type
from trainwright.engines.mindspore.operations.types import as_type, is_array

aten = torch.ops.aten
#: Where and how torch would keep a tensor, which says nothing about its numbers.
_PLACES = ("device", "pin_memory", "layout", "memory_format")


def made_by(function: Callable[..., torch.Tensor]) -> Callable[..., Array]:
    """What ``function`` makes, as an array."""
    return lambda *arguments, **named: to_array(
        function(*arguments, **{name: value for name, value in named.items() if name not in _PLACES})
    )


def empty(size: Sequence[int], dtype: torch.dtype | None = None, **_: object) -> Array:
    """Zeros: what happens to be in memory is no number to compute with."""
    return to_array(torch.zeros(size, dtype=dtype))


def full_like(array: Array, value: Any, dtype: torch.dtype | None = None, **_: Any) -> Array:
    """``value`` everywhere, in the shape of ``array``."""
    return to_array(torch.full(tuple(array.shape), value, dtype=dtype or torch_type(array)))


def filled_like(value: int) -> Callable[..., Array]:
    """Zeros, or ones, in the shape of another array."""
    return lambda array, dtype=None, **_: full_like(array, value, dtype)


def new_full(array: Array, size: Sequence[int], value: Any, dtype: torch.dtype | None = None, **_: Any) -> Array:
    """``value`` everywhere, in the type of ``array``."""
    return to_array(torch.full(tuple(size), value, dtype=dtype or torch_type(array)))


def new_filled(value: int) -> Callable[..., Array]:
    """Zeros, or ones, in the type of another array."""
    return lambda array, size, dtype=None, **_: new_full(array, size, value, dtype)


def fill(array: Array, value: object) -> Array:
    """``value``, a number or an array without dimensions, in the shape and type of ``array``."""
    if is_array(value):
        return ops.broadcast_to(as_type(value, torch_type(array)), tuple(array.shape))
    return full_like(array, value)


def nothing(*_: object, **__: object) -> None:
    """For checks that torch's graph carries: they held when it was captured, and shapes do not change."""


OPERATIONS: dict[Any, Callable[..., Any]] = {
    aten.arange.default: made_by(aten.arange.default),
    aten.arange.start: made_by(aten.arange.start),
    aten.arange.start_step: made_by(aten.arange.start_step),
    aten.linspace.default: made_by(aten.linspace.default),
    aten.eye.default: made_by(aten.eye.default),
    aten.eye.m: made_by(aten.eye.m),
    aten.full.default: made_by(aten.full.default),
    aten.zeros.default: made_by(aten.zeros.default),
    aten.ones.default: made_by(aten.ones.default),
    aten.scalar_tensor.default: made_by(aten.scalar_tensor.default),
    aten.empty.memory_format: empty,
    aten.full_like.default: full_like,
    aten.zeros_like.default: filled_like(0),
    aten.ones_like.default: filled_like(1),
    aten.empty_like.default: filled_like(0),
    aten.new_full.default: new_full,
    aten.new_zeros.default: new_filled(0),
    aten.new_ones.default: new_filled(1),
    aten.new_empty.default: new_filled(0),
    aten.fill.Scalar: fill,
    aten.fill.Tensor: fill,
    aten._assert_tensor_metadata.default: nothing,
}
