"""Activations, softmax and losses, written with what is exact: MindSpore's own approximate some of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from mindspore import Tensor as Array
from mindspore import ops

from trainwright.engines.mindspore.arrays import torch_type
from trainwright.engines.mindspore.operations.arithmetic import clamp, tanh
from trainwright.engines.mindspore.operations.by_products import spread, summed
from trainwright.engines.mindspore.operations.types import Number, cast, constant, dims_of, widened

aten = torch.ops.aten
#: How losses are gathered over elements, by torch's numbers for it.
_EACH, _MEAN, _SUM = 0, 1, 2


def _number(value: Number, like: Array) -> Array:
    return constant(value, torch_type(like))


def relu(array: Array) -> Array:
    """Nothing below zero."""
    return ops.relu(array)


def gelu(array: Array, approximate: str = "none") -> Array:
    """With the error function itself, or with its approximation by tanh."""
    half, one = _number(0.5, array), _number(1, array)
    if approximate == "tanh":
        inner = (array + array * array * array * _number(0.044715, array)) * _number(math.sqrt(2 / math.pi), array)
        return array * half * (tanh(inner) + one)
    return array * half * (ops.erf(array * _number(math.sqrt(0.5), array)) + one)


def silu(array: Array) -> Array:
    """``x * sigmoid(x)``."""
    return array * ops.sigmoid(array)


def elu(array: Array, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Array:
    """Linear above zero, an exponential curve below."""
    zero = _number(0, array)
    # The curve is computed below zero only: above, its overflow would make the gradient NaN.
    below = ops.expm1(ops.where(array > zero, zero, array) * _number(input_scale, array)) * _number(alpha, array)
    return ops.where(array > zero, array, below) * _number(scale, array)


def leaky_relu(array: Array, negative_slope: Number = 0.01) -> Array:
    """Linear, with another slope below zero."""
    return ops.where(array > _number(0, array), array, array * _number(negative_slope, array))


def hardtanh(array: Array, low: Number = -1, high: Number = 1) -> Array:
    """Cut on both sides; without a gradient on the bounds themselves, unlike clamp."""
    low_, high_ = _number(low, array), _number(high, array)
    return ops.where(array <= low_, low_, ops.where(array >= high_, high_, array))


def softplus(array: Array, beta: Number = 1, threshold: Number = 20) -> Array:
    """``log(1 + exp(beta x)) / beta``, and ``x`` where that makes no difference."""
    scaled = array * _number(beta, array)
    large = scaled > _number(threshold, array)
    curve = ops.log1p(ops.exp(ops.where(large, _number(0, array), scaled))) / _number(beta, array)
    return ops.where(large, array, curve)


def _one_or_less(array: Array) -> Array:
    """``x / 6 + 1/2`` between 0 and 1."""
    return hardtanh(array + _number(3, array), 0, 6) / _number(6, array)


def hardswish(array: Array) -> Array:
    """``x * hardsigmoid(x)``; written in pieces, for its slope on the bounds."""
    three = _number(3, array)
    middle = array * (array + three) / _number(6, array)
    return ops.where(array <= -three, ops.zeros_like(array), ops.where(array >= three, array, middle))


def log_sigmoid(array: Array) -> Array:
    """``log(sigmoid(x))`` that does not overflow on either side."""
    zero = _number(0, array)
    # Not by abs, which has no slope at zero.
    return ops.where(array < zero, array, zero) - ops.log1p(ops.exp(ops.where(array < zero, array, -array)))


def prelu(array: Array, weight: Array) -> Array:
    """A learned slope below zero, one for all or one per channel."""
    if weight.ndim == 1 and weight.shape[0] > 1 and array.ndim > 1:
        weight = ops.reshape(weight, (1, -1) + (1,) * (array.ndim - 2))
    return ops.where(array > _number(0, array), array, array * weight)


def mish(array: Array) -> Array:
    """``x * tanh(softplus(x))``."""
    return array * tanh(softplus(array))


def softmax(array: Array, dim: int, half_to_float: bool | torch.dtype | None = False) -> Array:
    """Shares that sum to one along ``dim``; rows of nothing but -inf are NaN, as in torch."""
    array = _soft_input(array, half_to_float)
    if array.ndim == 0:
        return ops.exp(array - array)
    wide = widened(array)
    powers = ops.exp(wide - ops.stop_gradient(_largest(wide, dim)))
    whole = spread(summed(powers, dims_of(powers, dim), True), powers.shape)
    return cast(powers / whole, torch_type(array))


def log_softmax(array: Array, dim: int, half_to_float: bool | torch.dtype | None = False) -> Array:
    """The logarithms of :func:`softmax`."""
    array = _soft_input(array, half_to_float)
    if array.ndim == 0:
        return array - array
    wide = widened(array)
    shifted = wide - ops.stop_gradient(_largest(wide, dim))
    whole = ops.log(summed(ops.exp(shifted), dims_of(shifted, dim), True))
    return cast(shifted - spread(whole, shifted.shape), torch_type(array))


def _soft_input(array: Array, dtype: bool | torch.dtype | None) -> Array:
    if isinstance(dtype, torch.dtype):
        return cast(array, dtype)
    return cast(array, torch.float32) if dtype else array


def _largest(array: Array, dim: int) -> Array:
    return ops.amax(array, dim, True)


def _gathered(losses: Array, reduction: int) -> Array:
    if reduction == _EACH:
        return losses
    total = ops.sum(losses)
    return total if reduction == _SUM else total / _number(max(losses.size, 1), losses)


def mse_loss(predicted: Array, target: Array, reduction: int = _MEAN) -> Array:
    """Squared differences."""
    difference = predicted - target
    return _gathered(difference * difference, reduction)


def smooth_l1_loss(predicted: Array, target: Array, reduction: int = _MEAN, beta: float = 1.0) -> Array:
    """Squared up to ``beta``, then linear with slope one."""
    distance = ops.abs(predicted - target)
    if beta == 0:
        return _gathered(distance, reduction)
    edge, half = _number(beta, distance), _number(0.5, distance)
    return _gathered(ops.where(distance < edge, distance * distance * half / edge, distance - edge * half), reduction)


def huber_loss(predicted: Array, target: Array, reduction: int = _MEAN, delta: float = 1.0) -> Array:
    """Squared up to ``delta``, then linear with slope ``delta``."""
    distance = ops.abs(predicted - target)
    edge, half = _number(delta, distance), _number(0.5, distance)
    return _gathered(
        ops.where(distance <= edge, distance * distance * half, (distance - edge * half) * edge), reduction
    )


def binary_cross_entropy(probability: Array, target: Array, weight: object = None, reduction: int = _MEAN) -> Array:
    """Of probabilities; logarithms not below -100, as in torch."""
    one = _number(1, probability)
    low = -100.0
    losses = (target - one) * clamp(ops.log(one - probability), low) - target * clamp(ops.log(probability), low)
    return _gathered(losses if weight is None else losses * weight, reduction)


def binary_cross_entropy_with_logits(
    logits: Array, target: Array, weight: object = None, pos_weight: object = None, reduction: int = _MEAN
) -> Array:
    """Of logits, without overflow."""
    one = _number(1, logits)
    slope = one if pos_weight is None else (pos_weight - one) * target + one
    losses = (one - target) * logits - slope * log_sigmoid(logits)
    return _gathered(losses if weight is None else losses * weight, reduction)


def nll_loss(
    logarithms: Array, target: Array, weight: Array | None, reduction: int, ignore_index: int
) -> tuple[Array, Array]:
    """What the right class was given, negated, and the sum of the weights of what counted."""
    classes = logarithms.ndim - 1 if logarithms.ndim <= 2 else 1
    counts = ops.not_equal(target, constant(ignore_index, torch_type(target)))
    safe = ops.where(counts, target, ops.zeros_like(target))
    picked = ops.squeeze(ops.gather_elements(logarithms, classes, ops.expand_dims(safe, classes)), classes)
    weights = cast(counts, torch_type(logarithms))
    if weight is not None:
        weights = ops.gather(weight, safe, 0) * weights
    # -inf times zero would be NaN: what does not count is left out before it is weighed.
    losses = ops.where(counts, -picked, ops.zeros_like(picked)) * weights
    total = ops.sum(weights)
    if reduction == _EACH:
        return losses, ops.zeros_like(total)
    return (ops.sum(losses) / total if reduction == _MEAN else ops.sum(losses)), total


OPERATIONS: dict[Any, Callable[..., Any]] = {
    aten.relu.default: relu,
    aten.relu6.default: lambda array: hardtanh(array, 0, 6),
    aten.gelu.default: gelu,
    aten.silu.default: silu,
    aten.elu.default: elu,
    aten.leaky_relu.default: leaky_relu,
    aten.hardtanh.default: hardtanh,
    aten.softplus.default: softplus,
    aten.hardsigmoid.default: _one_or_less,
    aten.hardswish.default: hardswish,
    aten.log_sigmoid_forward.default: lambda array: (log_sigmoid(array), None),
    aten.log_sigmoid.default: log_sigmoid,
    aten._prelu_kernel.default: prelu,
    aten.mish.default: mish,
    aten._softmax.default: softmax,
    aten._log_softmax.default: log_softmax,
    aten.softmax.int: softmax,
    aten.log_softmax.int: log_softmax,
    aten.mse_loss.default: mse_loss,
    aten.l1_loss.default: lambda predicted, target, reduction=_MEAN: _gathered(ops.abs(predicted - target), reduction),
    aten.smooth_l1_loss.default: smooth_l1_loss,
    aten.huber_loss.default: huber_loss,
    aten.binary_cross_entropy.default: binary_cross_entropy,
    aten.binary_cross_entropy_with_logits.default: binary_cross_entropy_with_logits,
    aten.nll_loss_forward.default: nll_loss,
    aten.nll_loss2d_forward.default: nll_loss,
}
