"""ONNX with quantize and dequantize nodes, checked in onnxruntime before it is handed out."""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from trainwright.config.errors import MissingPackage
from trainwright.core.signatures import forward_parameters
from trainwright.recipes.export.onnx_layers import StoredWeight, make_exportable
from trainwright.recipes.export.results import Exported
from trainwright.recipes.export.untrained import quantize_untrained, quantized_layers
from trainwright.recipes.quantization.schemes import Rule

try:
    import onnx
    import onnxruntime
    import onnxscript  # noqa: F401 - torch's exporter needs it
    from onnx import helper, numpy_helper
except ImportError as error:
    raise MissingPackage(
        "The export needs the packages onnx, onnxscript and onnxruntime: pip install 'trainwright[recipes]'."
    ) from error

MODEL = "model.onnx"
#: From here on the operators have 4-bit weights with a scale for each group.
OPSET = 21
#: How far outputs may be from torch's (root mean square, as a share of theirs). Where inputs are rounded, a value at
#: the border of two codes may fall on the other side, for sums are taken in another order; fewer bits, wider steps.
TOLERANCE, TOLERANCE_ROUNDED = 1e-3, 2e-2


def write_onnx(model: nn.Module, folder: Path, example_inputs: object, scheme: object = None) -> Exported:
    """Write ``model``, which is changed; the first dimension of every input may then have any size."""
    notes = quantize_untrained(model, scheme) if scheme is not None else []
    if any(parameter.dtype != torch.float32 for parameter in model.parameters() if parameter.is_floating_point()):
        notes.append("what is not rounded is stored and computed in float32")
        model.float()
    layers = quantized_layers(model)
    for name, layer in layers.items():
        _refuse_formats(name, (layer.input_fake_quantizer, layer.weight_fake_quantizer, layer.output_fake_quantizer))
    inputs = _as_keywords(model, example_inputs)
    try:
        expected = _outputs(model, inputs)
    except (RuntimeError, TypeError, IndexError, ValueError) as error:
        raise ValueError(
            f"The model does not run with these inputs ({type(error).__name__}: {error}): pass what its forward takes."
        ) from error
    exportable = copy.deepcopy(model)
    stored = make_exportable(exportable)
    graph = _graph_of(exportable, inputs)
    _store_groups(graph, stored)
    folded = fold_batch_norms(graph)
    if folded:
        notes.append(f"{folded} batch normalizations are folded into the convolutions before them")
    _drop_unused(graph)
    onnx.checker.check_model(graph)
    path = folder / MODEL
    onnx.save(graph, path)
    _refuse_differences(path, inputs, expected, tolerance_for(layers))
    notes += _about(layers)
    return Exported(folder, path, notes)


def _refuse_formats(name: str, quantizers: tuple[Any, ...]) -> None:
    for quantizer in quantizers:
        rule: Rule | None = None if quantizer is None else quantizer.rule
        if rule is not None and rule.type == "float":
            raise ValueError(
                f"{name}: 8-bit floating point is for GPUs that compute with it: export to compressed-tensors."
            )
        if rule is not None and rule.strategy == "group" and rule.num_bits != 4:
            raise ValueError(
                f"{name}: ONNX has groups for 4-bit weights alone, not for {rule.num_bits}: train with strategy "
                "'channel', or export to compressed-tensors."
            )


def tolerance_for(layers: Mapping[str, Any]) -> float:
    """What may be different: nothing but the order of sums, unless inputs or outputs of layers are rounded."""
    quantizers = [q for one in layers.values() for q in (one.input_fake_quantizer, one.output_fake_quantizer) if q]
    if not quantizers:
        return TOLERANCE
    fewest = min(quantizer.rule.num_bits for quantizer in quantizers)
    return min(TOLERANCE_ROUNDED * 2 ** (8 - fewest), 0.3)


def _about(layers: Mapping[str, Any]) -> list[str]:
    notes = []
    bits = {layer.weight_fake_quantizer.rule.num_bits for layer in layers.values() if layer.weight_fake_quantizer}
    if odd := sorted(bits - {4, 8}):
        notes.append(f"weights of {odd[0]} bits are stored in a byte each")
    dynamic = [
        n for n, layer in layers.items() if layer.input_fake_quantizer and layer.input_fake_quantizer.rule.dynamic
    ]
    if dynamic:
        notes.append("inputs with a scale for each token are rounded by plain operators: exact, but not faster")
    return notes


# ---- torch to a graph


def _as_keywords(model: nn.Module, example: Any) -> dict[str, Tensor]:
    """Example inputs by the names that ``forward`` has for them."""
    if isinstance(example, Mapping):
        named = dict(example)
    else:
        values = tuple(example) if isinstance(example, (list, tuple)) else (example,)
        named = dict(zip(forward_parameters(model), values, strict=False))
    for name, value in named.items():
        if not isinstance(value, Tensor):
            raise ValueError(f"example_inputs: {name} is a {type(value).__name__}, and only tensors go into a graph.")
    return {name: value.float() if value.is_floating_point() else value for name, value in _on_cpu(named).items()}


def _on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu() for name, tensor in tensors.items()}


@torch.no_grad()
def _outputs(model: nn.Module, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    leaves = pytree.tree_leaves(dict(found) if isinstance(found := model(**inputs), Mapping) else found)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def _graph_of(model: nn.Module, inputs: Mapping[str, Tensor]) -> Any:
    if any(value.shape[0] < 2 for value in inputs.values() if value.dim()):
        # A dimension of one is taken for a constant.
        inputs = {name: torch.cat([value, value]) if value.dim() else value for name, value in inputs.items()}
    shapes: dict[str, Any] = {name: _free_dimensions(value) for name, value in inputs.items()}
    named: dict[str, Any] = {"args": (), "kwargs": dict(inputs), "dynamic_shapes": shapes}
    if inspect.signature(model.forward).parameters.keys().isdisjoint(inputs):
        # It hands on whatever it is given: the graph has its inputs by their places.
        model = _ByPlace(model, list(inputs))
        named = {"args": tuple(inputs.values()), "dynamic_shapes": (tuple(shapes.values()),), "input_names": [*inputs]}
    with _quietly():
        program = torch.onnx.export(model, dynamo=True, opset_version=OPSET, verbose=False, **named)
    assert program is not None
    return program.model_proto


class _ByPlace(nn.Module):
    """A model that is given its inputs without their names."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *values: Tensor) -> Any:
        return self.model(**dict(zip(self.names, values, strict=True)))


def _free_dimensions(value: Tensor) -> dict[int, Any] | None:
    """The batch may have any size; so may a text, whose tokens are whole numbers."""
    if not value.dim():
        return None
    others = range(1, value.dim()) if not value.is_floating_point() else ()
    return {0: torch.export.Dim.DYNAMIC, **dict.fromkeys(others, torch.export.Dim.AUTO)}


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """The exporter tells of operators that are not installed, and of its own future."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


# ---- the graph


def _store_groups(model: Any, stored: Mapping[str, StoredWeight]) -> None:
    """Four bits for weights that have no more; a scale for each group."""
    graph = model.graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in [node for node in graph.node if node.op_type == "DequantizeLinear"]:
        name = node.input[0].removesuffix(".weight_fake_quantizer.codes")
        own = stored.get(name) or stored.get(name.removeprefix("model."))
        if own is None or own.rule.num_bits != 4 or node.input[0] not in tensors:
            continue
        old = tensors[node.input[0]]
        codes = numpy_helper.to_array(old)
        scale, zero = (part.detach().cpu().numpy() for part in own.grid)
        groups = scale.shape[1] if own.rule.strategy == "group" else 1
        old.CopyFrom(_four_bits(codes, old.name))
        if groups == 1:
            scale, zero = scale[:, 0], zero[:, 0]
        else:
            del node.attribute[:]
            size = codes.shape[1] // groups
            node.attribute.extend([helper.make_attribute("axis", 1), helper.make_attribute("block_size", size)])
        node.input[1], node.input[2] = f"{name}.scale", f"{name}.zero_point"
        graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(scale), node.input[1]))
        graph.initializer.append(_four_bits(zero, node.input[2]))


def _four_bits(values: np.ndarray, name: str) -> Any:
    flat = (values.astype(np.int8).ravel() & 0xF).astype(np.uint8)
    if flat.size % 2:
        flat = np.append(flat, np.uint8(0))
    packed = (flat[0::2] | (flat[1::2] << 4)).astype(np.uint8)
    return helper.make_tensor(name, onnx.TensorProto.INT4, values.shape, packed.tobytes(), raw=True)


def fold_batch_norms(model: Any) -> int:
    """Fold each batch normalization that follows a quantized convolution into the scales of its weight.

    The codes stay: what the normalization multiplies a channel by goes into that channel's scale, the rest into the
    bias. Returns how many there were.
    """
    graph = model.graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    made_by = {output: node for node in graph.node for output in node.output}
    readers: dict[str, int] = {}
    for name in [name for node in graph.node for name in node.input] + [output.name for output in graph.output]:
        readers[name] = readers.get(name, 0) + 1
    folded = 0
    for norm in [node for node in graph.node if node.op_type == "BatchNormalization"]:
        conv = made_by.get(norm.input[0])
        weight = None if conv is None or conv.op_type != "Conv" else made_by.get(conv.input[1])
        if conv is None or weight is None or weight.op_type != "DequantizeLinear" or readers[norm.input[0]] != 1:
            continue
        values = [numpy_helper.to_array(tensors[name]) for name in norm.input[1:] if name in tensors]
        if len(values) != 4 or readers[weight.output[0]] != 1 or weight.input[1] not in tensors:
            continue
        epsilon = next((a.f for a in norm.attribute if a.name == "epsilon"), 1e-5)
        gain, shift, mean, variance = (value.astype(np.float64) for value in values)
        factor = gain / np.sqrt(variance + epsilon)
        if (factor <= 0).any():
            # A scale is positive.
            continue
        scale = numpy_helper.to_array(tensors[weight.input[1]]).astype(np.float64)
        bias = 0.0 if len(conv.input) < 3 or not conv.input[2] else numpy_helper.to_array(tensors[conv.input[2]])
        name = norm.output[0]
        new = {f"{name}.scale": scale * factor, f"{name}.bias": (bias - mean) * factor + shift}
        graph.initializer.extend([numpy_helper.from_array(v.astype(np.float32), n) for n, v in new.items()])
        weight.input[1] = f"{name}.scale"
        del conv.input[2:]
        conv.input.append(f"{name}.bias")
        conv.output[0] = name
        graph.node.remove(norm)
        folded += 1
    return folded


def _drop_unused(model: Any) -> None:
    used = {name for node in model.graph.node for name in node.input}
    for tensor in [tensor for tensor in model.graph.initializer if tensor.name not in used]:
        model.graph.initializer.remove(tensor)
    # Where in the Python source each node came from: longer than the weights of a small model, and full of paths.
    for part in (model.graph, *model.graph.node, *model.graph.initializer, *model.graph.value_info):
        part.ClearField("doc_string")
        part.ClearField("metadata_props")


# ---- the proof


def run_onnx(path: Path, inputs: Mapping[str, Tensor]) -> list[np.ndarray]:
    """Outputs of a graph in onnxruntime, on the CPU."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    found = session.run(None, {name: inputs[name].detach().cpu().numpy() for name in names if name in inputs})
    return [np.asarray(output) for output in found]


def _refuse_differences(path: Path, inputs: Mapping[str, Tensor], expected: list[Tensor], tolerance: float) -> None:
    found = run_onnx(path, inputs)
    for number, (ours, theirs) in enumerate(zip(expected, found, strict=False)):
        want = ours.detach().float().cpu().numpy()
        error = float(np.sqrt(np.mean((want - theirs) ** 2)) / max(float(np.sqrt(np.mean(want**2))), 1e-6))
        if not error <= tolerance:
            raise ValueError(
                f"{path} gives other numbers in onnxruntime than the model in torch: output {number} is off by "
                f"{error:.2%}, and {tolerance:.2%} is allowed. It was left there to look at; please report it."
            )
