"""Products of matrices, and normalization."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from mindspore import Tensor as Array
from mindspore import ops

from trainwright.engines.mindspore.arrays import torch_type
from trainwright.engines.mindspore.operations.by_products import spread
from trainwright.engines.mindspore.operations.reduction import mean
from trainwright.engines.mindspore.operations.shape import reshape
from trainwright.engines.mindspore.operations.types import Number, cast, constant, widened

aten = torch.ops.aten


def product(one: Array, other: Array) -> Array:
    """The product of matrices, of many at once where there are more dimensions."""
    return ops.matmul(one, other)


def product_and(added: Array, one: Array, other: Array, *, beta: Number = 1, alpha: Number = 1) -> Array:
    """``beta * added + alpha * (one @ other)``."""
    result = product(one, other)
    if alpha != 1:
        result = result * constant(alpha, torch_type(result))
    if beta == 0:  # what is not wanted may be NaN, and NaN times zero is NaN
        return result
    added = spread(added, result.shape)
    return result + (added if beta == 1 else added * constant(beta, torch_type(added)))


def linear(array: Array, weight: Array, bias: Array | None = None) -> Array:
    """``array @ weight.T + bias``."""
    rows = reshape(array, [-1, weight.shape[1]]) if array.ndim != 2 else array
    # The flag saves a copy of the weight, and one of its gradient.
    result = ops.MatMul(transpose_b=True)(rows, weight)
    if bias is not None:
        result = result + spread(bias, result.shape)
    return reshape(result, [*array.shape[:-1], weight.shape[0]]) if array.ndim != 2 else result


def _standardized(array: Array, dims: Sequence[int], eps: float) -> tuple[Array, Array, Array, Array]:
    """With mean zero and variance one over ``dims``; and the mean, the variance, and what was divided by, inverted."""
    centre = mean(array, dims, keepdim=True)
    distance = array - spread(centre, array.shape)
    variance = mean(distance * distance, dims, keepdim=True)
    scale = ops.rsqrt(variance + constant(eps, torch_type(array)))
    return distance * spread(scale, array.shape), centre, variance, scale


def _scaled(array: Array, weight: Array | None, bias: Array | None, shape: Sequence[int] | None = None) -> Array:
    dtype = torch_type(array)
    if weight is not None:
        array = array * spread(cast(weight if shape is None else reshape(weight, shape), dtype), array.shape)
    if bias is not None:
        array = array + spread(cast(bias if shape is None else reshape(bias, shape), dtype), array.shape)
    return array


def layer_norm(
    array: Array, shape: Sequence[int], weight: Array | None, bias: Array | None, eps: float
) -> tuple[Array, Array, Array]:
    """Normalized over the last dimensions; and the mean and inverse deviation."""
    dims = tuple(range(array.ndim - len(shape), array.ndim))
    result, centre, _, scale = _standardized(widened(array), dims, eps)
    return cast(_scaled(result, weight, bias), torch_type(array)), centre, scale


def rms_norm(
    array: Array, shape: Sequence[int], weight: Array | None = None, eps: float | None = None
) -> tuple[Array, Array]:
    """Divided by the root of the mean square over the last dimensions; and the inverse of that."""
    dims = tuple(range(array.ndim - len(shape), array.ndim))
    smallest = torch.finfo(torch_type(array)).eps if eps is None else eps
    wide = widened(array)
    scale = ops.rsqrt(mean(wide * wide, dims, keepdim=True) + constant(smallest, torch_type(wide)))
    return cast(_scaled(wide * spread(scale, wide.shape), weight, None), torch_type(array)), scale


def group_norm(
    array: Array,
    weight: Array | None,
    bias: Array | None,
    batch: int,
    channels: int,
    rest: int,
    groups: int,
    eps: float,
) -> tuple[Array, Array, Array]:
    """Normalized over the channels of each group; and the means and inverse deviations."""
    result, centre, _, scale = _standardized(widened(reshape(array, [batch, groups, -1])), (2,), eps)
    per_channel = (1, channels) + (1,) * (array.ndim - 2)
    result = cast(_scaled(reshape(result, array.shape), weight, bias, per_channel), torch_type(array))
    return result, reshape(centre, [batch, groups]), reshape(scale, [batch, groups])


def _per_channel(array: Array) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The dimensions that are not the channel's, and the shape that broadcasts one number per channel."""
    return (0, *range(2, array.ndim)), (1, array.shape[1]) + (1,) * (array.ndim - 2)


def batch_norm(
    array: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Array, Array, Array, Array | None, Array | None]:
    """Normalized per channel; mean and inverse deviation of the batch; what the running statistics become."""
    if not training:
        assert running_mean is not None
        assert running_var is not None
        result, _, _ = batch_norm_fixed(array, weight, bias, running_mean, running_var, momentum, eps)
        empty = constant(torch.empty(0), torch_type(array))
        return result, empty, empty, running_mean, running_var
    dims, shape = _per_channel(array)
    result, centre, variance, scale = _standardized(widened(array), dims, eps)
    result = cast(_scaled(result, weight, bias, shape), torch_type(array))
    centre, variance, scale = (reshape(value, [-1]) for value in (centre, variance, scale))
    count = array.size // array.shape[1]
    if running_mean is None or running_var is None:
        return result, centre, scale, None, None
    # Gradients stop: statistics are no path to the loss. The kept variance is the unbiased one.
    unbiased = variance * constant(count / (count - 1) if count > 1 else math.nan, torch_type(variance))
    moved = [
        old + (ops.stop_gradient(new).astype(old.dtype) - old) * constant(momentum, torch_type(old))
        for old, new in ((running_mean, centre), (running_var, unbiased))
    ]
    return result, centre, scale, moved[0], moved[1]


def batch_norm_fixed(
    array: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    momentum: float,
    eps: float,
) -> tuple[Array, Array, Array]:
    """Normalized by the running statistics; nothing is measured."""
    _, shape = _per_channel(array)
    wide, centre, variance = widened(array), widened(running_mean), widened(running_var)
    scale = ops.rsqrt(variance + constant(eps, torch_type(variance)))
    result = (wide - reshape(centre, shape)) * reshape(scale, shape)
    empty = constant(torch.empty(0), torch_type(array))
    return cast(_scaled(result, weight, bias, shape), torch_type(array)), empty, empty


def attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Array:
    """Each query's mean of the values, weighed by how well the keys match."""
    from trainwright.engines.mindspore.operations.activation import softmax

    if dropout_p:
        raise NotImplementedError("dropout inside an attention kernel: its random numbers would not be torch's")
    if enable_gqa:
        times = query.shape[-3] // key.shape[-3]
        places = constant(torch.arange(key.shape[-3]).repeat_interleave(times), torch.int64)
        key, value = ops.gather(key, places, key.ndim - 3), ops.gather(value, places, value.ndim - 3)
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    order = (*range(key.ndim - 2), key.ndim - 1, key.ndim - 2)
    scores = product(query, ops.transpose(key, order)) * constant(factor, torch_type(query))
    none = constant(-math.inf, torch_type(query))
    if is_causal:
        seen = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
        scores = ops.where(constant(seen, torch.bool), scores, none)
    if mask is not None:
        scores = ops.where(mask, scores, none) if torch_type(mask) is torch.bool else scores + mask
    return product(softmax(scores, scores.ndim - 1), value)


OPERATIONS: dict[Any, Callable[..., Any]] = {
    aten.mm.default: product,
    aten.bmm.default: product,
    aten.mv.default: product,
    aten.dot.default: lambda one, other: ops.sum(one * other),
    aten.matmul.default: product,
    aten.addmm.default: product_and,
    aten.addmv.default: product_and,
    aten.baddbmm.default: product_and,
    aten.linear.default: linear,
    aten.scaled_dot_product_attention.default: attention,
    aten.native_layer_norm.default: layer_norm,
    aten._fused_rms_norm.default: rms_norm,
    aten.native_group_norm.default: group_norm,
    aten._native_batch_norm_legit_functional.default: batch_norm,
    aten._native_batch_norm_legit.no_stats: lambda array, weight, bias, training, momentum, eps: batch_norm(
        array, weight, bias, None, None, training, momentum, eps
    )[:3],
    aten._native_batch_norm_legit_no_training.default: batch_norm_fixed,
}
