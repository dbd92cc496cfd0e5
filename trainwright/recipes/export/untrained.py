"""Layers that round: found in a model, or made for an export."""

from __future__ import annotations

from torch import nn

from trainwright.core.modifier import Site
from trainwright.recipes.quantization.layers import Quantized
from trainwright.recipes.quantization.modifier import QuantizationModifier
from trainwright.recipes.quantization.schemes import ROLES, Scheme


def quantized_layers(model: nn.Module) -> dict[str, Quantized]:
    """Layers that round, by name."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, Quantized) and layer.rounds}


def scheme_of_layer(layer: Quantized) -> Scheme:
    """The rules of one layer."""
    found = (layer.input_fake_quantizer, layer.weight_fake_quantizer, layer.output_fake_quantizer)
    rules = [None if quantizer is None else quantizer.rule for quantizer in found]
    return Scheme(**dict(zip(ROLES, rules, strict=True)))


def quantize_untrained(model: nn.Module, scheme: object) -> list[str]:
    """Quantize a model that was not trained so, where ``scheme`` says how."""
    if quantized_layers(model):
        if scheme is not None:
            raise ValueError("The model was trained with a scheme of its own: leave scheme= out.")
        return []
    if scheme is None:
        raise ValueError(
            "The model was not trained with a QuantizationModifier: add one to its recipe, or name a scheme (W8A8, "
            "W4A16, FP8_DYNAMIC) to round its weights as they are."
        )
    modifier = QuantizationModifier(scheme=scheme, targets=["Linear"])
    static = modifier.asked.scheme.input_activations
    if static is not None and not static.dynamic:
        raise ValueError(
            f"scheme={scheme!r} needs ranges of activations, which only data can tell: use a dynamic one (W8A8, "
            "FP8_DYNAMIC), W4A16, or calibrate with trainwright recipe apply."
        )
    modifier.prepare_model(model)
    modifier.advance(Site(model, None, 1.0), 0.0)
    return ["the model was not trained for this: its weights are rounded to the nearest, so measure what it lost"]
