"""A torch model that is called as ever and computes on another framework; for evaluation and prediction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from trainwright.engines.graph.buckets import padded


class LoweredModel(nn.Module):
    """Calls go to ``compute(model, args, kwargs)``; whatever else is asked of it, the model answers."""

    def __init__(self, module: nn.Module, compute: Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Any]) -> None:
        super().__init__()
        self.module = module
        self._compute = compute
        self.train(module.training)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._compute(self.module, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


def call(model: nn.Module, given: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
    """What a captured evaluation computes."""
    args, kwargs = given
    return model(*args, **kwargs)


class Lengths:
    """Pads texts to a bucket's length, and cuts what comes out to the length it should have."""

    def __init__(self) -> None:
        self._shapes: dict[Any, list[tuple[int, ...] | None]] = {}

    def padded(self, model: nn.Module, kwargs: dict[str, Any]) -> dict[str, Any]:
        return padded(kwargs, getattr(model, "config", None))

    def cut(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: object) -> Any:
        """``outputs`` of the padded batch, as long as those of ``kwargs``."""
        leaves, structure = pytree.tree_flatten(outputs)
        key = (str(structure), *(tuple(v.shape[1:]) if isinstance(v, Tensor) else v for v in kwargs.values()))
        if key not in self._shapes:
            self._shapes[key] = _shapes_of_a_row(model, args, kwargs)
        cut = [
            leaf if shape is None or not isinstance(leaf, Tensor) else _narrowed(leaf, shape)
            for leaf, shape in zip(leaves, self._shapes[key], strict=True)
        ]
        return pytree.tree_unflatten(cut, structure)


def _shapes_of_a_row(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[int, ...] | None]:
    """Shapes, without the first dimension, of what the model returns for the first sample; computed by torch itself.

    Which dimension of an output is the text's cannot be told from its size: there may be as many classes as tokens.
    """
    row = {name: value[:1] if isinstance(value, Tensor) and value.ndim else value for name, value in kwargs.items()}
    with torch.no_grad():
        leaves = pytree.tree_leaves(model(*args, **row))
    return [tuple(leaf.shape[1:]) if isinstance(leaf, Tensor) and leaf.ndim else None for leaf in leaves]


def _narrowed(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    for dimension, size in enumerate(shape, start=1):
        tensor = tensor.narrow(dimension, 0, size)
    return tensor
