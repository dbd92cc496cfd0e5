"""``layers.json``: what a recipe has made of each layer."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from torch import nn

from trainwright.core.files import replace_text
from trainwright.recipes.selecting import prunable_layers
from trainwright.training.save_model import run_folder
from trainwright.training.setup import Setup

FILE = "layers.json"


def note_layers(setup: Setup, model: nn.Module) -> None:
    """Write the share of zeros and the bit width of each layer, where a recipe ran and the model is here whole."""
    folder = run_folder(setup)
    if (
        not any(one.changes_weights for one in setup.modifiers)
        or not setup.args.should_save
        or setup.engine.weights.layout.in_parts
    ):
        return
    layers = [_layer(name, layer) for name, layer in prunable_layers(model).items()]
    with suppress(OSError):
        if folder.is_dir():
            replace_text(folder / FILE, json.dumps({"layers": layers}) + "\n")


def _layer(name: str, layer: Any) -> dict[str, Any]:
    weights = layer.weight.numel()
    quantizer = getattr(layer, "weight_fake_quantizer", None)
    return {
        "name": name,
        "weights": weights,
        "sparsity": round(1 - int(layer.weight.count_nonzero()) / max(weights, 1), 6),
        "bits": quantizer.rule.num_bits if quantizer is not None else layer.weight.element_size() * 8,
    }
