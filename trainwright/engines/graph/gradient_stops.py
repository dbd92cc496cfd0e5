"""Places where torch lets no gradient through, marked so that they are still there after decomposition.

Decomposition is for inference: it forgets ``detach()`` and ``torch.no_grad()``, and gradients would flow where torch
has none.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Graph, Node

_aten = torch.ops.aten


@torch.library.custom_op("trainwright::without_gradient", mutates_args=())
def without_gradient(tensor: Tensor) -> Tensor:
    """``tensor``, which counts as a constant."""
    return tensor.clone()


@without_gradient.register_fake
def _(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor)


STOP: Any = torch.ops.trainwright.without_gradient.default


def mark_stops(program: ExportedProgram) -> None:
    """Put a mark behind each ``detach`` and each result of a region without gradients."""
    graph = program.graph_module.graph
    for node in list(graph.nodes):
        if node.target in (_aten.detach.default, _aten.detach_.default) and _is_floating(node):
            _mark(graph, node)
        elif str(node.target) == "wrap_with_set_grad_enabled" and not node.args[0]:
            for result in [user for user in node.users if _is_floating(user)]:
                _mark(graph, result)
    program.graph_module.recompile()


def _is_floating(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.is_floating_point()


def _mark(graph: Graph, node: Node) -> None:
    with graph.inserting_after(node):
        stop = graph.call_function(STOP, (node,))
    stop.meta = dict(node.meta)
    node.replace_all_uses_with(stop, delete_user_cb=lambda user: user is not stop)
