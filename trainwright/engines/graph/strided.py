"""Tensors that are read by their place in memory, as reads by value: other frameworks' arrays have no strides."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.fx import Graph

_aten = torch.ops.aten
#: A layout: sizes and strides.
_Layout = tuple[tuple[int, ...], tuple[int, ...]]


def read_by_value(graph: Graph) -> None:
    """Turn each ``as_strided`` of ``graph`` into a change of shape, or into a choice among the values of its source."""
    for node in list(graph.nodes):
        if node.target is not _aten.as_strided.default:
            continue
        source, size, strides, *offset = node.args
        meant = source.meta["val"]
        layout = (tuple(meant.shape), tuple(meant.stride()))
        if meant.storage_offset() or not _is_dense(*layout):
            # Memory beside the source: what lies there nobody knows.
            continue
        order = (layout, (tuple(size), tuple(strides)), *(offset or [0]))
        with graph.inserting_before(node):
            read = source
            if not torch.equal(chosen(*order), torch.arange(meant.numel())):
                # In reading order, for a framework that does know strides: torch behind the same seam.
                copied = graph.call_function(_aten.clone.default, (source,), {"memory_format": torch.contiguous_format})
                flat = graph.call_function(_aten.view.default, (copied, [-1]))
                which = graph.call_function(chosen, order)
                read = graph.call_function(_aten.index_select.default, (flat, 0, which))
            value = graph.call_function(_aten.view.default, (read, list(size)))
        value.meta = node.meta
        node.replace_all_uses_with(value)
        graph.erase_node(node)


def chosen(source: _Layout, wanted: _Layout, offset: int) -> Tensor:
    """Which values of a tensor laid out as ``source`` a view laid out as ``wanted`` has, both in reading order.

    >>> chosen(((2, 3), (3, 1)), ((3, 2), (1, 3)), 0).tolist()   # the transposed matrix
    [0, 3, 1, 4, 2, 5]
    """
    count = math.prod(source[0])
    memory = torch.empty(count, dtype=torch.int64)
    memory.as_strided(*source).copy_(torch.arange(count).reshape(source[0]))
    return memory.as_strided(*wanted, offset).flatten()


def _is_dense(size: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether a tensor lies in memory without gaps and overlaps, in whatever order of its dimensions."""
    expected = 1
    for stride, length in sorted((stride, length) for stride, length in zip(strides, size, strict=True) if length > 1):
        if stride != expected:
            return False
        expected *= length
    return math.prod(size) > 0
