"""Random numbers of a graph, drawn on the host in the order in which torch itself would draw them.

So a run on another framework has the dropout masks of the same run on torch's CPU, and the generator state that every
checkpoint holds is all that an exact resume needs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.node import map_arg

_aten = torch.ops.aten
#: Random operations that look at nothing but shapes.
_BY_SHAPE = {
    _aten.rand.default,
    _aten.randn.default,
    _aten.rand_like.default,
    _aten.randn_like.default,
    _aten.randint.default,
    _aten.randint.low,
    _aten.randint_like.default,
    _aten.randint_like.low_dtype,
    _aten.randperm.default,
    _aten.bernoulli.p,
}
#: Draws one argument of the graph.
RandomInput = Callable[[], Tensor]


def dropout_mask(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, share: float) -> Tensor:
    """What dropout of ``share`` multiplies its input by; filled in the order of memory, as torch does it."""
    mask = torch.empty_strided(shape, strides, dtype=dtype)
    return mask.zero_() if share == 1.0 else mask.bernoulli_(1 - share).div_(1 - share)


def random_input(node: Node) -> RandomInput | None:
    """What draws the value of ``node`` if it is random, else None."""
    target: Any = node.target
    if target is dropout_mask:
        settings: Any = node.args
        return lambda: dropout_mask(*settings)
    if target not in _BY_SHAPE:
        return None
    args, kwargs = map_arg((node.args, node.kwargs), _of_the_same_shape)
    return lambda: target(*args, **kwargs)


def is_random(node: Node) -> bool:
    """Whether ``node`` is another number each time."""
    return random_input(node) is not None or torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _of_the_same_shape(source: Node) -> Tensor:
    meant = source.meta["val"]
    return torch.empty(tuple(meant.shape), dtype=meant.dtype)


def draw_dropout_outside(graph: Graph) -> None:
    """Turn each dropout of ``graph`` into a product with a mask, which is an input."""
    for node in list(graph.nodes):
        if node.target is not _aten.native_dropout.default:
            continue
        source, share, training = node.args
        meant = source.meta["val"]
        with graph.inserting_before(node):
            if training is False or share == 0.0:
                kept: Any = source
            else:
                mask = graph.call_function(
                    dropout_mask, (tuple(meant.shape), tuple(meant.stride()), meant.dtype, float(share))
                )
                kept = graph.call_function(_aten.mul.Tensor, (source, mask))
                kept.meta = {**node.meta, "val": meant}
        for user in list(node.users):
            assert user.target is operator.getitem
            if user.args[1] != 0:
                raise ValueError("A layer looks at the mask of its dropout, which only torch can show it.")
            user.replace_all_uses_with(kept)
            graph.erase_node(user)
        graph.erase_node(node)
