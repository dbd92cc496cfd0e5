"""A torch computation as a graph of ATen operations: what another framework can run without knowing torch."""

from __future__ import annotations

import copy
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Graph, Node
from torch.fx.node import map_arg
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from trainwright.engines.graph.data_dependent import named_lines, refuse_values
from trainwright.engines.graph.gradient_stops import STOP, mark_stops
from trainwright.engines.graph.random_inputs import RandomInput, draw_dropout_outside, is_random, random_input
from trainwright.engines.graph.recurrent import decompositions
from trainwright.engines.graph.strided import read_by_value

_aten = torch.ops.aten
#: Checks that an exported graph makes of its own inputs; these are right by construction.
_CHECKS = (_aten._assert_tensor_metadata.default, _aten._assert_async.msg, _aten._assert_scalar.default)


@dataclass
class Captured:
    """A graph and what its placeholders stand for. Arguments come in the order of the fields."""

    graph: Graph
    #: Parameters that are trained and that the graph uses, by the model's names; tied ones once.
    trained: list[str]
    #: Frozen parameters and buffers that it uses.
    fixed: list[str]
    #: Tensors that belong to the computation itself.
    constants: list[Tensor]
    #: Positions, among the tensors that the computation was given, of those that it uses.
    inputs: list[int]
    #: Numbers that the host draws before each run.
    random: list[RandomInput]
    #: Buffers that the computation writes; their new values come after the outputs.
    changed: list[str]
    #: How the flat outputs were nested.
    structure: Any
    #: For each argument the placeholders that stand for it: several where weights are tied.
    places: list[list[Node]] = field(repr=False, default_factory=list)
    outputs: list[Any] = field(repr=False, default_factory=list)
    changes: list[Node] = field(repr=False, default_factory=list)

    def run(self, operations: Mapping[Any, Callable[..., Any]], arguments: Sequence[Any]) -> tuple[list[Any], list]:
        """Outputs, and new values of the buffers in ``changed``, of arrays that ``operations`` work on."""
        values: dict[Node, Any] = {}
        for nodes, argument in zip(self.places, arguments, strict=True):
            values.update(dict.fromkeys(nodes, argument))
        for node in self.steps():
            args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = self.result(node, operations, args, kwargs)
        outputs = [values[out] for out in self.outputs if isinstance(out, Node)]
        return outputs, [values[node] for node in self.changes]

    def steps(self) -> list[Node]:
        """What has to be computed, in order: nodes that lead from the arguments to an output."""
        needed: set[Node] = set()
        given = {node for nodes in self.places for node in nodes}
        waiting = [node for node in (*self.outputs, *self.changes) if isinstance(node, Node)]
        while waiting:
            node = waiting.pop()
            if node not in needed and node not in given:
                needed.add(node)
                waiting += node.all_input_nodes
        return [node for node in self.graph.nodes if node in needed]

    def rebuilt(self, outputs: Sequence[Any]) -> Any:
        """Flat outputs in the structure that the computation returned them in."""
        computed = iter(outputs)
        leaves = [next(computed) if isinstance(out, Node) else out for out in self.outputs]
        return pytree.tree_unflatten(leaves, self.structure)

    def result(self, node: Node, operations: Mapping[Any, Callable[..., Any]], args: Any, kwargs: Any) -> Any:
        """What one node of the graph makes of its arguments."""
        if node.target is operator.getitem:
            return args[0][args[1]]
        target = _aten.detach.default if node.target is STOP else node.target
        try:
            return operations[target](*args, **kwargs)
        except Exception as error:
            error.add_note(f"trainwright: in {node.target} of {layer_of(node)}.")
            raise

    def missing(self, operations: Mapping[Any, Callable[..., Any]]) -> dict[str, list[str]]:
        """Operations that the table lacks, each with the layers that use it."""
        lacking: dict[str, list[str]] = {}
        for node in self.steps():
            if node.target is not operator.getitem and node.target not in operations and node.target is not STOP:
                layers = lacking.setdefault(str(node.target), [])
                if (layer := layer_of(node)) not in layers:
                    layers.append(layer)
        return lacking


def layer_of(node: Node) -> str:
    """The innermost layer that a node comes from, as its name in the model and its class."""
    stack = node.meta.get("nn_module_stack") or {}
    for path, kind in reversed(list(stack.values())):
        name = path.removeprefix("L['self'].").removeprefix("model").strip(".")
        if name:
            return f"{name} ({str(kind).rsplit('.', 1)[-1]})"
    return "the loss, or the model itself"


def _must_stay(node: Node) -> bool:
    return node.op in ("placeholder", "output") or random_input(node) is not None


class _Called(nn.Module):
    """A function of a model as a module, which is what torch exports."""

    def __init__(self, model: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.model = model
        self._function = function

    def forward(self, given: Any) -> Any:
        return self._function(self.model, given)


def capture(model: nn.Module, function: Callable[[nn.Module, Any], Any], given: Any) -> Captured:
    """``function(model, given)`` as a graph, for tensors of the shapes of those in ``given``.

    The model's mode (training or evaluation) is part of the graph. Control flow in Python is run once.
    """
    # One tensor given twice (labels that are the inputs) would be one placeholder, and the next batch may differ.
    given = pytree.tree_map_only(Tensor, torch.clone, given)
    called = _Called(model, function)
    called.training = model.training
    # Attention as plain products: the fused kernels' strides do not survive decomposition.
    with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH), named_lines():
        # torch's exporter warns of its own use of what it has deprecated.
        warnings.simplefilter("ignore")
        program = torch.export.export(called, (given,), strict=False)
        refuse_values(program.graph)
        mark_stops(program)
        program = program.run_decompositions(decompositions())
    return _Reading(program, model).captured()


class _Reading:
    """Sorts out what the placeholders and outputs of an exported program are."""

    def __init__(self, program: ExportedProgram, model: nn.Module) -> None:
        self.graph, self.program = copy.deepcopy(program.graph), program
        for node in list(self.graph.nodes):
            if node.target in _CHECKS:
                self.graph.erase_node(node)
        draw_dropout_outside(self.graph)
        read_by_value(self.graph)
        # Only what is computed and not used goes; a random number that nobody uses is drawn all the same.
        self.graph.eliminate_dead_code(is_impure_node=_must_stay)
        first = {id(tensor): name for name, tensor in model.named_parameters()}
        # A tied weight has several names and is one tensor.
        self.names = {
            name: first.get(id(tensor), name) for name, tensor in model.named_parameters(remove_duplicate=False)
        }
        self.is_trained = {name: tensor.requires_grad for name, tensor in model.named_parameters()}
        self.weights: dict[str, list[Node]] = {}
        self.fixed: dict[str, list[Node]] = {}
        self.constants: list[tuple[Tensor, Node]] = []
        self.inputs: list[tuple[int, Node]] = []

    def captured(self) -> Captured:
        self._sort_placeholders()
        random = [(drawn, node) for node in self.graph.nodes if (drawn := random_input(node)) is not None]
        self._fold_constants()
        changes, outputs, changed = self._sort_outputs()
        return Captured(
            graph=self.graph,
            trained=list(self.weights),
            fixed=list(self.fixed),
            constants=[tensor for tensor, _ in self.constants],
            inputs=[position for position, _ in self.inputs],
            random=[drawn for drawn, _ in random],
            changed=changed,
            structure=self.program.call_spec.out_spec,
            places=[
                *self.weights.values(),
                *self.fixed.values(),
                *([node] for _, node in self.constants),
                *([node] for _, node in self.inputs),
                *([node] for _, node in random),
            ],
            outputs=outputs,
            changes=changes,
        )

    def _sort_placeholders(self) -> None:
        nodes = [node for node in self.graph.nodes if node.op == "placeholder"]
        position = -1
        for node, spec in zip(nodes, self.program.graph_signature.input_specs, strict=True):
            position += spec.kind is InputKind.USER_INPUT
            if not node.users:
                continue
            name = (spec.target or "").removeprefix("model.")
            if spec.kind is InputKind.PARAMETER:
                name = self.names[name]
                group = self.weights if self.is_trained[name] else self.fixed
                group.setdefault(name, []).append(node)
            elif spec.kind is InputKind.BUFFER:
                self.fixed.setdefault(name, []).append(node)
            elif spec.kind is InputKind.CONSTANT_TENSOR:
                assert spec.target is not None
                self.constants.append((self.program.constants[spec.target], node))
            else:
                self.inputs.append((position, node))

    def _fold_constants(self) -> None:
        """Compute here what depends on no argument: ranges, masks, positions."""
        known: dict[Node, Any] = {node: tensor for tensor, node in self.constants}
        for node in self.graph.nodes:
            if node.op != "call_function" or is_random(node):
                continue
            if all(source in known for source in node.all_input_nodes):
                args, kwargs = map_arg((node.args, node.kwargs), known.__getitem__)
                known[node] = node.target(*args, **kwargs)
        needed = [node for node in known if any(user not in known for user in node.users)]
        self.constants = [(known[node].contiguous(), node) for node in needed]

    def _sort_outputs(self) -> tuple[list[Node], list[Any], list[str]]:
        (returned,) = next(node for node in self.graph.nodes if node.op == "output").args
        changes, outputs, changed = [], [], []
        for value, spec in zip(returned, self.program.graph_signature.output_specs, strict=True):
            if spec.kind is OutputKind.BUFFER_MUTATION:
                changes.append(value)
                changed.append(str(spec.target).removeprefix("model."))
            elif spec.kind is OutputKind.USER_OUTPUT:
                outputs.append(value)
            else:
                raise ValueError(
                    f"The model writes into what it was given ({spec.target}, {spec.kind.name}), which no other "
                    "framework can do: let it return a new tensor."
                )
        return changes, outputs, changed
