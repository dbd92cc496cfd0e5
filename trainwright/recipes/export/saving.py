"""A model as plain safetensors, with its configuration where it has one."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

WEIGHTS = "model.safetensors"


def save_model(model: nn.Module, folder: Path) -> None:
    """Weights, and the configuration where the model has one."""
    save_pretrained = getattr(model, "save_pretrained", None)
    if callable(save_pretrained):
        save_pretrained(str(folder))
        return
    tensors: dict[str, Tensor] = {}
    places: set[tuple[int, torch.Size, tuple[int, ...]]] = set()
    for name, tensor in model.state_dict().items():
        # Tied weights are stored once.
        place = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if tensor.numel() and place in places:
            continue
        places.add(place)
        tensors[name] = tensor.detach().cpu().contiguous()
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
