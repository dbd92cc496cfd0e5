"""Calls of ATen operations that every framework must answer as torch does. Knows no framework but torch.

A case is the overload, what makes its arguments, and which tensors among them have a gradient to compare (positions
among the tensors of the arguments, lists flattened). Values, shapes and dtypes of the results are those of torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

A = torch.ops.aten


class OpCase(NamedTuple):
    """One call."""

    overload: Any
    make: Callable[[], tuple[Any, ...]]
    kwargs: dict[str, Any]
    differentiable: tuple[int, ...]
    #: Which of several results are compared; others are for torch's own backward.
    outputs: tuple[int, ...] | None = None


class Answer(NamedTuple):
    """What torch says: results, and gradients of their weighted sum."""

    results: list[Tensor]
    weights: list[Tensor]
    gradients: list[Tensor]


def flat_tensors(values: Any) -> list[Tensor]:
    """The tensors in ``values``, in order."""
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)]


def compared(case: OpCase, results: Any) -> list[Any]:
    """The results that a case compares, as a list."""
    listed = list(results) if isinstance(results, tuple | list) else [results]
    return listed if case.outputs is None else [listed[index] for index in case.outputs]


def answer(case: OpCase, args: tuple[Any, ...]) -> Answer:
    """What torch makes of ``args``. The sum whose gradients are taken weighs every element differently."""
    args = pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, args)
    sources = [flat_tensors(args)[position] for position in case.differentiable]
    for source in sources:
        source.requires_grad_()
    results = compared(case, case.overload(*args, **case.kwargs))
    weights = [
        torch.cos(torch.arange(result.numel()) * 0.7).reshape(result.shape).to(result.dtype) for result in results
    ]
    if not sources:
        return Answer(results, weights, [])
    # What torch does not differentiate (running statistics) takes no part.
    weights = [weight * result.requires_grad for weight, result in zip(weights, results, strict=True)]
    total = sum((r * w).sum() for r, w in zip(results, weights, strict=True) if r.is_floating_point())
    assert isinstance(total, Tensor)
    gradients = torch.autograd.grad(total, sources)
    return Answer([result.detach() for result in results], weights, list(gradients))


def floats(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal numbers."""
    return torch.randn(shape).to(dtype)


def positive(*shape: int) -> Tensor:
    """Between 0.2 and 2.2."""
    return torch.rand(shape) * 2 + 0.2


def inside(*shape: int) -> Tensor:
    """Between -0.9 and 0.9."""
    return torch.rand(shape) * 1.8 - 0.9


def integers(low: int, high: int, *shape: int) -> Tensor:
    """int64."""
    return torch.randint(low, high, shape)


def flags(*shape: int) -> Tensor:
    """bool."""
    return torch.rand(shape) > 0.5


CASES: dict[str, OpCase] = {}


def _case(
    overload: Any,
    make: Callable[[], tuple[Any, ...]],
    differentiable: tuple[int, ...] = (),
    note: str = "",
    outputs: tuple[int, ...] | None = None,
    **kwargs: Any,
) -> None:
    name = f"{overload}".removeprefix("aten.") + (f": {note}" if note else "")
    assert name not in CASES, name
    CASES[name] = OpCase(overload, make, kwargs, differentiable, outputs)


def _elementwise() -> None:
    everywhere = [A.abs, A.cos, A.sin, A.tanh, A.sigmoid, A.exp, A.expm1, A.neg, A.erf, A.relu, A.silu, A.sinh, A.cosh]
    everywhere += [A.asinh, A.atan, A.softplus, A.elu, A.leaky_relu, A.hardtanh, A.hardsigmoid, A.hardswish, A.alias]
    everywhere += [A.clone, A.detach_copy, A.log_sigmoid_forward, A.erfc, A.mish, A.tan, A.celu]
    for packet in everywhere:
        _case(packet.default, lambda: (inside(3, 4),), (0,) if packet is not A.detach_copy else (), outputs=(0,))
    for packet in [A.log, A.log1p, A.log2, A.log10, A.sqrt, A.rsqrt, A.reciprocal]:
        _case(packet.default, lambda: (positive(3, 4),), (0,))
    for packet in [A.acos, A.asin, A.atanh]:
        _case(packet.default, lambda: (inside(3, 4),), (0,))
    _case(A.acosh.default, lambda: (positive(3, 4) + 1,), (0,))
    for packet in [A.floor, A.ceil, A.round, A.trunc, A.sign]:
        _case(packet.default, lambda: (floats(3, 4) * 3,), (0,))
    for packet in [A.sqrt, A.exp, A.sin, A.sigmoid, A.tanh, A.log, A.rsqrt, A.reciprocal, A.erf]:
        _case(packet.default, lambda: (integers(1, 5, 6),), note="of integers")
    for packet in [A.abs, A.neg, A.relu, A.sign, A.floor, A.ceil]:
        _case(packet.default, lambda: (integers(-5, 5, 6),), note="of integers")
    _case(A.round.default, lambda: (torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5]),), note="halves")
    _case(A.relu.default, lambda: (torch.tensor([-1.0, 0.0, 2.0]),), (0,), note="at zero")
    _case(A.abs.default, lambda: (torch.tensor([-1.0, 0.0, 2.0]),), (0,), note="at zero")
    _case(A.gelu.default, lambda: (floats(3, 4) * 3,), (0,))
    _case(A.gelu.default, lambda: (floats(3, 4) * 3,), (0,), note="tanh", approximate="tanh")
    _case(A.softplus.default, lambda: (floats(8) * 30, 2.0, 20.0), (0,), note="beta")
    _case(A.elu.default, lambda: (floats(8) * 100, 1.5), (0,), note="large")
    _case(A.hardtanh.default, lambda: (floats(8) * 4, 0.0, 6.0), (0,), note="relu6")
    _case(A.leaky_relu.default, lambda: (floats(8), 0.2), (0,), note="slope")
    _case(A.tanh.default, lambda: (floats(3, dtype=torch.bfloat16),), note="bfloat16")
    _case(A.isnan.default, lambda: (torch.tensor([1.0, float("nan"), float("inf")]),))
    _case(A.isinf.default, lambda: (torch.tensor([1.0, float("nan"), float("-inf")]),))
    _case(A.nan_to_num.default, lambda: (torch.tensor([1.0, float("nan"), float("inf"), float("-inf")]),), (0,))
    _case(A.clamp.default, lambda: (floats(8) * 2, -0.5, 1.0), (0,))
    _case(A.clamp.default, lambda: (floats(8) * 2, None, 1.0), (0,), note="above only")
    _case(A.clamp.default, lambda: (integers(-9, 9, 8), 0), note="integers")
    _case(A.clamp.default, lambda: (integers(-9, 9, 8), -1.5, 2.5), note="integers between floats")
    _case(A.clamp.Tensor, lambda: (floats(8), inside(8) - 1, inside(8) + 1), (0,))
    _case(A.clamp_min.default, lambda: (torch.tensor([-1.0, 0.0, 2.0]), 0.0), (0,), note="at the bound")
    _case(A.clamp_max.default, lambda: (floats(8), 0.3), (0,))


def _binary() -> None:
    for packet in [A.add, A.sub, A.mul, A.div, A.maximum, A.minimum, A.atan2]:
        overload = packet.default if "Tensor" not in packet.overloads() else packet.Tensor
        _case(overload, lambda: (floats(2, 3, 4), positive(3, 1)), (0, 1))
        if packet not in (A.maximum, A.minimum, A.atan2):
            _case(packet.Tensor, lambda: (floats(2, 3), 1.7), (0,), note="and a number")
            _case(packet.Tensor, lambda: (integers(1, 9, 4), 2.5), note="integers and a float")
            _case(packet.Tensor, lambda: (integers(1, 9, 4), floats(4)), (1,), note="integers and floats")
            _case(packet.Tensor, lambda: (floats(4, dtype=torch.bfloat16), 1.5), note="bfloat16 and a number")
            _case(packet.Tensor, lambda: (floats(4, dtype=torch.bfloat16), floats(4)), note="bfloat16 and float32")
            _case(packet.Tensor, lambda: (floats(4), torch.tensor(2.0, dtype=torch.float64)), note="a 0-d double")
            _case(packet.Tensor, lambda: (integers(1, 9, 4), integers(1, 9, 4)), note="integers")
            _case(packet.Tensor, lambda: (integers(1, 9, 4), torch.tensor(2.5)), note="integers and a 0-d float")
            _case(packet.Scalar, lambda: (floats(2, 3), 3), (0,))
    for packet in [A.mul, A.add]:
        _case(packet.Tensor, lambda: (floats(4, dtype=torch.bfloat16), torch.tensor(2.0)), note="bfloat16, 0-d float32")
    _case(A.mul.Tensor, lambda: (flags(4), floats(4)), (1,), note="bool and floats")
    _case(A.mul.Tensor, lambda: (flags(4), flags(4)), note="bool and bool")
    _case(A.add.Tensor, lambda: (flags(4), flags(4)), note="bool and bool")
    _case(A.add.Tensor, lambda: (flags(4), 1), note="bool and an integer")
    _case(A.mul.Tensor, lambda: (integers(0, 9, 4).int(), integers(0, 9, 4)), note="int32 and int64")
    _case(A.add.Tensor, lambda: (floats(4), floats(4)), (0, 1), note="alpha", alpha=0.3)
    _case(A.sub.Tensor, lambda: (floats(4), floats(4)), (0, 1), note="alpha", alpha=2)
    _case(A.rsub.Scalar, lambda: (floats(4), 1.0), (0,))
    _case(A.rsub.Tensor, lambda: (floats(4), floats(4)), (0, 1))
    _case(A.maximum.default, lambda: (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0])), (0, 1), note="equal")
    _case(A.maximum.default, lambda: (integers(0, 9, 4), floats(4)), note="integers and floats")
    for mode in ["floor", "trunc"]:
        _case(A.div.Tensor_mode, lambda: (floats(8) * 5, positive(8)), note=mode, rounding_mode=mode)
        _case(A.div.Tensor_mode, lambda: (integers(-9, 9, 8), 4), note=f"{mode} of integers", rounding_mode=mode)
        _case(A.div.Scalar_mode, lambda: (integers(-9, 9, 8), 4), note=mode, rounding_mode=mode)
    for packet in [A.remainder, A.fmod]:
        _case(packet.Tensor, lambda: (floats(8) * 5, positive(8)), (0,))
        _case(packet.Scalar, lambda: (integers(-9, 9, 8), 4))
    _case(A.floor_divide.default, lambda: (integers(-9, 9, 8), 4))
    for exponent in [2, 3, 0.5, -1.5, 0]:
        _case(A.pow.Tensor_Scalar, lambda e=exponent: (positive(6), e), (0,), note=str(exponent))
    _case(A.pow.Tensor_Scalar, lambda: (torch.tensor([-2.0, 0.0, 3.0]), 3), (0,), note="negative base")
    _case(A.pow.Tensor_Scalar, lambda: (torch.tensor([-2.0, 0.0, 3.0]), 2.0), (0,), note="float 2 of a negative base")
    _case(A.pow.Tensor_Scalar, lambda: (integers(0, 5, 4), 2), note="integers")
    _case(A.pow.Tensor_Tensor, lambda: (positive(6), floats(6)), (0, 1))
    _case(A.pow.Scalar, lambda: (2.0, floats(6)), (0,))
    _case(A.pow.Scalar, lambda: (10000, positive(6)), (0,), note="an integer base")
    for packet in [A.eq, A.ne, A.lt, A.le, A.gt, A.ge]:
        _case(packet.Tensor, lambda: (integers(0, 3, 2, 5), integers(0, 3, 5)))
        _case(packet.Scalar, lambda: (integers(0, 3, 8), 1))
        _case(packet.Scalar, lambda: (floats(8), 0.1), note="floats")
    for packet in [A.bitwise_and, A.bitwise_or, A.bitwise_xor]:
        _case(packet.Tensor, lambda: (flags(8), flags(8)))
        _case(packet.Tensor, lambda: (integers(0, 9, 8), integers(0, 9, 8)), note="integers")
        _case(packet.Scalar, lambda: (integers(0, 9, 8), 3))
    for packet in [A.logical_and, A.logical_or, A.logical_xor]:
        _case(packet.default, lambda: (flags(8), integers(0, 2, 8)))
    _case(A.logical_not.default, lambda: (integers(0, 2, 8),))
    _case(A.bitwise_not.default, lambda: (flags(8),))
    _case(A.bitwise_not.default, lambda: (integers(0, 9, 8),), note="integers")
    _case(A.where.self, lambda: (flags(3, 4), floats(3, 4), floats(4)), (1, 2))
    _case(A.where.self, lambda: (flags(4), floats(4), torch.tensor(0.0)), (1,), note="a 0-d tensor")
    _case(A.where.self, lambda: (flags(4), integers(0, 4, 4), torch.tensor(-100)), note="integers")
    _case(A.where.ScalarOther, lambda: (flags(4), floats(4), 2.0), (1,))
    _case(A.masked_fill.Scalar, lambda: (floats(3, 4), flags(4), float("-inf")))
    _case(A.masked_fill.Scalar, lambda: (floats(3, 4), flags(4), 0), (0,), note="zero")
    _case(A.masked_fill.Scalar, lambda: (integers(0, 9, 4), flags(4), -100), note="integers")
    _case(A.masked_fill.Tensor, lambda: (floats(3, 4), flags(3, 1), torch.tensor(1.5)), (0,))
    _case(A.lerp.Tensor, lambda: (floats(4), floats(4), inside(4)), (0, 1, 2))
    _case(A.lerp.Scalar, lambda: (floats(4), floats(4), 0.3), (0, 1))
    _case(A.addcmul.default, lambda: (floats(4), floats(4), floats(4)), (0, 1, 2), value=0.5)
    _case(A.addcdiv.default, lambda: (floats(4), floats(4), positive(4)), (0, 1, 2), value=0.5)


def _reductions() -> None:
    _case(A.mean.default, lambda: (floats(3, 4),), (0,))
    _case(A.mean.dim, lambda: (floats(3, 4, 5), [-1, 0], True), (0,))
    _case(A.mean.dim, lambda: (floats(3, 4), [1]), (0,), note="one")
    _case(A.mean.dim, lambda: (integers(0, 9, 4), [0]), note="integers as floats", dtype=torch.float32)
    _case(A.sum.default, lambda: (floats(3, 4),), (0,))
    _case(A.sum.dim_IntList, lambda: (floats(3, 4, 5), [1], True), (0,))
    _case(A.sum.dim_IntList, lambda: (floats(3, 4), []), (0,), note="all")
    _case(A.sum.dim_IntList, lambda: (flags(3, 4), [1]), note="bool")
    _case(A.sum.dim_IntList, lambda: (integers(0, 9, 3, 4), [-1]), note="integers")
    _case(A.sum.dim_IntList, lambda: (integers(0, 9, 3, 4), [0]), note="dtype", dtype=torch.float32)
    for packet in [A.amax, A.amin]:
        _case(packet.default, lambda: (floats(3, 4), [-1], True), (0,))
        _case(packet.default, lambda: (floats(3, 4),), (0,), note="all")
        _case(packet.default, lambda: (torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]), [1]), (0,), note="equal")
    for packet in [A.max, A.min]:
        _case(packet.default, lambda: (floats(3, 4),), (0,))
        _case(packet.dim, lambda: (floats(3, 4), 1), (0,))
        _case(packet.dim, lambda: (floats(3, 4), 0, True), (0,), note="keepdim")
    _case(A.max.dim, lambda: (torch.tensor([[1.0, 1.0, 0.0]]), 1), (0,), note="equal")
    for packet in [A.sum.dim_IntList, A.mean.dim]:
        _case(packet, lambda: (floats(3, 400, dtype=torch.bfloat16), [1]), note="bfloat16")
    for packet in [A.argmax, A.argmin]:
        _case(packet.default, lambda: (floats(3, 4), -1))
        _case(packet.default, lambda: (floats(3, 4),), note="all")
        _case(packet.default, lambda: (floats(3, 4), 0, True), note="keepdim")
    for packet in [A.any, A.all]:
        _case(packet.default, lambda: (flags(3, 4),))
        _case(packet.dim, lambda: (flags(3, 4), 1, True))
        _case(packet.dim, lambda: (integers(0, 2, 3, 4), -1), note="integers")
    _case(A.any.dims, lambda: (flags(3, 4, 2), [0, -1]))
    _case(A.prod.default, lambda: (positive(4),), (0,))
    _case(A.prod.dim_int, lambda: (positive(3, 4), 1), (0,))
    _case(A.cumsum.default, lambda: (floats(3, 4), -1), (0,))
    _case(A.cumsum.default, lambda: (flags(3, 4), 1), note="bool")
    _case(A.cumsum.default, lambda: (integers(0, 2, 3, 4).int(), 1), note="int32")
    _case(A.var.correction, lambda: (floats(3, 4), [1]), (0,), correction=0, keepdim=True)
    _case(A.var.correction, lambda: (floats(3, 4),), (0,), note="all")
    _case(A.var.dim, lambda: (floats(3, 4), [0], True, False), (0,))
    _case(A.var_mean.correction, lambda: (floats(3, 4), [1]), (0,), correction=1)
    _case(A.sort.default, lambda: (floats(3, 6), -1, True), (0,))
    _case(A.sort.default, lambda: (floats(3, 6), 0), (0,), note="up")
    _case(A.topk.default, lambda: (floats(3, 6), 2), (0,))
    _case(A.topk.default, lambda: (floats(6, 3), 2, 0, False), (0,), note="smallest of the first axis")
    _case(A.logsumexp.default, lambda: (floats(3, 6), [-1]), (0,))


def _shapes() -> None:
    for packet in [A.view, A._unsafe_view, A.view_copy]:
        _case(packet.default, lambda: (floats(2, 6), [3, -1]), (0,))
    _case(A.reshape.default, lambda: (floats(2, 6), [12]), (0,))
    _case(A.permute.default, lambda: (floats(2, 3, 4), [2, -3, 1]), (0,))
    _case(A.transpose.int, lambda: (floats(2, 3, 4), -1, 0), (0,))
    _case(A.t.default, lambda: (floats(2, 3),), (0,))
    _case(A.unsqueeze.default, lambda: (floats(2, 3), -1), (0,))
    _case(A.squeeze.dim, lambda: (floats(2, 1, 3), 1), (0,))
    _case(A.squeeze.dim, lambda: (floats(2, 1, 3), 0), (0,), note="that is not one")
    _case(A.squeeze.dims, lambda: (floats(2, 1, 3, 1), [1, -1, 0]), (0,))
    _case(A.squeeze.default, lambda: (floats(2, 1, 3, 1),), (0,))
    _case(A.expand.default, lambda: (floats(3, 1), [2, -1, 4]), (0,))
    _case(A.repeat.default, lambda: (floats(3, 2), [2, 1, 3]), (0,))
    _case(A.slice.Tensor, lambda: (floats(6, 4), 0, 1, 9223372036854775807, 2), (0,))
    _case(A.slice.Tensor, lambda: (floats(6, 4), -1, -2), (0,), note="from the end")
    _case(A.slice.Tensor, lambda: (floats(6, 4), 1, 0, -1), (0,), note="up to the end")
    _case(A.select.int, lambda: (floats(6, 4), 1, -1), (0,))
    _case(A.select_scatter.default, lambda: (floats(6, 4), floats(6), 1, -1), (0, 1))
    _case(A.slice_scatter.default, lambda: (floats(6, 4), floats(2, 4), 0, 1, 5, 2), (0, 1))
    _case(A.cat.default, lambda: ([floats(2, 3), floats(2, 1)], -1), (0, 1))
    _case(A.cat.default, lambda: ([integers(0, 9, 2), floats(2)],), note="integers and floats")
    _case(A.stack.default, lambda: ([floats(2, 3), floats(2, 3)], -1), (0, 1))
    _case(A.split_with_sizes.default, lambda: (floats(6, 2), [1, 2, 3]), (0,))
    _case(A.split_with_sizes.default, lambda: (floats(2, 6), [1, 5], -1), (0,), note="last axis")
    _case(A.split.Tensor, lambda: (floats(7, 2), 3), (0,))
    _case(A.unbind.int, lambda: (floats(2, 3), 1), (0,))
    _case(A.flip.default, lambda: (floats(3, 4), [0, -1]), (0,))
    _case(A.roll.default, lambda: (floats(3, 4), [1, -2], [0, 1]), (0,))
    _case(A.tril.default, lambda: (floats(2, 4, 4), -1), (0,))
    _case(A.triu.default, lambda: (floats(4, 5), 1), (0,))
    _case(A.diagonal.default, lambda: (floats(2, 4, 5), 1, -2, -1), (0,))
    _case(A.constant_pad_nd.default, lambda: (floats(2, 3), [1, 2, 0, 1], 0.5), (0,))
    _case(A.constant_pad_nd.default, lambda: (floats(2, 3), [0, -1]), (0,), note="cut")
    _case(A.constant_pad_nd.default, lambda: (integers(0, 9, 2, 3), [0, 1], -100), note="integers")
    _case(A.reflection_pad1d.default, lambda: (floats(2, 3, 5), [2, 1]), (0,))
    _case(A.reflection_pad2d.default, lambda: (floats(1, 2, 5, 4), [2, 1, 0, 1]), (0,))
    _case(A.reflection_pad3d.default, lambda: (floats(1, 2, 3, 3, 4), [2, 1, 0, 1, 1, 0]), (0,))
    _case(A.replication_pad3d.default, lambda: (floats(1, 2, 3, 3, 4), [2, 1, 0, 1, 1, 0]), (0,))
    _case(A.replication_pad2d.default, lambda: (floats(1, 2, 5, 4), [2, 1, 0, 1]), (0,))
    for dtype in [torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.float64]:
        _case(A._to_copy.default, lambda: (floats(2, 3),), note=str(dtype), dtype=dtype)
    _case(A._to_copy.default, lambda: (flags(2, 3),), note="from bool", dtype=torch.float32)
    _case(A._to_copy.default, lambda: (floats(2, 3),), (0,), note="as it is", device=torch.device("cpu"))
    _case(A.copy.default, lambda: (floats(2, 3), integers(0, 9, 3)))
    _case(A.arange.start_step, lambda: (0, 10, 3))
    _case(A.arange.start_step, lambda: (0.0, 1.0, 0.25), note="floats")
    _case(A.arange.default, lambda: (5,), dtype=torch.float32)
    _case(A.arange.start, lambda: (2, 5))
    _case(A.full.default, lambda: ([2, 3], 1.5), dtype=torch.float32)
    _case(A.full.default, lambda: ([2, 3], True), note="bool")
    _case(A.full.default, lambda: ([2, 3], 7), note="integers")
    _case(A.full_like.default, lambda: (floats(2, 3), 2))
    _case(A.full_like.default, lambda: (floats(2, 3), 2), note="dtype", dtype=torch.int64)
    _case(A.zeros.default, lambda: ([2, 3],))
    _case(A.ones.default, lambda: ([2, 3],), dtype=torch.int64)
    _case(A.zeros_like.default, lambda: (integers(0, 9, 4),))
    _case(A.ones_like.default, lambda: (floats(4),), dtype=torch.bool)
    _case(A.new_zeros.default, lambda: (integers(0, 9, 4), [2, 2]))
    _case(A.new_ones.default, lambda: (floats(4), [2, 2]))
    _case(A.new_full.default, lambda: (floats(4), [2, 2], 3))
    _case(A.scalar_tensor.default, lambda: (2.5,))
    _case(A.scalar_tensor.default, lambda: (2.5,), note="dtype", dtype=torch.float32, device=torch.device("cpu"))
    _case(A.scalar_tensor.default, lambda: (float("-inf"),), note="float64", dtype=torch.float64)
    _case(A.empty.memory_format, lambda: ([2, 3],), outputs=())
    _case(A.empty_like.default, lambda: (floats(2, 3),), outputs=())
    _case(A.new_empty.default, lambda: (floats(2), [2, 3]), outputs=())
    _case(A.detach.default, lambda: (floats(2, 3),))
    _case(A.fill.Scalar, lambda: (floats(2, 3), 2))
    _case(A.lift_fresh_copy.default, lambda: (floats(2, 3),))


def _indexing() -> None:
    _case(A.embedding.default, lambda: (floats(7, 3), integers(0, 7, 2, 5)), (0,))
    _case(A.embedding.default, lambda: (floats(4, 3), integers(0, 4, 2, 9), 1), (0,), note="padding_idx")
    _case(A.gather.default, lambda: (floats(3, 5), 1, integers(0, 5, 3, 2)), (0,))
    _case(A.gather.default, lambda: (floats(3, 5), 0, integers(0, 3, 2, 4)), (0,), note="fewer columns")
    _case(A.index.Tensor, lambda: (floats(5, 4), [integers(0, 5, 3)]), (0,))
    _case(A.index.Tensor, lambda: (floats(5, 4), [None, integers(-4, 4, 2, 3)]), (0,), note="second axis")
    _case(A.index.Tensor, lambda: (floats(5, 4), [integers(0, 5, 3, 1), integers(0, 4, 2)]), (0,), note="both axes")
    _case(A.index.Tensor, lambda: (floats(3, 4, 5), [integers(0, 3, 2), None, integers(0, 5, 2)]), (0,), note="apart")
    _case(A.index_select.default, lambda: (floats(5, 4), -1, integers(0, 4, 3)), (0,))
    _case(A.index_put.default, lambda: (floats(5, 4), [torch.tensor([0, 3])], floats(2, 4)), (0, 2))
    _case(A.index_put.default, lambda: (floats(5, 4), [None, torch.tensor([1, 1])], floats(5, 2), True), (0, 2), "add")
    _case(A.index_put.default, lambda: (floats(5, 4), [flags(5, 4)], torch.tensor(2.0)), (0,), note="a mask")
    _case(A.scatter.src, lambda: (floats(3, 5), 1, torch.tensor([[0, 2], [4, 1], [3, 0]]), floats(3, 2)), (0, 2))
    _case(A.scatter.value, lambda: (floats(3, 5), 1, torch.tensor([[0, 2], [4, 1], [3, 0]]), 2.0), (0,))
    _case(A.scatter_add.default, lambda: (floats(3, 5), 0, integers(0, 3, 2, 4), floats(2, 4)), (0, 2))
    _case(A.scatter_reduce.two, lambda: (floats(3), 0, integers(0, 3, 6), floats(6), "sum"), (0, 2))
    _case(A.index_add.default, lambda: (floats(3, 2), 0, integers(0, 3, 6), floats(6, 2)), (0, 2))


def _products() -> None:
    _case(A.mm.default, lambda: (floats(3, 4), floats(4, 2)), (0, 1))
    _case(
        A.mm.default, lambda: (floats(3, 4, dtype=torch.bfloat16), floats(4, 2, dtype=torch.bfloat16)), (), "bfloat16"
    )
    _case(A.bmm.default, lambda: (floats(2, 3, 4), floats(2, 4, 2)), (0, 1))
    _case(A.matmul.default, lambda: (floats(2, 3, 4), floats(4)), (0, 1))
    _case(A.addmm.default, lambda: (floats(2), floats(3, 4), floats(4, 2)), (0, 1, 2))
    _case(A.addmm.default, lambda: (floats(2), floats(3, 4), floats(4, 2)), (0, 1, 2), "scaled", beta=0.5, alpha=2)
    _case(A.baddbmm.default, lambda: (floats(2, 3, 2), floats(2, 3, 4), floats(2, 4, 2)), (0, 1, 2), beta=0.5, alpha=2)
    _case(A.mv.default, lambda: (floats(3, 4), floats(4)), (0, 1))
    _case(A.dot.default, lambda: (floats(4), floats(4)), (0, 1))
    _case(A.linear.default, lambda: (floats(2, 3, 4), floats(5, 4), floats(5)), (0, 1, 2))


def _convolutions() -> None:
    def normal(*shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
        return tuple(floats(*shape) for shape in shapes)

    none = [0, 0]
    _case(
        A.convolution.default,
        lambda: (*normal((2, 3, 8, 7), (4, 3, 3, 3), (4,)), [2, 1], [1, 0], [1, 2], False, none, 1),
        (0, 1, 2),
    )
    _case(
        A.convolution.default,
        lambda: (*normal((2, 4, 6, 6), (4, 2, 3, 3)), None, [1, 1], [1, 1], [1, 1], False, none, 2),
        (0, 1),
        "groups, no bias",
    )
    _case(
        A.convolution.default,
        lambda: (*normal((2, 4, 9), (6, 4, 3), (6,)), [2], [1], [1], False, [0], 1),
        (0, 1, 2),
        "1-d",
    )
    _case(
        A.convolution.default,
        lambda: (*normal((1, 2, 4, 5, 4), (3, 2, 2, 2, 2), (3,)), [1] * 3, [0] * 3, [1] * 3, False, [0] * 3, 1),
        (0, 1, 2),
        "3-d",
    )
    _case(
        A.convolution.default,
        lambda: (*normal((2, 4, 5, 5), (4, 3, 3, 3), (3,)), [2, 2], [1, 1], [1, 1], True, [1, 1], 1),
        (0, 1, 2),
        "transposed",
    )
    _case(A.max_pool2d_with_indices.default, lambda: (floats(2, 3, 8, 8), [2, 2]), (0,), outputs=(0,))
    _case(
        A.max_pool2d_with_indices.default,
        lambda: (floats(2, 3, 9, 8), [3, 3], [2, 2], [1, 1]),
        (0,),
        "overlapping, padded",
        outputs=(0,),
    )
    _case(
        A.max_pool2d_with_indices.default,
        lambda: (torch.ones(1, 1, 4, 4), [2, 2], [2, 2]),
        (0,),
        "equal values",
        outputs=(0,),
    )
    _case(
        A.max_pool2d_with_indices.default,
        lambda: (floats(1, 2, 7, 7), [2, 2], [2, 2], [0, 0], [1, 1], True),
        (0,),
        "ceil_mode",
        outputs=(0,),
    )
    _case(A.avg_pool2d.default, lambda: (floats(2, 3, 8, 8), [2, 2], [2, 2]), (0,))
    _case(A.avg_pool2d.default, lambda: (floats(2, 3, 7, 8), [3, 3], [2, 2], [1, 1]), (0,), "padded")
    _case(
        A.avg_pool2d.default,
        lambda: (floats(2, 3, 7, 8), [3, 3], [2, 2], [1, 1], False, False),
        (0,),
        "padding not counted",
    )
    _case(A.avg_pool1d.default, lambda: (floats(2, 3, 8), [2], [2]), (0,))
    _case(A._adaptive_avg_pool2d.default, lambda: (floats(2, 3, 8, 6), [4, 3]), (0,))
    _case(A._adaptive_avg_pool2d.default, lambda: (floats(2, 3, 7, 7), [3, 2]), (0,), "uneven")
    _case(A.upsample_nearest2d.vec, lambda: (floats(1, 2, 3, 4), None, [2.0, 2.0]), (0,))
    _case(A.upsample_bilinear2d.vec, lambda: (floats(1, 2, 3, 4), [6, 7], False, None), (0,))
    _case(A.upsample_bilinear2d.vec, lambda: (floats(1, 2, 3, 4), [6, 7], True, None), (0,), "corners aligned")


def _normalizations_and_losses() -> None:
    infinite = float("-inf")
    for packet in [A._softmax, A._log_softmax]:
        _case(packet.default, lambda: (floats(3, 5), -1, False), (0,))
        _case(packet.default, lambda: (floats(3, 5) * 200, 0, False), (0,), "large")
        _case(packet.default, lambda: (torch.tensor([[infinite] * 3, [0.0, 1.0, infinite]]), 1, False), (), "-inf")
        _case(packet.default, lambda: (floats(3, 50, dtype=torch.bfloat16), -1, False), (), "bfloat16")
    _case(A._softmax.default, lambda: (torch.tensor([[0.0, 1.0, infinite]]), 1, False), (0,), "gradient with -inf")
    _case(
        A.native_layer_norm.default,
        lambda: (floats(2, 64, dtype=torch.bfloat16), [64], *(floats(64, dtype=torch.bfloat16) for _ in "wb"), 1e-5),
        (),
        "bfloat16",
        outputs=(0,),
    )
    _case(A._safe_softmax.default, lambda: (torch.tensor([[infinite] * 3, [0.0, 1.0, infinite]]), 1), (0,))
    _case(
        A.native_layer_norm.default,
        lambda: (floats(2, 3, 4), [4], positive(4), floats(4), 1e-5),
        (0, 1, 2),
        outputs=(0,),
    )
    _case(A.native_layer_norm.default, lambda: (floats(2, 3, 4), [3, 4], None, None, 1e-5), (0,), "plain", outputs=(0,))
    _case(
        A.native_layer_norm.default,
        lambda: (torch.ones(2, 4), [4], positive(4), floats(4), 1e-12),
        (0, 1, 2),
        "constant rows",
        outputs=(0,),
    )
    _case(
        A.native_group_norm.default,
        lambda: (floats(2, 4, 3, 3), positive(4), floats(4), 2, 4, 9, 2, 1e-5),
        (0, 1, 2),
        outputs=(0,),
    )
    _case(
        A._native_batch_norm_legit_functional.default,
        lambda: (floats(4, 3, 2, 2), positive(3), floats(3), floats(3), positive(3), True, 0.1, 1e-5),
        (0, 1, 2),
        outputs=(0, 3, 4),
    )
    _case(
        A._native_batch_norm_legit_functional.default,
        lambda: (floats(6, 3), None, None, floats(3), positive(3), True, 0.3, 1e-5),
        (0,),
        "no weights",
        outputs=(0, 3, 4),
    )
    _case(
        A._native_batch_norm_legit_no_training.default,
        lambda: (floats(4, 3, 2, 2), positive(3), floats(3), floats(3), positive(3), 0.1, 1e-5),
        (0, 1, 2),
        outputs=(0,),
    )
    _case(
        A._native_batch_norm_legit.no_stats,
        lambda: (floats(4, 3, 2), positive(3), floats(3), True, 0.1, 1e-5),
        (0, 1, 2),
        outputs=(0,),
    )
    _case(A.nll_loss_forward.default, lambda: (floats(4, 3), torch.tensor([0, -100, 2, 1]), None, 1, -100), (0,))
    _case(
        A.nll_loss_forward.default,
        lambda: (floats(4, 3), integers(0, 3, 4), positive(3), 2, -100),
        (0,),
        "weighted sum",
    )
    _case(A.mse_loss.default, lambda: (floats(4, 3), floats(4, 3)), (0, 1))
    _case(A.mse_loss.default, lambda: (floats(4, 3), floats(4, 3), 2), (0, 1), "sum")
    _case(A.smooth_l1_loss.default, lambda: (floats(4, 3) * 2, floats(4, 3)), (0, 1))
    _case(A.huber_loss.default, lambda: (floats(4, 3) * 2, floats(4, 3), 1, 0.7), (0, 1))
    _case(
        A.binary_cross_entropy_with_logits.default,
        lambda: (floats(4, 3) * 3, torch.rand(4, 3), None, positive(3), 1),
        (0,),
    )


for _fill in [
    _elementwise,
    _binary,
    _reductions,
    _shapes,
    _indexing,
    _products,
    _convolutions,
    _normalizations_and_losses,
]:
    _fill()
