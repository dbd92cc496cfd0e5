"""Convolutions, pooling and resizing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product as every
from typing import Any

import torch
from mindspore import Tensor as Array
from mindspore import ops

from trainwright.engines.mindspore.arrays import torch_type
from trainwright.engines.mindspore.operations.by_products import spread
from trainwright.engines.mindspore.operations.shape import cat, constant_pad, part, reshape
from trainwright.engines.mindspore.operations.types import computes_on_cpu, constant

aten = torch.ops.aten


def _each(value: int | Sequence[int], count: int) -> list[int]:
    """One number per dimension."""
    listed = [value] if isinstance(value, int) else list(value)
    return listed * count if len(listed) == 1 else listed


def convolution(
    array: Array,
    weight: Array,
    bias: Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Array:
    """In one, two or three dimensions, and its transpose."""
    count = array.ndim - 2
    stride, padding, dilation = _each(stride, count), _each(padding, count), _each(dilation, count)
    if transposed:
        array, weight = _spread(array, stride, padding, dilation, _each(output_padding, count), weight, groups)
        stride, padding = [1] * count, [0] * count
    result = _convolved(array, weight, stride, padding, dilation, groups)
    return result if bias is None else result + spread(reshape(bias, (1, -1) + (1,) * count), result.shape)


def _convolved(
    array: Array,
    weight: Array,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Array:
    """By MindSpore's kernel where it has one, for images and sequences of at most 32 bits; else by a matrix product.

    On the CPU always by a product: its kernel took 75 ms, forward and backward, where the product takes 9 (16 images of
    16 x 16 with 16 channels to 32, kernels of 3 x 3, two cores).
    """
    count = array.ndim - 2
    if count == 1:
        wide = _convolved(
            ops.expand_dims(array, 2),
            ops.expand_dims(weight, 2),
            *([1, stride[0]], [0, padding[0]], [1, dilation[0]], groups),
        )
        return ops.squeeze(wide, 2)
    if count == 2 and torch_type(array) in (torch.float32, torch.float16) and not computes_on_cpu():
        return ops.conv2d(array, weight, None, tuple(stride), "pad", tuple(padding), tuple(dilation), groups)
    array = constant_pad(array, [size for pad in reversed(padding) for size in (pad, pad)])
    return _by_columns(array, weight, stride, dilation, groups)


def _by_columns(array: Array, weight: Array, stride: Sequence[int], dilation: Sequence[int], groups: int) -> Array:
    """A convolution without padding: windows of the input, as columns of one matrix product."""
    batch, channels = array.shape[:2]
    outputs, per_group, *kernel = weight.shape
    sizes = [
        (length - reach * (size - 1) - 1) // step + 1
        for length, size, step, reach in zip(array.shape[2:], kernel, stride, dilation, strict=True)
    ]
    taps = [_tap(array, at, sizes, stride, dilation) for at in every(*map(range, kernel))]
    places = math.prod(sizes)
    columns = cat([reshape(tap, [batch, channels, 1, places]) for tap in taps], 2)
    columns = reshape(columns, [batch, groups, per_group * len(taps), places])
    rows = reshape(weight, [1, groups, outputs // groups, per_group * len(taps)])
    rows = spread(rows, (batch, groups, outputs // groups, per_group * len(taps)))
    return reshape(ops.matmul(rows, columns), [batch, outputs, *sizes])


def _tap(
    array: Array, at: Sequence[int], sizes: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> Array:
    """What one place of the kernel sees, for all windows."""
    for number, (place, size, step, reach) in enumerate(zip(at, sizes, stride, dilation, strict=True)):
        start = place * reach
        array = part(array, number + 2, start, start + (size - 1) * step + 1, step)
    return array


def _spread(
    array: Array,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    extra: Sequence[int],
    weight: Array,
    groups: int,
) -> tuple[Array, Array]:
    """What an ordinary convolution needs to give the transposed one: zeros between entries, a kernel backwards."""
    for number, step in enumerate(stride):
        dim = number + 2
        if step > 1:
            length, shape = array.shape[dim], list(array.shape)
            zeros = constant(torch.zeros([*shape[: dim + 1], step - 1, *shape[dim + 1 :]]), torch_type(array))
            array = reshape(
                cat([ops.expand_dims(array, dim + 1), zeros], dim + 1), [*shape[:dim], -1, *shape[dim + 1 :]]
            )
            array = part(array, dim, 0, (length - 1) * step + 1)
    pads = []
    for size, pad, reach, more in zip(weight.shape[2:], padding, dilation, extra, strict=True):
        pads = [reach * (size - 1) - pad, reach * (size - 1) - pad + more, *pads]
    for dim in range(2, weight.ndim):
        weight = ops.gather(weight, constant(torch.arange(weight.shape[dim] - 1, -1, -1), torch.int64), dim)
    inputs, outputs, *kernel = weight.shape
    weight = reshape(weight, [groups, inputs // groups, outputs, *kernel])
    weight = ops.transpose(weight, (0, 2, 1, *range(3, weight.ndim)))
    return constant_pad(array, pads), reshape(weight, [groups * outputs, inputs // groups, *kernel])


def _windows(
    array: Array, count: int, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> tuple[list[int], list[int], list[int], list[int], list[int], list[int]]:
    """Kernel, stride, padding, dilation, what pads the far end, and sizes of the result, one per dimension."""
    kernel = _each(kernel, count)
    stride = _each(stride, count) if stride else kernel
    padding, dilation = _each(padding, count), _each(dilation, count)
    after, sizes = [], []
    lengths = array.shape[array.ndim - count :]
    for length, size, step, pad, reach in zip(lengths, kernel, stride, padding, dilation, strict=True):
        span = length + 2 * pad - reach * (size - 1) - 1
        outputs = (-(-span // step) if ceil_mode else span // step) + 1
        if ceil_mode and (outputs - 1) * step >= length + pad:
            outputs -= 1  # a window has to begin inside
        sizes.append(outputs)
        after.append(max((outputs - 1) * step + reach * (size - 1) + 1 - length - pad, 0))
    return kernel, stride, padding, dilation, after, sizes


def _pooling_taps(array: Array, count: int, windows: tuple[list[int], ...], fill: float) -> list[Array]:
    kernel, stride, padding, dilation, after, sizes = windows
    lead = array.shape[: array.ndim - count]
    array = reshape(array, [1, math.prod(lead), *array.shape[array.ndim - count :]])
    pads = [size for pad, far in zip(reversed(padding), reversed(after), strict=True) for size in (pad, far)]
    array = constant_pad(array, pads, fill)
    taps = [_tap(array, at, sizes, stride, dilation) for at in every(*map(range, kernel))]
    return [reshape(tap, [*lead, *sizes]) for tap in taps]


def max_pool(count: int) -> Callable[..., tuple[Array, Array]]:
    """The largest in each window and its place; of equal ones the first, which alone gets the gradient."""

    def pool(
        array: Array,
        kernel: object,
        stride: object = (),
        padding: object = 0,
        dilation: object = 1,
        ceil_mode: bool = False,
    ) -> tuple[Array, Array]:
        windows = _windows(array, count, kernel, stride, padding, dilation, ceil_mode)
        lengths = array.shape[array.ndim - count :]
        numbers = torch.arange(math.prod(lengths), dtype=torch.float64).view(1, *lengths)
        taps = _pooling_taps(array, count, windows, -math.inf)
        places = _pooling_taps(constant(numbers, torch.float64), count, windows, -1)
        best, best_place = taps[0], ops.broadcast_to(_fits(places[0], taps[0]), taps[0].shape)
        for tap, place in zip(taps[1:], places[1:], strict=True):
            better = ops.logical_or(ops.greater(tap, best), ops.not_equal(tap, tap))
            best = ops.where(better, tap, best)
            best_place = ops.where(better, _fits(place, tap), best_place)
        return best, ops.stop_gradient(best_place).astype("int64")

    return pool


def _fits(place: Array, tap: Array) -> Array:
    """Places, which are the same for every image and channel, in a shape that meets all of them."""
    return reshape(place, (1,) * (tap.ndim - place.ndim + 1) + tuple(place.shape[1:]))


def avg_pool(count: int) -> Callable[..., Array]:
    """The mean of each window."""

    def pool(
        array: Array,
        kernel: object,
        stride: object = (),
        padding: object = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Array:
        windows = _windows(array, count, kernel, stride, padding, 1, ceil_mode)
        total = None
        for tap in _pooling_taps(array, count, windows, 0):
            total = tap if total is None else total + tap
        assert total is not None
        if divisor_override:
            return total / constant(divisor_override, torch_type(array))
        counts = torch.ones((), dtype=torch.float64)
        for size, step, pad, length, outputs in zip(
            windows[0], windows[1], windows[2], array.shape[array.ndim - count :], windows[5], strict=True
        ):
            counts = counts[..., None] * _entries(size, step, pad, length, outputs, count_include_pad)
        return total / constant(counts, torch_type(array))

    return pool


def _entries(size: int, step: int, pad: int, length: int, outputs: int, with_padding: bool) -> torch.Tensor:
    """How many entries each window along one dimension has, with the padding or without."""
    starts = torch.arange(outputs) * step - pad
    ends = (starts + size).clamp(max=length + pad)
    if not with_padding:
        starts, ends = starts.clamp(min=0), ends.clamp(max=length)
    return (ends - starts).double()


def adaptive_avg_pool(count: int) -> Callable[[Array, Sequence[int]], Array]:
    """The means of as many windows as asked for: one matrix product per dimension, with torch's own shares."""

    def pool(array: Array, sizes: Sequence[int]) -> Array:
        for at, size in enumerate(sizes):
            dim = array.ndim - count + at
            eye = torch.eye(array.shape[dim], dtype=torch.float64)[None]
            array = _mixed(array, dim, torch.nn.functional.adaptive_avg_pool1d(eye, size)[0])
        return array

    return pool


def _mixed(array: Array, dim: int, shares: torch.Tensor) -> Array:
    """Along ``dim`` new entries that are mixtures of the old ones: ``shares[old, new]``."""
    order = [at for at in range(array.ndim) if at != dim] + [dim]
    mixed = ops.matmul(ops.transpose(array, tuple(order)), constant(shares, torch_type(array)))
    return ops.transpose(mixed, tuple(order.index(at) for at in range(array.ndim)))


def adaptive_max_pool2d(array: Array, sizes: Sequence[int]) -> tuple[Array, Array]:
    """The largest of as many windows as asked for, where they are all of one size."""
    lengths = array.shape[-2:]
    if any(length % size for length, size in zip(lengths, sizes, strict=True)):
        raise NotImplementedError(
            f"adaptive max pooling of {tuple(lengths)} to {tuple(sizes)}: windows of several sizes; sizes that divide "
            "the input's work"
        )
    return max_pool(2)(array, [length // size for length, size in zip(lengths, sizes, strict=True)])


def _target_sizes(array: Array, count: int, sizes: Any, scales: Any) -> list[int]:
    if sizes is not None:
        return list(sizes)
    return [math.floor(length * scale) for length, scale in zip(array.shape[-count:], scales, strict=True)]


def upsample(count: int, mode: str) -> Callable[..., Array]:
    """Resized: every dimension by a matrix of shares that torch's own resizing of single points gives."""

    def resize(array: Array, sizes: Any, *rest: Any) -> Array:
        align, *scales = rest if mode != "nearest" else (None, *rest)
        scales = list(scales[0]) if scales and isinstance(scales[0], list | tuple) else scales
        scales = scales if any(scale is not None for scale in scales) else [None] * count
        for at, size in enumerate(_target_sizes(array, count, sizes, scales)):
            dim = array.ndim - count + at
            array = _mixed(array, dim, _shares(mode, array.shape[dim], size, align, scales[at]))
        return array

    return resize


def _shares(mode: str, length: int, size: int, align: bool | None, scale: float | None) -> torch.Tensor:
    eye = torch.eye(length, dtype=torch.float64)
    if mode == "nearest":
        return aten.upsample_nearest1d(eye[None], [size], scale)[0]
    if mode == "linear":
        return aten.upsample_linear1d(eye[None], [size], align, scale)[0]
    return aten.upsample_bicubic2d(eye[None, :, :, None], [size, 1], align, scale, None)[0, :, :, 0]


OPERATIONS: dict[Any, Callable[..., Any]] = {
    aten.convolution.default: convolution,
    aten.max_pool2d_with_indices.default: max_pool(2),
    aten.max_pool3d_with_indices.default: max_pool(3),
    aten.avg_pool1d.default: avg_pool(1),
    aten.avg_pool2d.default: avg_pool(2),
    aten.avg_pool3d.default: avg_pool(3),
    aten._adaptive_avg_pool2d.default: adaptive_avg_pool(2),
    aten._adaptive_avg_pool3d.default: adaptive_avg_pool(3),
    aten.adaptive_avg_pool1d.default: adaptive_avg_pool(1),
    aten.adaptive_max_pool2d.default: adaptive_max_pool2d,
    aten.upsample_nearest1d.default: upsample(1, "nearest"),
    aten.upsample_nearest1d.vec: upsample(1, "nearest"),
    aten.upsample_nearest2d.default: upsample(2, "nearest"),
    aten.upsample_nearest2d.vec: upsample(2, "nearest"),
    aten.upsample_linear1d.default: upsample(1, "linear"),
    aten.upsample_linear1d.vec: upsample(1, "linear"),
    aten.upsample_bilinear2d.default: upsample(2, "linear"),
    aten.upsample_bilinear2d.vec: upsample(2, "linear"),
    aten.upsample_bicubic2d.default: upsample(2, "cubic"),
    aten.upsample_bicubic2d.vec: upsample(2, "cubic"),
}
