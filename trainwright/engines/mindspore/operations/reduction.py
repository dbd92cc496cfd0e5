"""Many numbers to few: sums, extremes, counts; and running sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from mindspore import Tensor as Array
from mindspore import ops

from trainwright.engines.mindspore.arrays import torch_type
from trainwright.engines.mindspore.operations.by_products import summed
from trainwright.engines.mindspore.operations.shape import part, permute, reshape
from trainwright.engines.mindspore.operations.types import Number, cast, constant, dims_of, widened

aten = torch.ops.aten
Dims = int | Sequence[int] | None


def _summable(array: Array, dtype: torch.dtype | None) -> Array:
    """As ``dtype``, or as torch sums it: small whole numbers and truth values as int64."""
    if dtype is None and not torch_type(array).is_floating_point:
        dtype = torch.int64
    return cast(array, dtype)


def total(array: Array, dims: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Array:
    """The sum over ``dims``."""
    array = _summable(array, dtype)
    return cast(summed(widened(array), dims_of(array, dims), keepdim), torch_type(array)) if array.ndim else array


def mean(array: Array, dims: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Array:
    """The mean over ``dims``."""
    array = cast(array, dtype)
    count = 1
    for dim in dims_of(array, dims):
        count *= array.shape[dim]
    wide = widened(array)
    return cast(total(wide, dims, keepdim) / constant(count or float("nan"), torch_type(wide)), torch_type(array))


def product(array: Array, dim: int | None = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Array:
    """The product, folded in halves: its gradient is right where entries are zero, too."""
    array = _summable(array, dtype)
    if dim is None:
        return product(reshape(array, [-1]), 0)
    if array.ndim == 0:
        return array
    at = dim % array.ndim
    while (length := array.shape[at]) > 1:
        half = length // 2
        folded = part(array, at, 0, half) * part(array, at, half, 2 * half)
        array = ops.cat((folded, part(array, at, 2 * half, length)), at) if length % 2 else folded
    return array if keepdim else reshape(array, array.shape[:at] + array.shape[at + 1 :])


def variance(array: Array, dims: Dims = None, correction: Number | None = 1, keepdim: bool = False) -> Array:
    """The mean squared distance from the mean, with ``correction`` fewer than counted."""
    return variance_and_mean(array, dims, correction, keepdim)[0]


def variance_and_mean(
    array: Array, dims: Dims = None, correction: Number | None = 1, keepdim: bool = False
) -> tuple[Array, Array]:
    """Both at once."""
    count = 1
    for dim in dims_of(array, dims):
        count *= array.shape[dim]
    wide, dtype = widened(array), torch_type(array)
    centre = mean(wide, dims, keepdim=True)
    distance = wide - centre
    freedom = max(count - (1 if correction is None else correction), 0)
    spread = total(distance * distance, dims, keepdim)
    spread = spread / constant(freedom, torch_type(wide))
    return cast(spread, dtype), cast(centre if keepdim else reshape(centre, spread.shape), dtype)


def extreme(function: Callable[..., Array]) -> Callable[..., Array]:
    """The largest or smallest over ``dims``; entries that are equally extreme share the gradient."""

    def reduce(array: Array, dims: Dims = None, keepdim: bool = False) -> Array:
        if array.ndim == 0:
            return array
        over = dims_of(array, dims)
        if not torch_type(array).is_floating_point:
            return cast(function(_ordered(array), over, keepdims=keepdim), torch_type(array))
        found = ops.stop_gradient(function(array, over, keepdims=True))
        at = ops.stop_gradient(cast(ops.equal(array, found), torch_type(array)))
        # The mean of the entries that are equal to it: the same number, with a gradient for each of them.
        held = ops.where(cast(at, torch.bool), array, ops.zeros_like(array))
        shared = ops.sum(held, over, keepdim) / ops.sum(at, over, keepdim)
        exact = found if keepdim else reshape(found, shared.shape)
        return exact + (shared - ops.stop_gradient(shared))

    return reduce


def _ordered(array: Array) -> Array:
    """Whole numbers and truth values in a type whose order MindSpore can tell."""
    return cast(array, torch.float64 if torch_type(array) is torch.int64 else torch.float32)


def position(largest: bool) -> Callable[..., Array]:
    """Where the largest (or smallest) entry is, the first of several."""

    def find(array: Array, dim: int | None = None, keepdim: bool = False) -> Array:
        shape = array.shape
        if dim is None:
            array = reshape(array, [-1])
        if array.ndim == 0:
            return constant(0, torch.int64)
        at = 0 if dim is None else dim % array.ndim
        found = ops.argmax if largest else ops.argmin
        places = cast(ops.stop_gradient(found(_comparable(array), at, keepdim and dim is not None)), torch.int64)
        return reshape(places, (1,) * len(shape)) if keepdim and dim is None else places

    return find


def _comparable(array: Array) -> Array:
    return array if torch_type(array).is_floating_point else _ordered(array)


def extreme_and_position(largest: bool) -> Callable[..., tuple[Array, Array]]:
    """The largest (or smallest) entries along a dimension, and where they are; the gradient goes there alone."""

    def find(array: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
        if array.ndim == 0:
            return array, constant(0, torch.int64)
        dim %= array.ndim
        places = position(largest)(array, dim, True)
        values = ops.gather_elements(array, dim, places)
        if keepdim:
            return values, places
        shape = array.shape[:dim] + array.shape[dim + 1 :]
        return reshape(values, shape), reshape(places, shape)

    return find


def any_of(array: Array, dims: Dims = None, keepdim: bool = False) -> Array:
    """Whether one of them is true."""
    array = cast(array, torch.bool)
    return ops.any(array, dims_of(array, dims), keepdim) if array.ndim else array


def all_of(array: Array, dims: Dims = None, keepdim: bool = False) -> Array:
    """Whether all of them are true."""
    array = cast(array, torch.bool)
    return ops.all(array, dims_of(array, dims), keepdim) if array.ndim else array


def running_sum(array: Array, dim: int, dtype: torch.dtype | None = None) -> Array:
    """Sums of all entries up to each."""
    array = _summable(array, dtype)
    return ops.cumsum(array, dim % array.ndim) if array.ndim else array


def running_product(array: Array, dim: int, dtype: torch.dtype | None = None) -> Array:
    """Products of all entries up to each; built from pieces twice as long each time, for the gradient at zeros."""
    array = _summable(array, dtype)
    if array.ndim == 0:
        return array
    dim %= array.ndim
    reach, length = 1, array.shape[dim]
    while reach < length:
        later = part(array, dim, reach, length) * part(array, dim, 0, length - reach)
        array = ops.cat((part(array, dim, 0, reach), later), dim)
        reach *= 2
    return array


def log_sum_exp(array: Array, dims: Dims, keepdim: bool = False) -> Array:
    """``log(sum(exp(x)))`` that does not overflow."""
    over = dims_of(array, dims)
    largest = ops.stop_gradient(ops.amax(array, over, True))
    finite = ops.equal(largest - largest, ops.zeros_like(largest))
    shift = ops.where(finite, largest, ops.zeros_like(largest))
    summed = ops.log(ops.sum(ops.exp(array - shift), over, True)) + shift
    return summed if keepdim else reshape(summed, ops.sum(array, over).shape)


def sort(array: Array, dim: int = -1, descending: bool = False, stable: bool = False) -> tuple[Array, Array]:
    """Entries in order, equal ones as they were, and where each was."""
    if array.ndim == 0:
        return array, constant(0, torch.int64)
    dim %= array.ndim
    places = _order(ops.stop_gradient(_comparable(array)), dim, descending)
    return ops.gather_elements(array, dim, places), places


def _order(array: Array, dim: int, descending: bool) -> Array:
    """The place of each entry in the sorted row, found by counting those before it: stable, unlike the kernel."""
    last = array.ndim - 1
    order = [*(at for at in range(array.ndim) if at != dim), dim]
    rows = permute(array, order)
    length = rows.shape[last]
    mine, theirs = ops.expand_dims(rows, last + 1), ops.expand_dims(rows, last)
    earlier = constant(torch.ones(length, length, dtype=torch.bool).tril(-1), torch.bool)
    before = ops.greater(theirs, mine) if descending else ops.less(theirs, mine)
    tied = ops.logical_and(ops.equal(theirs, mine), earlier)
    rank = ops.sum(cast(ops.logical_or(before, tied), torch.int64), -1)
    hit = ops.equal(ops.expand_dims(rank, last), constant(torch.arange(length).view(-1, 1), torch.int64))
    places = ops.sum(cast(hit, torch.int64) * constant(torch.arange(length), torch.int64), -1)
    return permute(places, [order.index(at) for at in range(array.ndim)])


def topk(array: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Array, Array]:
    """The ``k`` largest (or smallest) entries, in order, and where they are."""
    values, places = sort(array, dim, descending=largest)
    return (values, places) if array.ndim == 0 else (part(values, dim, 0, k), part(places, dim, 0, k))


def vector_norm(
    array: Array, ord: Number = 2, dims: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Array:
    """The length of vectors, by one of several measures."""
    array = cast(array, dtype)
    if (wide := widened(array)) is not array:
        return cast(vector_norm(wide, ord, dims, keepdim), torch_type(array))
    size = ops.abs(array)
    if ord == float("inf"):
        return extreme(ops.amax)(size, dims, keepdim)
    if ord == 1:
        return total(size, dims, keepdim)
    if ord != 2:
        raise NotImplementedError(f"a vector norm of order {ord}: orders 1, 2 and infinity are there")
    squares = total(array * array, dims, keepdim)
    zero = ops.equal(squares, ops.zeros_like(squares))
    # The square root of zero has no slope; torch's norm gives a zero vector the gradient zero.
    return ops.where(zero, squares, ops.sqrt(ops.where(zero, ops.ones_like(squares), squares)))


OPERATIONS: dict[Any, Callable[..., Any]] = {
    aten.sum.default: lambda array, dtype=None: total(array, dtype=dtype),
    aten.sum.dim_IntList: total,
    aten.mean.default: lambda array, dtype=None: mean(array, dtype=dtype),
    aten.mean.dim: mean,
    aten.prod.default: lambda array, dtype=None: product(array, dtype=dtype),
    aten.prod.dim_int: product,
    aten.var.correction: variance,
    aten.var_mean.correction: variance_and_mean,
    aten.std.correction: lambda *arguments, **named: ops.sqrt(variance(*arguments, **named)),
    aten.amax.default: extreme(ops.amax),
    aten.amin.default: extreme(ops.amin),
    aten.max.default: extreme(ops.amax),
    aten.min.default: extreme(ops.amin),
    aten.max.dim: extreme_and_position(largest=True),
    aten.min.dim: extreme_and_position(largest=False),
    aten.argmax.default: position(largest=True),
    aten.argmin.default: position(largest=False),
    aten.any.default: any_of,
    aten.any.dim: any_of,
    aten.any.dims: any_of,
    aten.all.default: all_of,
    aten.all.dim: all_of,
    aten.all.dims: all_of,
    aten.cumsum.default: running_sum,
    aten.cumprod.default: running_product,
    aten.logsumexp.default: log_sum_exp,
    aten.sort.default: sort,
    aten.sort.stable: lambda array, stable=None, dim=-1, descending=False: sort(array, dim, descending),
    aten.topk.default: topk,
    aten.linalg_vector_norm.default: vector_norm,
}
