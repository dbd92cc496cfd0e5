"""Normalizations, attention's softmax, resampling and losses, as torch defines them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

_aten = torch.ops.aten


def _accurate(x: jax.Array) -> jax.Array:
    """torch sums and divides half-width numbers in float32."""
    return x.astype(jnp.float32) if x.dtype in (jnp.bfloat16, jnp.float16) else x


def _row_wise(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """``function`` with torch's NaN for a row that is all -inf, but without NaN in the gradient.

    torch's attention replaces such a row (a position that may look at nothing) after its softmax, and a gradient of
    zero must stay zero on its way back.
    """

    def rows(x: jax.Array, dim: int, half_to_float: bool = False) -> jax.Array:
        result = jnp.float32 if half_to_float else x.dtype
        wide = _accurate(x)
        if not x.ndim:
            return function(wide.reshape(1)).reshape(()).astype(result)
        nothing = jnp.all(wide == -jnp.inf, dim, keepdims=True)
        return jnp.where(nothing, jnp.nan, function(jnp.where(nothing, 0, wide), axis=dim)).astype(result)

    return rows


def _safe_softmax(x: jax.Array, dim: int, dtype: torch.dtype | None = None) -> jax.Array:
    if dtype not in (None, torch.float32):
        raise NotImplementedError(f"_safe_softmax to {dtype}: only float32")
    x = x.astype(jnp.float32) if dtype else x
    nothing = jnp.all(x == -jnp.inf, dim, keepdims=True)
    return jnp.where(nothing, 0, jax.nn.softmax(jnp.where(nothing, 0, x), axis=dim)).astype(x.dtype)


def _layer_norm(
    x: jax.Array, shape: Sequence[int], weight: object, bias: object, eps: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    wide = _accurate(x)
    mean = jnp.mean(wide, axes, keepdims=True)
    centred = wide - mean
    scale = jax.lax.rsqrt(jnp.mean(centred * centred, axes, keepdims=True) + eps)
    return _affine(centred * scale, weight, bias).astype(x.dtype), mean, scale


def _affine(x: jax.Array, weight: object, bias: object) -> jax.Array:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _batch_norm_with(
    x: jax.Array, weight: Any, bias: Any, mean: jax.Array, variance: jax.Array, eps: float
) -> tuple[jax.Array, jax.Array]:
    """The result, and the scale of each channel. All but ``x`` have one number for each channel."""
    across = (1, -1) + (1,) * (x.ndim - 2)
    scale = jax.lax.rsqrt(variance + eps)
    centred = (_accurate(x) - mean.reshape(across)) * scale.reshape(across)
    weight, bias = (None if part is None else part.reshape(across) for part in (weight, bias))
    return _affine(centred, weight, bias).astype(x.dtype), scale


def _statistics(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    axes, wide = (0, *range(2, x.ndim)), _accurate(x)
    mean = jnp.mean(wide, axes, keepdims=True)
    centred = wide - mean
    return mean.reshape(-1), jnp.mean(centred * centred, axes)


def _batch_norm(
    x: jax.Array, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float, eps: float
) -> tuple[jax.Array, ...]:
    """The result, this batch's mean and scale, and both running statistics after it."""
    if not training:
        return (*_batch_norm_no_training(x, weight, bias, mean, variance, momentum, eps), mean, variance)
    here, spread = _statistics(x)
    result, scale = _batch_norm_with(x, weight, bias, here, spread, eps)
    count = x.size // x.shape[1]
    # The running variance is that of a sample, the one that this batch is divided by is not.
    unbiased = spread * (count / max(count - 1, 1))
    running = [
        jax.lax.stop_gradient(old * (1 - momentum) + new * momentum).astype(old.dtype)
        for old, new in ((mean, here), (variance, unbiased))
    ]
    return result, here, scale, *running


def _batch_norm_no_training(
    x: jax.Array, weight: object, bias: object, mean: jax.Array, variance: jax.Array, momentum: float, eps: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    del momentum
    result, _ = _batch_norm_with(x, weight, bias, mean, variance, eps)
    return result, jnp.zeros((0,), x.dtype), jnp.zeros((0,), x.dtype)


def _batch_norm_no_stats(
    x: jax.Array, weight: object, bias: object, training: bool, momentum: float, eps: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    del training, momentum
    here, spread = _statistics(x)
    result, scale = _batch_norm_with(x, weight, bias, here, spread, eps)
    return result, here, scale


def _reduced(losses: jax.Array, reduction: int) -> jax.Array:
    return (lambda x: x, jnp.mean, jnp.sum)[reduction](losses)


def _nll_loss(
    scores: jax.Array, target: jax.Array, weight: Any, reduction: int, ignore_index: int
) -> tuple[jax.Array, jax.Array]:
    counted = target != ignore_index
    classes = jnp.where(counted, target, 0)
    axis = 0 if scores.ndim == 1 else 1
    chosen = jnp.squeeze(jnp.take_along_axis(scores, jnp.expand_dims(classes, axis), axis), axis)
    weights = jnp.ones((), scores.dtype) if weight is None else weight[classes]
    weights = jnp.where(counted, weights, jnp.zeros((), scores.dtype))
    losses, total = -chosen * weights, jnp.sum(weights)
    if reduction == 0:
        return losses, jnp.zeros((), scores.dtype)
    return (jnp.sum(losses) / total if reduction == 1 else jnp.sum(losses)), total


def _mse_loss(x: jax.Array, y: jax.Array, reduction: int = 1) -> jax.Array:
    return _reduced((x - y) ** 2, reduction)


def _huber_loss(x: jax.Array, y: jax.Array, reduction: int = 1, delta: float = 1.0) -> jax.Array:
    away = jnp.abs(x - y)
    return _reduced(jnp.where(away <= delta, 0.5 * away**2, delta * (away - 0.5 * delta)), reduction)


def _smooth_l1_loss(x: jax.Array, y: jax.Array, reduction: int = 1, beta: float = 1.0) -> jax.Array:
    away = jnp.abs(x - y)
    near = 0.5 * away**2 / beta if beta else away
    return _reduced(jnp.where(away < beta, near, away - 0.5 * beta), reduction)


def _cross_entropy_of_logits(
    x: jax.Array, y: jax.Array, weight: object = None, pos_weight: object = None, reduction: int = 1
) -> jax.Array:
    positive = jax.nn.log_sigmoid(x) * y
    losses = -((positive if pos_weight is None else positive * pos_weight) + jax.nn.log_sigmoid(-x) * (1 - y))
    return _reduced(losses if weight is None else losses * weight, reduction)


def _sizes(x: jax.Array, size: Sequence[int] | None, factors: Sequence[float] | None) -> tuple[int, ...]:
    if size is not None:
        return tuple(size)
    assert factors is not None
    return tuple(int(extent * factor) for extent, factor in zip(x.shape[-len(factors) :], factors, strict=True))


def _ratio(before: int, after: int, factor: float | None) -> float:
    return 1 / factor if factor else before / after


def _upsample_nearest(x: jax.Array, size: Any, factors: Any) -> jax.Array:
    for place, after in enumerate(sizes := _sizes(x, size, factors)):
        axis = x.ndim - len(sizes) + place
        ratio = _ratio(x.shape[axis], after, factors[place] if factors else None)
        sources = np.minimum(np.floor(np.arange(after) * ratio).astype(np.int64), x.shape[axis] - 1)
        x = jnp.take(x, sources, axis)
    return x


def _upsample_linear(x: jax.Array, size: Any, align_corners: bool, factors: Any) -> jax.Array:
    for place, after in enumerate(sizes := _sizes(x, size, factors)):
        axis = x.ndim - len(sizes) + place
        before, steps = x.shape[axis], np.arange(after)
        if align_corners:
            sources = steps * ((before - 1) / max(after - 1, 1))
        else:
            ratio = _ratio(before, after, factors[place] if factors else None)
            sources = np.maximum((steps + 0.5) * ratio - 0.5, 0)
        below = np.minimum(np.floor(sources).astype(np.int64), before - 1)
        share = (sources - below).reshape((-1,) + (1,) * (x.ndim - axis - 1)).astype(x.dtype)
        above = np.minimum(below + 1, before - 1)
        x = jnp.take(x, below, axis) * (1 - share) + jnp.take(x, above, axis) * share
    return x


LAYERS: dict[Any, Callable[..., Any]] = {
    _aten._softmax.default: _row_wise(jax.nn.softmax),
    _aten._log_softmax.default: _row_wise(jax.nn.log_softmax),
    _aten._safe_softmax.default: _safe_softmax,
    _aten.native_layer_norm.default: _layer_norm,
    _aten._native_batch_norm_legit_functional.default: _batch_norm,
    _aten._native_batch_norm_legit_no_training.default: _batch_norm_no_training,
    _aten._native_batch_norm_legit.no_stats: _batch_norm_no_stats,
    _aten.nll_loss_forward.default: _nll_loss,
    _aten.mse_loss.default: _mse_loss,
    _aten.huber_loss.default: _huber_loss,
    _aten.smooth_l1_loss.default: _smooth_l1_loss,
    _aten.binary_cross_entropy_with_logits.default: _cross_entropy_of_logits,
    _aten.upsample_nearest2d.vec: _upsample_nearest,
    _aten.upsample_bilinear2d.vec: _upsample_linear,
}
