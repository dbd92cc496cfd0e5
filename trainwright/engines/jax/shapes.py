"""Making, reducing and rearranging arrays, as torch defines it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from trainwright.engines.jax.arrays import types_of

_aten = torch.ops.aten


def _like(x: jax.Array, dtype: torch.dtype | None) -> Any:
    return x.dtype if dtype is None else types_of(dtype)


def _type_of_number(value: object, dtype: torch.dtype | None) -> Any:
    if dtype is not None:
        return types_of(dtype)
    if isinstance(value, bool):
        return types_of(torch.bool)
    return types_of(torch.int64 if isinstance(value, int) else torch.get_default_dtype())


def _full(size: Sequence[int], value: object, dtype: torch.dtype | None = None, **_: object) -> jax.Array:
    return jnp.full(tuple(size), value, _type_of_number(value, dtype))


def _full_like(x: jax.Array, value: object, dtype: torch.dtype | None = None, **_: object) -> jax.Array:
    return jnp.full(x.shape, value, _like(x, dtype))


def _new_full(
    x: jax.Array, size: Sequence[int], value: object, dtype: torch.dtype | None = None, **_: object
) -> jax.Array:
    return jnp.full(tuple(size), value, _like(x, dtype))


def _arange(start: Any, end: Any, step: Any = 1, dtype: torch.dtype | None = None, **_: Any) -> jax.Array:
    whole = all(isinstance(number, int) for number in (start, end, step))
    kind = types_of(dtype or (torch.int64 if whole else torch.get_default_dtype()))
    return jnp.asarray(np.arange(start, end, step).astype(kind))


def _scalar_tensor(value: object, dtype: torch.dtype | None = None, **_: object) -> jax.Array:
    return jnp.asarray(value, types_of(dtype or torch.get_default_dtype()))


def _to_copy(x: jax.Array, dtype: torch.dtype | None = None, **_: object) -> jax.Array:
    return x.astype(_like(x, dtype))


def _axes(dim: Sequence[int] | int | None) -> tuple[int, ...] | None:
    """torch means every axis by an empty list."""
    if isinstance(dim, int):
        return (dim,)
    return tuple(dim) if dim else None


def _mean(x: jax.Array, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> jax.Array:
    return jnp.mean(x.astype(_like(x, dtype)), _axes(dim), keepdims=keepdim)


def _sum(x: jax.Array, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> jax.Array:
    whole = not jnp.issubdtype(x.dtype, jnp.inexact)
    kind = types_of(dtype or torch.int64) if whole or dtype else x.dtype
    return jnp.sum(x.astype(kind), _axes(dim), keepdims=keepdim)


def _cumsum(x: jax.Array, dim: int, dtype: torch.dtype | None = None) -> jax.Array:
    whole = not jnp.issubdtype(x.dtype, jnp.inexact)
    kind = types_of(dtype or torch.int64) if whole or dtype else x.dtype
    return jnp.cumsum(x.astype(kind), dim) if x.ndim else x.astype(kind)


def _all(x: jax.Array, dim: Any = None, keepdim: bool = False) -> jax.Array:
    return jnp.all(x, _axes(dim), keepdims=keepdim)


def _var(x: jax.Array, dim: Any = None, unbiased: bool = True, keepdim: bool = False) -> jax.Array:
    return jnp.var(x, _axes(dim), ddof=int(unbiased), keepdims=keepdim)


def _extreme(find: Callable[..., jax.Array]) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """The gradient goes to the one element whose position is returned, not to all that are equal."""

    def along(x: jax.Array, dim: int, keepdim: bool = False) -> tuple[jax.Array, jax.Array]:
        if not x.ndim:
            return x, jnp.zeros((), jnp.int64)
        places = find(x, axis=dim, keepdims=True)
        values = jnp.take_along_axis(x, places, dim)
        return (values, places) if keepdim else (jnp.squeeze(values, dim), jnp.squeeze(places, dim))

    return along


def _topk(x: jax.Array, k: int, dim: int = -1, largest: bool = True, sort: bool = True) -> tuple[jax.Array, jax.Array]:
    del sort  # sorted is one of the orders that are allowed
    places = jnp.argsort(x, axis=dim, stable=True, descending=largest)
    places = jax.lax.slice_in_dim(places, 0, k, axis=dim % x.ndim)
    return jnp.take_along_axis(x, places, dim), places


def _unbind(x: jax.Array, dim: int = 0) -> list[jax.Array]:
    return [jnp.squeeze(part, dim) for part in jnp.split(x, x.shape[dim], dim)]


def _index_add(x: jax.Array, dim: int, index: jax.Array, source: jax.Array, alpha: float = 1) -> jax.Array:
    return x.at[(slice(None),) * (dim % x.ndim) + (index,)].add(source if alpha == 1 else source * alpha)


def _padding(mode: str) -> Callable[[jax.Array, Sequence[int]], jax.Array]:
    def pad(x: jax.Array, amounts: Sequence[int]) -> jax.Array:
        # torch names the last axis first
        pairs = list(zip(amounts[::2], amounts[1::2], strict=True))[::-1]
        return jnp.pad(x, [(0, 0)] * (x.ndim - len(pairs)) + pairs, mode=mode)

    return pad


SHAPES: dict[Any, Callable[..., Any]] = {
    _aten.full.default: _full,
    _aten.full_like.default: _full_like,
    _aten.zeros.default: lambda size, **k: _full(size, 0.0, **k),
    _aten.ones.default: lambda size, **k: _full(size, 1.0, **k),
    _aten.zeros_like.default: lambda x, **k: _full_like(x, 0, **k),
    _aten.ones_like.default: lambda x, **k: _full_like(x, 1, **k),
    # Whatever reads an empty tensor before it is filled has no defined result anyway.
    _aten.empty.memory_format: lambda size, **k: _full(size, 0.0, **k),
    _aten.empty_like.default: lambda x, **k: _full_like(x, 0, **k),
    _aten.new_full.default: _new_full,
    _aten.new_zeros.default: lambda x, size, **k: _new_full(x, size, 0, **k),
    _aten.new_ones.default: lambda x, size, **k: _new_full(x, size, 1, **k),
    _aten.new_empty.default: lambda x, size, **k: _new_full(x, size, 0, **k),
    _aten.arange.default: lambda end, **k: _arange(0, end, **k),
    _aten.arange.start: _arange,
    _aten.arange.start_step: _arange,
    _aten.scalar_tensor.default: _scalar_tensor,
    _aten._to_copy.default: _to_copy,
    _aten.detach.default: jax.lax.stop_gradient,
    _aten.detach_copy.default: jax.lax.stop_gradient,
    _aten.mean.default: _mean,
    _aten.mean.dim: _mean,
    _aten.sum.default: _sum,
    _aten.sum.dim_IntList: _sum,
    _aten.cumsum.default: _cumsum,
    _aten.all.default: _all,
    _aten.all.dim: _all,
    _aten.var.dim: _var,
    _aten.max.dim: _extreme(jnp.argmax),
    _aten.min.dim: _extreme(jnp.argmin),
    _aten.topk.default: _topk,
    _aten.logsumexp.default: lambda x, dim, keepdim=False: jax.nn.logsumexp(x, _axes(dim), keepdims=keepdim),
    _aten.unbind.int: _unbind,
    _aten.tril.default: lambda x, diagonal=0: jnp.tril(x, diagonal),
    _aten.index_add.default: _index_add,
    _aten.reflection_pad1d.default: _padding("reflect"),
    _aten.reflection_pad2d.default: _padding("reflect"),
    _aten.reflection_pad3d.default: _padding("reflect"),
    _aten.replication_pad2d.default: _padding("edge"),
    _aten.replication_pad3d.default: _padding("edge"),
    _aten.baddbmm.default: lambda x, a, b, beta=1, alpha=1: beta * x + alpha * jnp.matmul(a, b),
    _aten.mv.default: jnp.matmul,
}
