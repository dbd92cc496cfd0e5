"""Layers as an ONNX graph shows them: weights as stored codes, rounding as a pair of quantize and dequantize nodes."""

from __future__ import annotations

from typing import Any

import torch
import torch.ao.quantization.fx._decomposed  # registers the operators that the exporter turns into such nodes
from torch import Tensor, nn

from trainwright.recipes.quantization.layers import Quantized
from trainwright.recipes.quantization.quantizers import ActivationQuantizer
from trainwright.recipes.quantization.rounding import blocks_of_weight, codes_of
from trainwright.recipes.quantization.schemes import Rule

_nodes: Any = torch.ops.quantized_decomposed
_BYTE = 128


class StoredWeight(nn.Module):
    """In place of a layer's weight quantizer: ignores the weight it is given and unpacks what is stored."""

    codes: Tensor
    scale: Tensor
    zero_point: Tensor

    def __init__(self, layer: Quantized) -> None:
        super().__init__()
        quantizer = layer.weight_fake_quantizer
        assert quantizer is not None
        weight = layer.outputs_first().detach()
        self.rule: Rule = quantizer.rule
        blocks = blocks_of_weight(self.rule, weight)
        scale, zero = quantizer.grid(weight)
        rows = weight.shape[0]
        self.register_buffer("codes", codes_of(weight, self.rule, (scale, zero), blocks))
        #: (outputs, groups): what the graph gets in the end where there are groups.
        self.grid = (
            scale.reshape(-1, 1).expand(rows, -1) if scale.numel() == 1 else scale.reshape(rows, -1),
            zero.reshape(-1, 1).expand(rows, -1) if zero.numel() == 1 else zero.reshape(rows, -1),
        )
        self.register_buffer("scale", self.grid[0][:, 0].contiguous().clone())
        self.register_buffer("zero_point", self.grid[1][:, 0].to(torch.int8).contiguous().clone())

    def forward(self, weight: Tensor) -> Tensor:
        return _nodes.dequantize_per_channel(self.codes, self.scale, self.zero_point, 0, -_BYTE, _BYTE - 1, torch.int8)


class FixedRounding(nn.Module):
    """In place of an activation quantizer whose range is known."""

    def __init__(self, quantizer: ActivationQuantizer) -> None:
        super().__init__()
        scale, zero = quantizer.grid()
        self.scale, self.zero_point = float(scale), int(zero)
        self.rule = quantizer.rule

    def forward(self, values: Tensor) -> Tensor:
        rule = self.rule
        if rule.highest - rule.lowest < 2 * _BYTE - 1:
            # The nodes know only the range of a whole byte.
            low, high = ((code - self.zero_point) * self.scale for code in (rule.lowest, rule.highest))
            values = values.clamp(low, high)
        # Kernels for x86 want bytes without a sign, TensorRT wants symmetric ones with it.
        shift = 0 if rule.symmetric else _BYTE
        kind = torch.int8 if rule.symmetric else torch.uint8
        limits = (self.scale, self.zero_point + shift, -_BYTE + shift, _BYTE - 1 + shift, kind)
        return _nodes.dequantize_per_tensor(_nodes.quantize_per_tensor(values, *limits), *limits)


def make_exportable(model: nn.Module) -> dict[str, StoredWeight]:
    """Change ``model`` so that its graph has the nodes; returns stored weights by name of their layer."""
    stored: dict[str, StoredWeight] = {}
    for name, layer in model.named_modules():
        if not isinstance(layer, Quantized) or not layer.rounds:
            continue
        if layer.weight_fake_quantizer is not None:
            own: Any = StoredWeight(layer)
            layer.weight_fake_quantizer = own
            stored[name] = own
        for role in ("input_fake_quantizer", "output_fake_quantizer"):
            quantizer = getattr(layer, role)
            if quantizer is not None and not quantizer.rule.dynamic:
                setattr(layer, role, FixedRounding(quantizer))
    return stored
