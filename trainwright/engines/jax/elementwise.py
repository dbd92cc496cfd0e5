"""Operations on single elements, as torch defines them: which type comes out, and the gradient at corners."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
import torch

from trainwright.engines.jax.arrays import torch_dtype, types_of

_aten = torch.ops.aten
Operation = Callable[..., Any]


def common_type(*operands: Any) -> Any:
    """The type in which torch combines operands: 0-d tensors and numbers yield to arrays of the same kind."""
    stand_ins = [
        torch.empty((0,) * operand.ndim, dtype=torch_dtype(operand)) if isinstance(operand, jax.Array) else operand
        for operand in operands
    ]
    return types_of(torch.result_type(*stand_ins))


def in_common_type(operation: Operation, first: int = 0) -> Operation:
    """``operation`` with its operands ``first`` and the next one brought to the type that torch combines them in."""

    @wraps(operation)
    def combined(*args: object, **kwargs: object) -> Any:
        left, right = args[first : first + 2]
        shared = common_type(left, right)
        left, right = (x.astype(shared) if isinstance(x, jax.Array) else x for x in (left, right))
        return operation(*args[:first], left, right, *args[first + 2 :], **kwargs)

    return combined


def _scaled(x: Any, alpha: float) -> Any:
    return x if alpha == 1 else x * alpha


def _add(x: object, y: object, alpha: float = 1) -> Any:
    return x + _scaled(y, alpha)


def _sub(x: object, y: object, alpha: float = 1) -> Any:
    return x - _scaled(y, alpha)


def _rsub(x: object, y: object, alpha: float = 1) -> Any:
    return y - _scaled(x, alpha)


def _absolute(x: jax.Array) -> jax.Array:
    # JAX's own has the gradient 1 at zero.
    return jnp.where(x == 0, jnp.zeros_like(x), jnp.abs(x))


def _clamp(x: jax.Array, low: object = None, high: object = None) -> jax.Array:
    """At a bound the gradient is the input's, as in torch."""
    for bound in (low, high):
        if bound is not None:
            x = x.astype(common_type(x, bound))
    if low is not None:
        x = jnp.where(x < low, jnp.asarray(low, x.dtype), x)
    if high is not None:
        x = jnp.where(x > high, jnp.asarray(high, x.dtype), x)
    return x


def _clamp_max(x: jax.Array, high: object) -> jax.Array:
    return _clamp(x, None, high)


def _softplus(x: jax.Array, beta: float = 1, threshold: float = 20) -> jax.Array:
    del threshold  # where torch avoids an overflow, which this form does not have
    return jax.nn.softplus(x * beta) / beta


def _elu(x: jax.Array, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> jax.Array:
    # The branch that is not taken must be finite too: its gradient is multiplied by zero.
    below = jnp.where(x > 0, jnp.zeros_like(x), x)
    return jnp.where(x > 0, x * scale, scale * alpha * jnp.expm1(below * input_scale))


def _celu(x: jax.Array, alpha: float = 1) -> jax.Array:
    return _elu(x, alpha, 1, 1 / alpha)


def _hardsigmoid(x: jax.Array) -> jax.Array:
    return _clamp(x + 3, 0, 6) / 6


def _nan_to_num(x: jax.Array, nan: object = None, posinf: object = None, neginf: object = None) -> jax.Array:
    largest = jnp.finfo(x.dtype).max
    x = jnp.where(jnp.isnan(x), jnp.asarray(nan or 0, x.dtype), x)
    x = jnp.where(x == jnp.inf, jnp.asarray(largest if posinf is None else posinf, x.dtype), x)
    return jnp.where(x == -jnp.inf, jnp.asarray(-largest if neginf is None else neginf, x.dtype), x)


def _masked_fill(x: jax.Array, mask: jax.Array, value: object) -> jax.Array:
    return jnp.where(mask, jnp.asarray(value).astype(x.dtype), x)


def _lerp(x: jax.Array, end: jax.Array, weight: object) -> jax.Array:
    return x + weight * (end - x)


def _addcmul(x: jax.Array, first: jax.Array, second: jax.Array, value: float = 1) -> jax.Array:
    return x + value * first * second


def _addcdiv(x: jax.Array, first: jax.Array, second: jax.Array, value: float = 1) -> jax.Array:
    return x + value * first / second


def _logical_add(x: object, y: object, alpha: float = 1) -> Any:
    """Sums of flags are flags in torch."""
    total = _add(x, y, alpha)
    return total.astype(bool) if common_type(x, y) == jnp.bool_ else total


ELEMENTWISE: dict[Any, Operation] = {
    _aten.add.Tensor: in_common_type(_logical_add),
    _aten.add.Scalar: in_common_type(_logical_add),
    _aten.sub.Tensor: in_common_type(_sub),
    _aten.sub.Scalar: in_common_type(_sub),
    _aten.rsub.Tensor: in_common_type(_rsub),
    _aten.rsub.Scalar: in_common_type(_rsub),
    _aten.abs.default: _absolute,
    _aten.clamp.default: _clamp,
    _aten.clamp.Tensor: _clamp,
    _aten.clamp_min.default: _clamp,
    _aten.clamp_max.default: _clamp_max,
    _aten.softplus.default: _softplus,
    _aten.elu.default: _elu,
    _aten.celu.default: _celu,
    _aten.hardtanh.default: lambda x, low=-1, high=1: _clamp(x, low, high),
    _aten.hardsigmoid.default: _hardsigmoid,
    _aten.hardswish.default: lambda x: x * _hardsigmoid(x),
    _aten.log_sigmoid_forward.default: lambda x: (jax.nn.log_sigmoid(x), jnp.zeros((0,), x.dtype)),
    _aten.mish.default: lambda x: x * jnp.tanh(jax.nn.softplus(x)),
    _aten.nan_to_num.default: _nan_to_num,
    _aten.masked_fill.Scalar: _masked_fill,
    _aten.masked_fill.Tensor: _masked_fill,
    _aten.lerp.Scalar: _lerp,
    _aten.lerp.Tensor: _lerp,
    _aten.addcmul.default: _addcmul,
    _aten.addcdiv.default: _addcdiv,
}
