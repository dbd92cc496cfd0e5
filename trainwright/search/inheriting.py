"""Weights of a trained model for one that may have other sizes."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from trainwright.core.files import replacing

FILE = "inherited.safetensors"


def hand_down(parent: Path, child: Path) -> bool:
    """Copy a finished trial's weights into another's folder, for its beginning; False where there are none."""
    source = parent / "model.safetensors"
    if not source.is_file():
        return False
    child.mkdir(parents=True, exist_ok=True)
    with replacing(child / FILE) as file:
        file.write(source.read_bytes())
    return True


def inherit(model: nn.Module, file: Path) -> tuple[int, int]:
    """Take over what fits: equal tensors whole, of others the part that both have; (taken, all) values.

    >>> import tempfile
    >>> from safetensors.torch import save_file
    >>> file = Path(tempfile.mkdtemp()) / FILE
    >>> save_file({"weight": torch.ones(2, 3), "bias": torch.ones(2)}, file)
    >>> wider = nn.Linear(3, 4)
    >>> inherit(wider, file)
    (8, 16)
    >>> wider.bias.data[:2]
    tensor([1., 1.])
    """
    before = load_file(file)
    own = model.state_dict()
    taken = total = 0
    with torch.no_grad():
        for name, tensor in own.items():
            if not tensor.is_floating_point():
                continue
            total += tensor.numel()
            old = before.get(name)
            if old is None or old.ndim != tensor.ndim:
                continue
            both = tuple(slice(0, min(one, other)) for one, other in zip(old.shape, tensor.shape, strict=True))
            tensor[both] = old[both].to(tensor)
            taken += tensor[both].numel()
    return taken, total
