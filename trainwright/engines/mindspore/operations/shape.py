"""Shapes: views, parts, joining, and copies that only move numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from mindspore import Tensor as Array
from mindspore import ops

from trainwright.engines.mindspore.arrays import torch_type
from trainwright.engines.mindspore.operations.types import cast, constant, dims_of

aten = torch.ops.aten


def reshape(array: Array, shape: Sequence[int]) -> Array:
    """The same numbers in another shape."""
    return ops.reshape(array, tuple(shape))


def permute(array: Array, dims: Sequence[int]) -> Array:
    """Dimensions in another order."""
    return ops.transpose(array, dims_of(array, dims)) if array.ndim else array


def transpose(array: Array, one: int, other: int) -> Array:
    """Two dimensions swapped."""
    order = list(range(array.ndim))
    if array.ndim:
        order[one], order[other] = order[other], order[one]
    return permute(array, order)


def unsqueeze(array: Array, dim: int) -> Array:
    """A dimension of one more."""
    return ops.expand_dims(array, dim)


def squeeze(array: Array, dims: int | Sequence[int] | None = None) -> Array:
    """Without the dimensions of one among ``dims``, or without any."""
    wanted = range(array.ndim) if dims is None else dims_of(array, dims)
    return reshape(array, [size for dim, size in enumerate(array.shape) if not (dim in wanted and size == 1)])


def expand(array: Array, shape: Sequence[int], implicit: bool = False) -> Array:
    """Repeated along dimensions of one; -1 keeps a size."""
    new = len(shape) - array.ndim
    sizes = [array.shape[at - new] if size == -1 else size for at, size in enumerate(shape)]
    return ops.broadcast_to(array, tuple(sizes))


def cat(arrays: Sequence[Array], dim: int = 0) -> Array:
    """Joined along ``dim``, in a type that holds all of them."""
    # An empty tensor of one dimension joins anything: torch's exception for code that starts with torch.tensor([]).
    kept = [array for array in arrays if not (array.ndim == 1 and array.shape[0] == 0)] or list(arrays)[:1]
    dtype = torch_type(arrays[0])
    for array in arrays[1:]:
        dtype = torch.promote_types(dtype, torch_type(array))
    kept = [cast(array, dtype) for array in kept]
    return kept[0] if len(kept) == 1 else ops.cat(tuple(kept), dim)


def stack(arrays: Sequence[Array], dim: int = 0) -> Array:
    """Joined along a new dimension."""
    at = dim % (arrays[0].ndim + 1)
    return cat([ops.expand_dims(array, at) for array in arrays], at)


def part(array: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    """``array[start:end:step]`` along ``dim``."""
    dim %= array.ndim
    begin, stop, step = slice(start, end, step).indices(array.shape[dim])
    if (begin, step) == (0, 1) and stop == array.shape[dim]:
        return array
    if begin >= stop:
        sizes = list(array.shape)
        sizes[dim] = 0
        return constant(torch.empty(sizes), torch_type(array))
    if step != 1:  # MindSpore's gradient of slices with a step fails for some shapes
        return _taken(array, dim, torch.arange(begin, stop, step))
    low, high = [0] * array.ndim, list(array.shape)
    low[dim], high[dim] = begin, stop
    return ops.strided_slice(array, tuple(low), tuple(high), (1,) * array.ndim)


def select(array: Array, dim: int, index: int) -> Array:
    """One entry along ``dim``, which goes."""
    dim %= array.ndim
    index %= array.shape[dim]
    return reshape(part(array, dim, index, index + 1), array.shape[:dim] + array.shape[dim + 1 :])


def split_with_sizes(array: Array, sizes: Sequence[int], dim: int = 0) -> tuple[Array, ...]:
    """Parts of the given sizes."""
    parts, start = [], 0
    for size in sizes:
        parts.append(part(array, dim, start, start + size))
        start += size
    return tuple(parts)


def split(array: Array, size: int, dim: int = 0) -> tuple[Array, ...]:
    """Parts of one size; the last may be smaller."""
    length = array.shape[dim]
    return split_with_sizes(array, [min(size, length - at) for at in range(0, length, size)] or [0], dim)


def chunk(array: Array, chunks: int, dim: int = 0) -> tuple[Array, ...]:
    """At most ``chunks`` parts of equal size."""
    return split(array, max(-(-array.shape[dim] // chunks), 1), dim)


def unbind(array: Array, dim: int = 0) -> tuple[Array, ...]:
    """Every entry along ``dim``."""
    return tuple(select(array, dim, at) for at in range(array.shape[dim]))


def _taken(array: Array, dim: int, places: torch.Tensor) -> Array:
    """Entries along ``dim`` in an order known beforehand."""
    return ops.gather(array, constant(places, torch.int64), dim)


def flip(array: Array, dims: Sequence[int]) -> Array:
    """Backwards along ``dims``."""
    for dim in dims_of(array, dims) if len(dims) else ():
        array = _taken(array, dim, torch.arange(array.shape[dim]).flip(0))
    return array


def roll(array: Array, shifts: Sequence[int], dims: Sequence[int] = ()) -> Array:
    """Shifted; what leaves at one end comes in at the other."""
    if not dims:
        return reshape(roll(reshape(array, [-1]), shifts, [0]), array.shape)
    for dim, shift in zip(dims, shifts, strict=True):
        array = _taken(array, dim % array.ndim, torch.arange(array.shape[dim]).roll(shift))
    return array


def repeat(array: Array, repeats: Sequence[int]) -> Array:
    """Copies side by side."""
    array = reshape(array, (1,) * (len(repeats) - array.ndim) + tuple(array.shape))
    for dim, times in enumerate(repeats):
        if times != 1:
            array = _taken(array, dim, torch.arange(array.shape[dim]).repeat(times))
    return array


def repeat_interleave(array: Array, repeats: int, dim: int | None = None, output_size: int | None = None) -> Array:
    """Every entry several times in a row."""
    if dim is None:
        array, dim = reshape(array, [-1]), 0
    return _taken(array, dim % array.ndim, torch.arange(array.shape[dim]).repeat_interleave(repeats))


def constant_pad(array: Array, pad: Sequence[int], value: float = 0) -> Array:
    """More at the ends, filled with ``value``; less where ``pad`` is negative. Pairs from the last dimension on."""
    for at in range(len(pad) // 2):
        dim = array.ndim - 1 - at
        before, after = pad[2 * at], pad[2 * at + 1]
        array = part(array, dim, max(-before, 0), array.shape[dim] - max(-after, 0))
        pieces = [_filling(array, dim, before, value), array, _filling(array, dim, after, value)]
        array = cat([piece for piece in pieces if piece is not None], dim)
    return array


def _filling(array: Array, dim: int, count: int, value: float) -> Array | None:
    if count <= 0:
        return None
    sizes = list(array.shape)
    sizes[dim] = count
    return constant(torch.full(sizes, value), torch_type(array))


def slice_scatter(
    array: Array, source: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Array:
    """``array`` with ``source`` in place of one slice."""
    dim %= array.ndim
    length = array.shape[dim]
    places = torch.arange(length)
    at = slice(start, end, step).indices(length)
    count = len(range(*at))
    if count == length:
        return cast(source, torch_type(array))
    places[slice(*at)] = length + torch.arange(count)
    return _taken(cat([array, cast(source, torch_type(array))], dim), dim, places)


def select_scatter(array: Array, source: Array, dim: int, index: int) -> Array:
    """``array`` with ``source`` in place of one entry."""
    index %= array.shape[dim]
    return slice_scatter(array, ops.expand_dims(source, dim % array.ndim), dim, index, index + 1)


def triangle(keep: Callable[..., torch.Tensor]) -> Callable[..., Array]:
    """Zeros above (``tril``) or below (``triu``) a diagonal."""

    def cut(array: Array, diagonal: int = 0) -> Array:
        stays = constant(keep(torch.ones(array.shape[-2:], dtype=torch.bool), diagonal), torch.bool)
        return ops.where(stays, array, ops.zeros_like(array))

    return cut


def diagonal(array: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    """The entries on a diagonal, as the last dimension."""
    rest = [dim for dim in range(array.ndim) if dim not in dims_of(array, (dim1, dim2))]
    array = permute(array, [*rest, dim1, dim2])
    rows, columns = array.shape[-2:]
    places = torch.arange(rows * columns).view(rows, columns).diagonal(offset)
    return _taken(reshape(array, [*array.shape[:-2], rows * columns]), len(rest), places)


def unfold(array: Array, dim: int, size: int, step: int) -> Array:
    """Windows along ``dim``, as the last dimension."""
    dim %= array.ndim
    places = torch.arange(array.shape[dim]).unfold(0, size, step)
    windows = _taken(array, dim, places)
    return permute(windows, [at for at in range(windows.ndim) if at != dim + 1] + [dim + 1])


def copied(array: Array, **_: object) -> Array:
    """The array itself: arrays here never change, so that nobody sees that two are one."""
    return array


def convert(array: Array, dtype: torch.dtype | None = None, **_: object) -> Array:
    """As another type; places in memory are not ours to choose."""
    return cast(array, dtype)


def overwritten(array: Array, source: Array, non_blocking: bool = False) -> Array:
    """``source`` in the shape and type of ``array``."""
    return expand(cast(source, torch_type(array)), array.shape)


OPERATIONS: dict[Any, Callable[..., Any]] = {
    aten.view.default: reshape,
    aten._unsafe_view.default: reshape,
    aten.reshape.default: reshape,
    aten.permute.default: permute,
    aten.transpose.int: transpose,
    aten.t.default: lambda array: transpose(array, 0, 1) if array.ndim == 2 else array,
    aten.unsqueeze.default: unsqueeze,
    aten.squeeze.default: squeeze,
    aten.squeeze.dim: squeeze,
    aten.squeeze.dims: squeeze,
    aten.expand.default: expand,
    aten.cat.default: cat,
    aten.stack.default: stack,
    aten.slice.Tensor: part,
    aten.select.int: select,
    aten.split_with_sizes.default: split_with_sizes,
    aten.split.Tensor: split,
    aten.chunk.default: chunk,
    aten.unbind.int: unbind,
    aten.flip.default: flip,
    aten.roll.default: roll,
    aten.repeat.default: repeat,
    aten.repeat_interleave.self_int: repeat_interleave,
    aten.constant_pad_nd.default: constant_pad,
    aten.slice_scatter.default: slice_scatter,
    aten.select_scatter.default: select_scatter,
    aten.tril.default: triangle(torch.tril),
    aten.triu.default: triangle(torch.triu),
    aten.diagonal.default: diagonal,
    aten.unfold.default: unfold,
    aten.clone.default: copied,
    aten.alias.default: copied,
    aten.contiguous.default: copied,
    aten.lift_fresh_copy.default: copied,
    aten.detach.default: ops.stop_gradient,
    aten._to_copy.default: convert,
    aten.copy.default: overwritten,
}
