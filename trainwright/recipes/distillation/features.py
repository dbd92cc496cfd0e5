"""What layers of a model give out during a forward pass, and projections that make them comparable."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from trainwright.recipes.recomputing import is_recomputing


class Features:
    """Outputs of chosen layers of the last forward pass, by layer name."""

    def __init__(self, model: nn.Module, names: Iterable[str], whose: str) -> None:
        layers = dict(model.named_modules())
        self.names = list(names)
        self.seen: dict[str, Tensor] = {}
        self._handles = []
        self._layers: dict[str, nn.Module] = {}
        for name in self.names:
            if name not in layers:
                examples = ", ".join(list(layers)[1:4])
                raise ValueError(f"The {whose} has no layer {name!r}; it has {examples}, ...")
            self._layers[name] = layers[name]
            self._handles.append(layers[name].register_forward_hook(self._keeper(name)))

    def _keeper(self, name: str) -> Any:
        def keep(layer: nn.Module, inputs: object, output: object) -> None:
            # A second time would keep the graph of a whole backward pass.
            if not is_recomputing():
                self.seen[name] = first_tensor(output)

        return keep

    def is_cut_off(self, name: str, output: Tensor) -> bool:
        """Whether ``output`` of a layer that is trained has no way back to it."""
        is_trained = any(p.requires_grad for p in self._layers[name].parameters())
        return torch.is_grad_enabled() and is_trained and not output.requires_grad

    def take(self) -> dict[str, Tensor]:
        """What was seen, once: graphs are let go with it."""
        seen, self.seen = dict(self.seen), {}
        return seen

    def remove(self) -> None:
        """Look no longer."""
        for handle in self._handles:
            handle.remove()
        self._handles = []


def first_tensor(output: Any) -> Tensor:
    """The main tensor among a layer's outputs."""
    if isinstance(output, Tensor):
        return output
    values = output.values() if hasattr(output, "values") else output
    return next(value for value in values if isinstance(value, Tensor))


def feature_size(layer: nn.Module) -> int | None:
    """How many features a layer gives out; None where it does not say."""
    for name in ("out_features", "out_channels", "num_features", "embedding_dim", "nf"):
        if isinstance(size := getattr(layer, name, None), int):
            return size
    shape = getattr(layer, "normalized_shape", None)
    return int(shape[-1]) if shape else None


def projection(name: str, layer: nn.Module, student: int, teacher: int) -> nn.Module:
    """From the student's features to the teacher's: a 1x1 convolution after convolutions, else a linear layer.

    It begins as the identity where sizes are equal, else with numbers that depend on ``name`` alone.
    """
    is_convolution = isinstance(layer, nn.Conv2d)
    kind, options = (nn.Conv2d, {"kernel_size": 1}) if is_convolution else (nn.Linear, {})
    made = nn.utils.skip_init(kind, student, teacher, bias=False, **options)
    if student == teacher:
        values = torch.eye(student)
    else:
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "little")
        values = torch.randn(teacher, student, generator=torch.Generator().manual_seed(seed)) / student**0.5
    weight: Any = made.weight
    with torch.no_grad():
        weight.copy_(values.view_as(weight))
    return made
