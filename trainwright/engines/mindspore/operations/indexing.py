"""Reading and writing at places that are themselves numbers of the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from mindspore import Tensor as Array
from mindspore import ops

from trainwright.engines.mindspore.arrays import torch_type
from trainwright.engines.mindspore.operations.shape import expand, permute, reshape
from trainwright.engines.mindspore.operations.types import alike, as_type, cast, constant, is_bool

aten = torch.ops.aten


def counted_from_front(index: Array, size: int) -> Array:
    """Negative places counted from the end, as torch reads them."""
    index = cast(index, torch.int64)
    return ops.where(index < constant(0, torch.int64), index + constant(size, torch.int64), index)


class Places:
    """What ``x[None, i, j]`` says: which dimensions are indexed, by which flat place, and how the result is laid out.

    The indexed dimensions go to the front and become one; the result has their common shape in place of the first of
    them, or at the front where others lie between them.
    """

    def __init__(self, array: Array, indices: Sequence[Array | None]):
        if any(index is not None and is_bool(index) for index in indices):
            raise NotImplementedError(
                "indexing with a mask, whose result has as many entries as the mask has true ones: a compiled graph "
                "needs shapes that are known before; torch.where(mask, x, other) does the same within one shape"
            )
        self.indexed = [dim for dim, index in enumerate(indices) if index is not None]
        self.rest = [dim for dim in range(array.ndim) if dim not in self.indexed]
        self.sizes = [array.shape[dim] for dim in self.indexed]
        self.kept = [array.shape[dim] for dim in self.rest]
        flat = None
        for dim, size in zip(self.indexed, self.sizes, strict=True):
            index = indices[dim]
            assert index is not None
            place = counted_from_front(index, size)
            flat = place if flat is None else flat * constant(size, torch.int64) + place
        assert flat is not None
        self.flat = flat
        self.shape = list(flat.shape)
        together = self.indexed[-1] - self.indexed[0] + 1 == len(self.indexed)
        self.first = self.indexed[0] if together else 0

    def rows(self, array: Array) -> Array:
        """``array`` with the indexed dimensions as one, in front."""
        count = 1
        for size in self.sizes:
            count *= size
        return reshape(permute(array, self.indexed + self.rest), [count, *self.kept])

    def unrows(self, rows: Array) -> Array:
        """The reverse of :meth:`rows`."""
        order = self.indexed + self.rest
        array = reshape(rows, [*self.sizes, *self.kept])
        return permute(array, [order.index(dim) for dim in range(len(order))])

    def result(self, found: Array) -> Array:
        """From places in front to where the result has them."""
        count, first = len(self.shape), self.first
        kept = list(range(count, count + len(self.kept)))
        return permute(found, kept[:first] + list(range(count)) + kept[first:])

    def updates(self, values: Array) -> Array:
        """``values``, broadcast to the result's shape, with places in front and as one."""
        first, count = self.first, len(self.shape)
        values = expand(values, self.kept[:first] + self.shape + self.kept[first:])
        order = list(range(first, first + count)) + [at for at in range(values.ndim) if not first <= at < first + count]
        return reshape(permute(values, order), [-1, *self.kept] if self.flat.size else [0, *self.kept])


def index(array: Array, indices: Sequence[Array | None]) -> Array:
    """``array[indices]``."""
    places = Places(array, indices)
    return places.result(ops.gather(places.rows(array), places.flat, 0))


def index_put(array: Array, indices: Sequence[Array | None], values: Array, accumulate: bool = False) -> Array:
    """``array`` with ``values`` in place of, or added to, what ``indices`` names."""
    values = cast(values, torch_type(array))
    first = indices[0] if indices else None
    if len(indices) == 1 and first is not None and is_bool(first) and values.ndim == 0:
        mask = reshape(first, tuple(first.shape) + (1,) * (array.ndim - first.ndim))
        return ops.where(mask, array + values if accumulate else expand(values, array.shape), array)
    places = Places(array, indices)
    rows, updates = places.rows(array), places.updates(values)
    at = reshape(places.flat, [-1, 1])
    write = ops.tensor_scatter_add if accumulate else _replace
    return places.unrows(write(rows, at, updates))


def _replace(rows: Array, at: Array, updates: Array) -> Array:
    """Rows replaced, as a difference that is added where nothing else was: both sides keep their gradients."""
    written = ops.tensor_scatter_update(ops.stop_gradient(rows), at, ops.stop_gradient(updates))
    ones = constant(torch.ones(tuple(updates.shape[:1]) + (1,) * (updates.ndim - 1)), torch_type(rows))
    count = ops.tensor_scatter_add(
        constant(torch.zeros(tuple(rows.shape[:1]) + (1,) * (rows.ndim - 1)), torch_type(rows)), at, ones
    )
    kept = ops.where(count > constant(0, torch_type(rows)), ops.zeros_like(rows), rows)
    if not torch_type(rows).is_floating_point:
        return written
    added = ops.tensor_scatter_add(kept, at, updates)
    # Where a place is written twice the sum would be wrong: the number is the one that was written, the slope is not.
    return added + ops.stop_gradient(written - added)


def index_select(array: Array, dim: int, index: Array) -> Array:
    """Entries along ``dim`` by their places."""
    if array.ndim == 0:
        return array
    return ops.gather(array, cast(index, torch.int64), dim % array.ndim)


def gather(array: Array, dim: int, index: Array, sparse_grad: bool = False) -> Array:
    """For each entry of ``index`` the entry of ``array`` that it names along ``dim``."""
    if array.ndim == 0:
        return array
    dim %= array.ndim
    index = cast(index, torch.int64)
    # MindSpore wants equal sizes in the other dimensions, torch takes smaller ones.
    for at in range(array.ndim):
        if at != dim and index.shape[at] < array.shape[at]:
            array = ops.gather(array, constant(torch.arange(index.shape[at]), torch.int64), at)
    return ops.gather_elements(array, dim, index)


def _flat_places(array: Array, dim: int, index: Array) -> Array:
    """Each entry of ``index`` as a place in the flat ``array``."""
    strides = torch.empty(tuple(array.shape), device="meta").stride()
    places = cast(index, torch.int64) * constant(strides[dim], torch.int64)
    for at, size in enumerate(index.shape):
        if at != dim:
            shape = [1] * array.ndim
            shape[at] = size
            places = places + constant((torch.arange(size) * strides[at]).view(shape), torch.int64)
    return reshape(places, [-1, 1])


def scatter(array: Array, dim: int, index: Array, source: object) -> Array:
    """``array`` with ``source`` written to the places that ``index`` names along ``dim``."""
    return _scattered(array, dim, index, source, _replace)


def scatter_add(array: Array, dim: int, index: Array, source: object) -> Array:
    """``array`` with ``source`` added at the places that ``index`` names along ``dim``."""
    return _scattered(array, dim, index, source, ops.tensor_scatter_add)


def _scattered(array: Array, dim: int, index: Array, source: Any, write: Callable[..., Array]) -> Array:
    dim %= array.ndim
    source = as_type(source, torch_type(array))
    for at, size in enumerate(index.shape if source.ndim else ()):
        if size < source.shape[at]:
            source = ops.gather(source, constant(torch.arange(size), torch.int64), at)
    updates = reshape(expand(source, index.shape), [-1])
    return reshape(write(reshape(array, [-1]), _flat_places(array, dim, index), updates), array.shape)


def index_add(array: Array, dim: int, index: Array, source: Array, alpha: float = 1) -> Array:
    """``array`` with ``source`` added at places along ``dim``."""
    at: list[Array | None] = [None] * (dim % array.ndim)
    added = source if alpha == 1 else source * constant(alpha, torch_type(source))
    return index_put(array, [*at, index], added, accumulate=True)


def embedding(weight: Array, index: Array, padding_idx: int = -1, *_: bool) -> Array:
    """Rows of ``weight``; the row ``padding_idx`` gets no gradient."""
    rows = ops.gather(weight, index, 0)
    if padding_idx < 0:
        return rows
    padding = ops.expand_dims(ops.equal(index, constant(padding_idx, torch_type(index))), -1)
    return ops.where(padding, ops.stop_gradient(rows), rows)


def where(condition: Array, one: Any, other: Any) -> Array:
    """``one`` where the condition holds, ``other`` elsewhere."""
    one, other = alike(one, other)
    return ops.where(cast(condition, torch.bool), one, other)


def masked_fill(array: Array, mask: Array, value: object) -> Array:
    """``array`` with ``value`` where the mask is true."""
    return ops.where(cast(mask, torch.bool), as_type(value, torch_type(array)), array)


OPERATIONS: dict[Any, Callable[..., Any]] = {
    aten.index.Tensor: index,
    aten._unsafe_index.Tensor: index,
    aten.index_put.default: index_put,
    aten._unsafe_index_put.default: index_put,
    aten.index_select.default: index_select,
    aten.index_add.default: index_add,
    aten.gather.default: gather,
    aten.scatter.src: scatter,
    aten.scatter.value: scatter,
    aten.scatter_add.default: scatter_add,
    aten.embedding.default: embedding,
    aten.where.self: where,
    aten.where.ScalarOther: where,
    aten.where.ScalarSelf: where,
    aten.where.Scalar: where,
    aten.masked_fill.Scalar: masked_fill,
    aten.masked_fill.Tensor: masked_fill,
}
