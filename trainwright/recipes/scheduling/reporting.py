"""How sparse and how quantized a model is, in the log."""

from __future__ import annotations

from typing import Any

from torch import nn

from trainwright.core.modifier import Modifier, Site
from trainwright.recipes.selecting import prunable_layers


class SparsificationLoggingModifier(Modifier):
    """Logs the share of zeros of each prunable layer, of all of them, and how many layers are quantized."""

    def __init__(
        self,
        *,
        start_epoch: float = -1.0,
        end_epoch: float = -1.0,
        update_frequency: float = 1.0,
        log_types: object = "__ALL__",
    ) -> None:
        super().__init__(start_epoch=start_epoch, end_epoch=end_epoch, update_frequency=update_frequency)

    def update(self, site: Site, epoch: float) -> None:
        site.logs.update(sparsification(site.model))


def sparsification(model: nn.Module) -> dict[str, float]:
    """Numbers about zeros and quantized layers, by name."""
    logs: dict[str, float] = {}
    zeros = weights = quantized = 0
    layers: dict[str, Any] = prunable_layers(model)
    for name, layer in layers.items():
        empty = layer.weight.numel() - int(layer.weight.count_nonzero())
        logs[f"sparsity/{name}"] = empty / max(layer.weight.numel(), 1)
        zeros, weights = zeros + empty, weights + layer.weight.numel()
        quantized += bool(getattr(layer, "rounds", False))
    logs["sparsity/all"] = zeros / max(weights, 1)
    logs["quantized_layers"] = float(quantized)
    return logs
