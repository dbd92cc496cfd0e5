"""compressed-tensors: what vLLM and transformers load, written by its own library."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr
from pathlib import Path

import torch
from torch import nn

from trainwright.config.errors import MissingPackage
from trainwright.recipes.export.results import Exported
from trainwright.recipes.export.saving import save_model
from trainwright.recipes.export.untrained import quantize_untrained, quantized_layers, scheme_of_layer
from trainwright.recipes.quantization.layers import Quantized, restore_layer
from trainwright.recipes.quantization.schemes import ROLES, Rule, Scheme

try:
    from compressed_tensors import ModelCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.lifecycle.initialize import initialize_module_for_quantization
except ImportError as error:
    raise MissingPackage(
        "The export needs the packages compressed-tensors and transformers: pip install 'trainwright[recipes,hf]'."
    ) from error

#: Its library makes room for unpacked zero points when it prepares an empty model, as transformers 5.23 asks it to.
_ZERO_POINTS = (
    "transformers 5.23 with compressed-tensors 0.20 reads weights of fewer than 8 bits with zero points only with "
    "from_pretrained(..., quantization_config=CompressedTensorsConfig(dequantize=True)); symmetric ones need nothing"
)


def write_compressed(model: nn.Module, folder: Path, scheme: object = None) -> Exported:
    """Write ``model``, which is changed, with the grids that its quantizers have."""
    notes = quantize_untrained(model, scheme)
    layers = quantized_layers(model)
    schemes = {name: scheme_of_layer(layer) for name, layer in layers.items()}
    supported, notes_of_rest = _round_the_rest(model, layers)
    notes += notes_of_rest
    if any(_has_packed_zero_points(schemes[name]) for name in supported):
        notes.append(_ZERO_POINTS)
    groups: dict[Scheme, list[str]] = {}
    for name in supported:
        groups.setdefault(schemes[name], []).append(name)
    if not groups:
        raise ValueError("No layer of this model has a form in compressed-tensors: export it to onnx or safetensors.")
    for scheme, names in groups.items():
        # One scheme for all is written by type of layer, which is what servers of models look for.
        targets = ["Linear"] if len(groups) == 1 else names
        for name in names:
            _hand_over(layers[name], scheme, targets)
    for layer in list(model.modules()):
        restore_layer(layer)
    # Its progress bar is about the insides of one call.
    with redirect_stderr(io.StringIO()):
        compressor = ModelCompressor.from_pretrained_model(model)
        compressor.compress_model(model)
    compressor.remove_decompression_hook(model)
    save_model(model, folder)
    compressor.update_config(str(folder))
    _tidy_config(folder)
    return Exported(folder, folder / "model.safetensors", notes)


def _has_packed_zero_points(scheme: Scheme) -> bool:
    rule = scheme.weights
    return rule is not None and rule.type == "int" and rule.num_bits < 8 and not rule.symmetric


@torch.no_grad()
def _round_the_rest(model: nn.Module, layers: dict[str, Quantized]) -> tuple[list[str], list[str]]:
    """Layers that the format knows; the weights of others are stored as they are after rounding."""
    uses: dict[int, int] = {}
    for module in model.modules():
        if isinstance(weight := getattr(module, "weight", None), nn.Parameter):
            uses[id(weight)] = uses.get(id(weight), 0) + 1
    supported, rest = [], []
    for name, layer in layers.items():
        # Readers know linear layers alone; packed embeddings do not load in transformers.
        is_known = type(layer).plain_class is nn.Linear and layer.weight_fake_quantizer is not None
        if is_known and uses[id(layer.weight)] == 1:
            supported.append(name)
        else:
            rest.append(name)
            layer.weight.copy_(layer.rounded_weight())
    notes = []
    if rest:
        notes.append(
            f"{', '.join(rest[:4])}{' and others' if len(rest) > 4 else ''}: only linear layers with a weight of "
            "their own are stored in few bits; the weights of these are rounded, but in floating point"
        )
    return supported, notes


@torch.no_grad()
def _hand_over(layer: Quantized, scheme: Scheme, targets: list[str]) -> None:
    """Give ``layer`` the library's parameters, with our values."""
    rules = {role: _arguments(getattr(scheme, role), role) for role in ROLES}
    quantizer = layer.weight_fake_quantizer
    assert quantizer is not None
    scale, zero = quantizer.grid(layer.weight)
    weight = layer.rounded_weight().clone()
    found = {"weight": (scale, zero)}
    for role in ("input", "output"):
        activation = getattr(layer, f"{role}_fake_quantizer")
        if activation is not None and not activation.rule.dynamic:
            found[role] = activation.grid()
    restore_layer(layer)
    initialize_module_for_quantization(layer, QuantizationScheme(targets=targets, **rules), force_zero_point=False)
    # Points of the grid, which the library's own rounding leaves as they are.
    layer.weight.copy_(weight)
    for role, grid in found.items():
        for what, value in zip(("scale", "zero_point"), grid, strict=True):
            parameter = getattr(layer, f"{role}_{what}", None)
            if parameter is not None:
                parameter.copy_(value.reshape(parameter.shape))


def _arguments(rule: Rule | None, role: str) -> QuantizationArgs | None:
    if rule is None:
        return None
    if rule.reduce_range:
        raise ValueError(
            f"{role}: reduce_range has no form in compressed-tensors: train without it, or export to onnx."
        )
    return QuantizationArgs(
        num_bits=rule.num_bits,
        type=rule.type,
        symmetric=rule.symmetric,
        strategy=rule.strategy,
        group_size=rule.group_size,
        dynamic=rule.dynamic,
    )


def _tidy_config(folder: Path) -> None:
    """Without the keys of formats that no longer exist: vLLM refuses a ``sparsity_config``."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    found = config["quantization_config"]
    gone = [key for key in found if "sparsity" in key or (key == "transform_config" and not found[key])]
    for key in gone:
        del found[key]
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
