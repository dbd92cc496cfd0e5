"""Gradient checkpointing by cutting the graph: only what crosses a cut is kept for the backward pass.

The graph is cut where one layer of a list of layers ends and the next begins. Going forward, each piece is run for its
results alone. Going back, each is run again, with gradients, from what was kept. Pieces that are the same computation,
as the layers of a transformer are, are compiled once.

>>> import torch
>>> from trainwright.engines.graph.capture import capture
>>> layers = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
>>> captured = capture(layers, lambda model, x: model(x).sum(), torch.ones(2, 3))
>>> [[str(node.target) for node in piece.nodes] for piece in cut(captured)]
[['aten.linear.default'], ['aten.tanh.default'], ['aten.linear.default', 'aten.sum.default']]
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_arg

from trainwright.engines.graph.capture import Captured
from trainwright.engines.graph.framework import ArrayFunction, Framework
from trainwright.engines.graph.gradient_stops import STOP

_aten = torch.ops.aten


@dataclass
class Piece:
    """A part of a graph: what it computes, from what, and what others take from it."""

    nodes: list[Node]
    #: Values from before that gradients flow back to, and those that they do not.
    learned: list[Node]
    given: list[Node]
    outputs: list[Node]
    #: Of the outputs, those that gradients come back through.
    differentiable: list[Node]

    def key(self) -> str:
        """The same text for the same computation, wherever in the graph it stands."""
        names: dict[Node, str] = {}
        for node in (*self.learned, *self.given, *self.nodes):
            names[node] = f"%{len(names)}"
        steps = [(str(node.target), map_arg((node.args, node.kwargs), names.__getitem__)) for node in self.nodes]
        shapes = [_described(node) for node in (*self.learned, *self.given)]
        ends = [[names[node] for node in nodes] for nodes in (self.learned, self.outputs, self.differentiable)]
        return repr((steps, shapes, ends))


def recomputed(captured: Captured, framework: Framework) -> ArrayFunction:
    """The loss of ``captured`` with its gradients, in the order of ``Framework.with_gradients``, piece by piece."""
    pieces = cut(captured)
    if len(pieces) < 2:
        raise ValueError(
            "gradient_checkpointing=True keeps what lies between the layers of a list (nn.ModuleList, nn.Sequential) "
            "and computes the rest again, but this model has no such list: set gradient_checkpointing=False."
        )
    arguments = [nodes[0] for nodes in captured.places]
    (loss,) = (out for out in captured.outputs if isinstance(out, Node))
    compiled = _Compiled(captured, framework)

    def run(*arrays: Any) -> tuple[Any, ...]:
        values: dict[Node, Any] = dict(zip(arguments, arrays[:-1], strict=True))
        for piece in pieces[:-1]:
            values.update(zip(piece.outputs, compiled.forward(piece)(*_taken(piece, values)), strict=True))
        gradients: dict[Node, Any] = {}
        last = pieces[-1]
        weighted, *rest = compiled.last(last, loss)(*_taken(last, values), arrays[-1])
        others = [node for node in last.outputs if node is not loss]
        values.update(zip(others, rest, strict=False))
        _gather(gradients, last.learned, rest[len(others) :])
        changed = tuple(values[node] for node in captured.changes)
        for piece in reversed(pieces[:-1]):
            coming = [node for node in piece.differentiable if node in gradients]
            if coming and piece.learned:
                back = compiled.backward(piece, tuple(node in gradients for node in piece.differentiable))
                _, *found = back(*_taken(piece, values), *(gradients.pop(node) for node in coming))
                _gather(gradients, piece.learned, found)
            for node in piece.outputs:
                del values[node]
        trained = arguments[: len(captured.trained)]
        # A weight that only a stopped gradient leads to has none.
        return (weighted, *changed, *(gradients.get(node, values[node] * 0.0) for node in trained))

    return run


class _Compiled:
    """The functions of pieces, compiled; one for all pieces that compute the same."""

    def __init__(self, captured: Captured, framework: Framework) -> None:
        self._captured, self._framework = captured, framework
        self._known: dict[Any, ArrayFunction] = {}

    def forward(self, piece: Piece) -> ArrayFunction:
        """Its outputs."""
        return self._once(("forward", piece.key()), lambda: self._framework.compile(self._outputs(piece)))

    def backward(self, piece: Piece, coming: tuple[bool, ...]) -> ArrayFunction:
        """Gradients of what it learned from, given those of its outputs."""
        ends = [node for node, is_coming in zip(piece.differentiable, coming, strict=True) if is_coming]
        outputs, count = self._outputs(piece), len(piece.learned) + len(piece.given)
        places = [piece.outputs.index(node) for node in ends]

        def product(*arrays: Any) -> tuple[Any, ...]:
            found = outputs(*arrays[:count])
            # The gradient of a product with a constant is that constant.
            terms = [self._inner(found[at], end) for at, end in zip(places, arrays[count:], strict=True)]
            total = terms[0]
            for term in terms[1:]:
                total = total + term
            return (total,)

        return self._once(
            ("backward", piece.key(), coming),
            lambda: self._framework.compile(self._framework.with_gradients(product, len(piece.learned))),
        )

    def last(self, piece: Piece, loss: Node) -> ArrayFunction:
        """The loss times a weight, which is the last argument, what else the piece returns, and the gradients."""
        outputs, at = self._outputs(piece), piece.outputs.index(loss)

        def weighted(*arrays: Any) -> tuple[Any, ...]:
            found = list(outputs(*arrays[:-1]))
            return (found.pop(at) * arrays[-1], *found)

        return self._once(
            ("last",), lambda: self._framework.compile(self._framework.with_gradients(weighted, len(piece.learned)))
        )

    def _inner(self, one: Any, other: Any) -> Any:
        operations = self._framework.operations
        wide = [operations[_aten._to_copy.default](array, dtype=torch.float32) for array in (one, other)]
        return operations[_aten.sum.default](wide[0] * wide[1])

    def _outputs(self, piece: Piece) -> ArrayFunction:
        def run(*arrays: Any) -> tuple[Any, ...]:
            values: dict[Node, Any] = dict(zip((*piece.learned, *piece.given), arrays, strict=True))
            for node in piece.nodes:
                args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
                values[node] = self._captured.result(node, self._framework.operations, args, kwargs)
            return tuple(values[node] for node in piece.outputs)

        return run

    def _once(self, key: Any, make: Any) -> ArrayFunction:
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]


def cut(captured: Captured) -> list[Piece]:
    """The graph in pieces, in their order."""
    for first, *others in captured.places:
        for other in others:
            # A tied weight is one argument, whichever of its names a layer uses.
            other.replace_all_uses_with(first)
    learning = _learning(captured)
    runs: list[list[Node]] = []
    place_of: dict[Node, int] = {}
    layer: str | None = None
    for node in captured.steps():
        if node.target is operator.getitem:
            # Several results of one operation do not cross a cut as one.
            place_of[node] = place_of[node.all_input_nodes[0]]
            runs[place_of[node]].append(node)
            continue
        its_layer = _layer_in_a_list(node)
        if not runs or (its_layer is not None and its_layer != layer):
            runs.append([])
            layer = its_layer
        place_of[node] = len(runs) - 1
        runs[-1].append(node)
    wanted = {out for out in captured.outputs if isinstance(out, Node)} | set(captured.changes)
    return [_piece(nodes, number, place_of, learning, wanted) for number, nodes in enumerate(runs)]


def _piece(
    nodes: list[Node],
    number: int,
    place_of: dict[Node, int],
    learning: set[Node],
    wanted: set[Node],
) -> Piece:
    inputs: dict[Node, None] = {}
    for node in nodes:
        for source in node.all_input_nodes:
            if place_of.get(source) != number:
                inputs[source] = None
    outputs = [n for n in nodes if n in wanted or any(place_of.get(user, number) != number for user in n.users)]
    return Piece(
        nodes,
        [node for node in inputs if node in learning],
        [node for node in inputs if node not in learning],
        outputs,
        [node for node in outputs if node in learning],
    )


def _learning(captured: Captured) -> set[Node]:
    """Nodes of real numbers that depend on a trained weight, and through which its gradient passes."""
    found = {node for nodes in captured.places[: len(captured.trained)] for node in nodes}
    for node in captured.graph.nodes:
        passes = node.op == "call_function" and node.target is not STOP and _is_floating(node)
        if passes and any(source in found for source in node.all_input_nodes):
            found.add(node)
    return found


def _is_floating(node: Node) -> bool:
    value = node.meta.get("val")
    return value is None or not isinstance(value, Tensor) or value.is_floating_point()


def _layer_in_a_list(node: Node) -> str | None:
    """The outermost layer of a list that a node belongs to: ``encoder.layer.3``; None outside of such layers."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [path for path, _ in stack.values()]
    words = str(max(paths, key=len, default="")).split(".")
    for at, word in enumerate(words):
        if word.isdigit():
            return ".".join(words[: at + 1])
    return None


def _described(node: Node) -> Any:
    value = node.meta.get("val")
    return (tuple(value.shape), str(value.dtype)) if isinstance(value, Tensor) else str(type(value))


def _taken(piece: Piece, values: dict[Node, Any]) -> list[Any]:
    return [values[node] for node in (*piece.learned, *piece.given)]


def _gather(gradients: dict[Node, Any], nodes: Sequence[Node], found: Sequence[Any]) -> None:
    for node, gradient in zip(nodes, found, strict=True):
        gradients[node] = gradients[node] + gradient if node in gradients else gradient
