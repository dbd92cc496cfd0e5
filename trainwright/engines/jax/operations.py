"""ATen operations on JAX arrays: torchax's where they are right, our own where they are not or are missing.

Every entry has a case in ``tests/engines/op_cases.py`` that compares values, types and gradients with torch. To add an
operation, add its case, then either its name below or a function of our own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from trainwright.engines.jax.elementwise import ELEMENTWISE, in_common_type
from trainwright.engines.jax.layers import LAYERS
from trainwright.engines.jax.shapes import SHAPES
from trainwright.engines.jax.torchax_table import taken

_TORCHAX = """
_adaptive_avg_pool2d.default _unsafe_view.default acos.default acosh.default addmm.default alias.default amax.default
amin.default any.default any.dim any.dims argmax.default argmin.default asin.default asinh.default atan.default
atanh.default avg_pool1d.default avg_pool2d.default bitwise_not.default bmm.default cat.default ceil.default
clone.default constant_pad_nd.default convolution.default copy.default cos.default cosh.default diagonal.default
dot.default embedding.default erf.default erfc.default exp.default expand.default expm1.default fill.Scalar
flip.default floor.default gather.default gelu.default index.Tensor index_put.default index_select.default
isinf.default isnan.default leaky_relu.default lift_fresh_copy.default linear.default log.default log10.default
log1p.default log2.default logical_and.default logical_not.default logical_or.default logical_xor.default
matmul.default max.default max_pool2d_with_indices.default min.default mm.default native_group_norm.default
neg.default permute.default pow.Scalar pow.Tensor_Scalar prod.default prod.dim_int reciprocal.default relu.default
repeat.default reshape.default roll.default round.default rsqrt.default scatter.src scatter.value
scatter_add.default scatter_reduce.two select.int select_scatter.default sigmoid.default sign.default silu.default
sin.default sinh.default slice.Tensor slice_scatter.default sort.default split.Tensor split_with_sizes.default
sqrt.default squeeze.default squeeze.dim squeeze.dims stack.default t.default tan.default tanh.default
transpose.int triu.default trunc.default unsqueeze.default var.correction var_mean.correction view.default
view_copy.default
"""

#: torchax combines types as JAX does; torch lets 0-d tensors yield to others.
_TORCHAX_IN_COMMON_TYPE = """
mul.Tensor mul.Scalar div.Tensor div.Scalar div.Tensor_mode div.Scalar_mode floor_divide.default maximum.default
minimum.default atan2.default remainder.Tensor remainder.Scalar fmod.Tensor fmod.Scalar pow.Tensor_Tensor
eq.Tensor eq.Scalar ne.Tensor ne.Scalar lt.Tensor lt.Scalar le.Tensor le.Scalar gt.Tensor gt.Scalar ge.Tensor
ge.Scalar bitwise_and.Tensor bitwise_and.Scalar bitwise_or.Tensor bitwise_or.Scalar bitwise_xor.Tensor
bitwise_xor.Scalar
"""


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload)


def _from_torchax() -> dict[Any, Callable[..., Any]]:
    found = {overload: taken(overload) for overload in map(_overload, _TORCHAX.split())}
    for overload in map(_overload, _TORCHAX_IN_COMMON_TYPE.split()):
        found[overload] = in_common_type(taken(overload))
    for overload in (torch.ops.aten.where.self, torch.ops.aten.where.ScalarOther):
        found[overload] = in_common_type(taken(overload), first=1)
    return found


#: ATen overload -> the same on JAX arrays. What is not here raises KeyError.
OPERATIONS: Mapping[Any, Callable[..., Any]] = {**_from_torchax(), **ELEMENTWISE, **SHAPES, **LAYERS}
