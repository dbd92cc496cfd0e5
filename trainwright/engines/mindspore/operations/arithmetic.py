"""Element by element: arithmetic, comparisons, logic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from mindspore import Tensor as Array
from mindspore import ops

from trainwright.engines.mindspore.arrays import torch_type
from trainwright.engines.mindspore.operations.by_products import met
from trainwright.engines.mindspore.operations.types import (
    Number,
    alike,
    as_floating,
    as_type,
    cast,
    constant,
    is_array,
    is_bool,
    result_type,
)

aten = torch.ops.aten


def add(one: object, other: object, alpha: Number = 1) -> Array:
    """``one + alpha * other``."""
    one, other = alike(one, other)
    if is_bool(one):
        return ops.logical_or(one, other)
    one, other = met(one, other)
    return one + (other if alpha == 1 else other * constant(alpha, torch_type(other)))


def sub(one: object, other: object, alpha: Number = 1) -> Array:
    """``one - alpha * other``."""
    one, other = met(*alike(one, other))
    return one - (other if alpha == 1 else other * constant(alpha, torch_type(other)))


def rsub(one: object, other: object, alpha: Number = 1) -> Array:
    """``other - alpha * one``."""
    one, other = alike(one, other)
    return other - (one if alpha == 1 else one * constant(alpha, torch_type(one)))


def mul(one: object, other: object) -> Array:
    """The product; of truth values, whether both hold."""
    one, other = alike(one, other)
    if is_bool(one):
        return ops.logical_and(one, other)
    one, other = met(one, other)
    return one * other


def div(one: object, other: object, rounding_mode: str | None = None) -> Array:
    """The quotient, or its whole part towards zero ("trunc") or towards minus infinity ("floor")."""
    if rounding_mode is None:
        one, other = met(*alike(one, other, floating=True))
        return one / other
    one, other = alike(one, other)
    if rounding_mode == "floor":
        return ops.floor_div(one, other)
    if torch_type(one).is_floating_point:
        return trunc(one / other)
    # Whole numbers stay whole: through real numbers large ones would lose digits.
    quotient = ops.floor_div(ops.abs(one), ops.abs(other))
    return quotient * ops.sign(one) * ops.sign(other)


def remainder(one: object, other: object) -> Array:
    """What division leaves, with the sign of the divisor."""
    one, other = alike(one, other)
    return one - ops.stop_gradient(ops.floor_div(one, other)) * other


def fmod(one: object, other: object) -> Array:
    """What division leaves, with the sign of the dividend."""
    one, other = alike(one, other)
    return one - ops.stop_gradient(div(one, other, rounding_mode="trunc")) * other


def power(base: Any, exponent: Any) -> Array:
    """``base`` to the ``exponent``; small whole ones as products, which have a gradient at zero too."""
    if is_array(exponent):
        base, exponent = alike(base, exponent)
        return ops.pow(base, exponent)
    base = as_type(base, result_type(base, exponent))
    if exponent == int(exponent) and 1 <= exponent <= 4:
        result = base
        for _ in range(int(exponent) - 1):
            result = result * base
        return result
    if exponent == 0:
        return ops.ones_like(base)
    special: dict[float, Callable[[Array], Array]] = {0.5: ops.sqrt, -0.5: ops.rsqrt, -1: ops.reciprocal}
    if exponent in special and torch_type(base).is_floating_point:
        return special[exponent](base)
    return ops.pow(base, constant(exponent, torch_type(base)))


def trunc(array: Array) -> Array:
    """Without what follows the point."""
    if not torch_type(array).is_floating_point:
        return array
    return ops.stop_gradient(ops.sign(array) * ops.floor(ops.abs(array)))


def rounding(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """``function`` for numbers with a point; whole ones are what they would become. Steps have no slope."""
    return lambda array: ops.stop_gradient(function(array)) if torch_type(array).is_floating_point else array


def round_to(array: Array, decimals: int = 0) -> Array:
    """The nearest number with ``decimals`` digits; halves go to the even neighbour."""
    if decimals == 0:
        return rounding(ops.round)(array)
    scale = constant(10.0**decimals, torch_type(array))
    return ops.stop_gradient(ops.round(array * scale) / scale)


def floating(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """``function`` after whole numbers were made real ones."""
    return lambda array: function(as_floating(array))


def tanh(array: Array) -> Array:
    """The hyperbolic tangent. MindSpore's own in float32 on the CPU is off by up to 1e-4."""
    array = as_floating(array)
    zero, two = constant(0, torch_type(array)), constant(2, torch_type(array))
    # Below zero nothing overflows and nothing cancels; above, the function is the same with the other sign.
    grown = ops.expm1(ops.where(array > zero, -array, array) * two)
    below = grown / (grown + two)
    return ops.where(array > zero, -below, below)


def absolute(array: Array) -> Array:
    """Without the sign."""
    return ops.abs(array)


def sign(array: Array) -> Array:
    """-1, 0 or 1."""
    return array if is_bool(array) else ops.stop_gradient(ops.sign(array))


def minimum(one: object, other: object) -> Array:
    """The smaller one; where both are equal, each gets half of the gradient."""
    one, other = alike(one, other)
    return _choose(one, other, ops.less)


def maximum(one: object, other: object) -> Array:
    """The larger one; where both are equal, each gets half of the gradient."""
    one, other = alike(one, other)
    return _choose(one, other, ops.greater)


def _choose(one: Array, other: Array, better: Callable[[Array, Array], Array]) -> Array:
    if is_bool(one):
        return ops.logical_and(one, other) if better is ops.less else ops.logical_or(one, other)
    if not torch_type(one).is_floating_point:
        return ops.where(better(one, other), one, other)
    half = constant(0.5, torch_type(one))
    # NaN is neither better nor worse nor equal: the last branch hands it on.
    return ops.where(better(one, other), one, ops.where(better(other, one), other, (one + other) * half))


def clamp(array: Array, low: object = None, high: object = None) -> Array:
    """Not below ``low`` and not above ``high``; the gradient passes where nothing was cut, bounds included."""
    dtype = torch_type(array)
    for bound in (low, high):
        if bound is not None:
            dtype = torch.promote_types(dtype, result_type(array, bound))
    array = cast(array, dtype)
    if low is not None:
        low = as_type(low, dtype)
        array = ops.where(array < low, low, array)
    if high is not None:
        high = as_type(high, dtype)
        array = ops.where(array > high, high, array)
    return array


def comparing(function: Callable[[Array, Array], Array]) -> Callable[[Any, Any], Array]:
    """A comparison of an array with an array or a number."""

    def compare(one: object, other: object) -> Array:
        one, other = alike(one, other)
        if is_bool(one):
            one, other = cast(one, torch.int32), cast(other, torch.int32)
        return function(one, other)

    return compare


def logical(function: Callable[..., Array]) -> Callable[..., Array]:
    """A function of truth values, for numbers too: everything but zero is true."""
    return lambda *arrays: function(*(ops.stop_gradient(cast(array, torch.bool)) for array in arrays))


def bitwise(of_bools: Callable[..., Array], of_numbers: Callable[..., Array]) -> Callable[..., Array]:
    """A function of the bits of whole numbers; truth values have one."""

    def combine(one: object, other: object) -> Array:
        one, other = alike(one, other)
        return of_bools(one, other) if is_bool(one) else of_numbers(one, other)

    return combine


def bitwise_not(array: Array) -> Array:
    """Every bit turned over."""
    return ops.logical_not(array) if is_bool(array) else -array - constant(1, torch_type(array))


def is_nan(array: Array) -> Array:
    """Not equal to itself."""
    return ops.not_equal(array, array)


def is_inf(array: Array) -> Array:
    """Infinite, of either sign."""
    if not torch_type(array).is_floating_point:
        return ops.zeros_like(array).astype(bool)
    return ops.equal(ops.abs(array), constant(float("inf"), torch_type(array)))


def addcmul(array: Array, one: Array, other: Array, value: Number = 1) -> Array:
    """``array + value * one * other``."""
    return add(array, mul(one, other), alpha=value)


def addcdiv(array: Array, one: Array, other: Array, value: Number = 1) -> Array:
    """``array + value * one / other``."""
    return add(array, div(one, other), alpha=value)


def lerp(start: Array, end: Array, weight: object) -> Array:
    """The point ``weight`` of the way from ``start`` to ``end``."""
    return add(start, mul(sub(end, start), weight))


OPERATIONS: dict[Any, Callable[..., Any]] = {
    aten.add.Tensor: add,
    aten.add.Scalar: add,
    aten.sub.Tensor: sub,
    aten.sub.Scalar: sub,
    aten.rsub.Tensor: rsub,
    aten.rsub.Scalar: rsub,
    aten.mul.Tensor: mul,
    aten.mul.Scalar: mul,
    aten.div.Tensor: div,
    aten.div.Scalar: div,
    aten.div.Tensor_mode: div,
    aten.div.Scalar_mode: div,
    aten.floor_divide.default: lambda one, other: div(one, other, rounding_mode="floor"),
    aten.floor_divide.Scalar: lambda one, other: div(one, other, rounding_mode="floor"),
    aten.remainder.Tensor: remainder,
    aten.remainder.Scalar: remainder,
    aten.fmod.Tensor: fmod,
    aten.fmod.Scalar: fmod,
    aten.pow.Tensor_Scalar: power,
    aten.pow.Tensor_Tensor: power,
    aten.pow.Scalar: power,
    aten.neg.default: ops.neg,
    aten.abs.default: absolute,
    aten.sign.default: sign,
    aten.sgn.default: sign,
    aten.exp.default: floating(ops.exp),
    aten.exp2.default: lambda array: ops.exp(as_floating(array) * constant(0.6931471805599453, torch.float32)),
    aten.expm1.default: floating(ops.expm1),
    aten.log.default: floating(ops.log),
    aten.log2.default: lambda array: div(ops.log(as_floating(array)), 0.6931471805599453),
    aten.log10.default: lambda array: div(ops.log(as_floating(array)), 2.302585092994046),
    aten.log1p.default: floating(ops.log1p),
    aten.sqrt.default: floating(ops.sqrt),
    aten.rsqrt.default: floating(ops.rsqrt),
    aten.reciprocal.default: floating(ops.reciprocal),
    aten.sin.default: floating(ops.sin),
    aten.cos.default: floating(ops.cos),
    aten.tan.default: floating(ops.tan),
    aten.asin.default: floating(ops.asin),
    aten.acos.default: floating(ops.acos),
    aten.atan.default: floating(ops.atan),
    aten.sinh.default: floating(ops.sinh),
    aten.cosh.default: floating(ops.cosh),
    aten.asinh.default: floating(ops.asinh),
    aten.acosh.default: floating(ops.acosh),
    aten.atanh.default: floating(ops.atanh),
    aten.atan2.default: lambda one, other: ops.atan2(*alike(one, other, floating=True)),
    aten.tanh.default: tanh,
    aten.sigmoid.default: floating(ops.sigmoid),
    aten.erf.default: floating(ops.erf),
    aten.erfc.default: floating(ops.erfc),
    aten.floor.default: rounding(ops.floor),
    aten.ceil.default: rounding(ops.ceil),
    aten.trunc.default: trunc,
    aten.round.default: round_to,
    aten.round.decimals: round_to,
    aten.minimum.default: minimum,
    aten.maximum.default: maximum,
    aten.clamp.default: clamp,
    aten.clamp.Tensor: clamp,
    aten.clamp_min.default: clamp,
    aten.clamp_min.Tensor: clamp,
    aten.clamp_max.default: lambda array, high: clamp(array, None, high),
    aten.clamp_max.Tensor: lambda array, high: clamp(array, None, high),
    aten.eq.Tensor: comparing(ops.equal),
    aten.eq.Scalar: comparing(ops.equal),
    aten.ne.Tensor: comparing(ops.not_equal),
    aten.ne.Scalar: comparing(ops.not_equal),
    aten.lt.Tensor: comparing(ops.less),
    aten.lt.Scalar: comparing(ops.less),
    aten.le.Tensor: comparing(ops.less_equal),
    aten.le.Scalar: comparing(ops.less_equal),
    aten.gt.Tensor: comparing(ops.greater),
    aten.gt.Scalar: comparing(ops.greater),
    aten.ge.Tensor: comparing(ops.greater_equal),
    aten.ge.Scalar: comparing(ops.greater_equal),
    aten.logical_and.default: logical(ops.logical_and),
    aten.logical_or.default: logical(ops.logical_or),
    aten.logical_xor.default: logical(ops.logical_xor),
    aten.logical_not.default: logical(ops.logical_not),
    aten.bitwise_and.Tensor: bitwise(ops.logical_and, ops.bitwise_and),
    aten.bitwise_and.Scalar: bitwise(ops.logical_and, ops.bitwise_and),
    aten.bitwise_or.Tensor: bitwise(ops.logical_or, ops.bitwise_or),
    aten.bitwise_or.Scalar: bitwise(ops.logical_or, ops.bitwise_or),
    aten.bitwise_xor.Tensor: bitwise(ops.logical_xor, ops.bitwise_xor),
    aten.bitwise_xor.Scalar: bitwise(ops.logical_xor, ops.bitwise_xor),
    aten.bitwise_not.default: bitwise_not,
    aten.isnan.default: is_nan,
    aten.isinf.default: is_inf,
    aten.addcmul.default: addcmul,
    aten.addcdiv.default: addcdiv,
    aten.lerp.Scalar: lerp,
    aten.lerp.Tensor: lerp,
}
