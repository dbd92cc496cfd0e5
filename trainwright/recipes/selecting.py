"""Which parameters and layers of a model a recipe means."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from trainwright.config.origin import class_if_imported
from trainwright.config.patterns import Pattern
from trainwright.config.registry import suggestion

ALL = "__ALL__"
ALL_PRUNABLE = "__ALL_PRUNABLE__"


def prunable_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Layers whose weights are worth pruning, by name: linear, convolution and embedding layers, GPT-2's Conv1D.

    >>> list(prunable_layers(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))))
    ['0', '2']
    """
    return {name: layer for name, layer in model.named_modules() if _is_prunable(layer)}


def is_conv1d(layer: nn.Module) -> bool:
    """Return True for GPT-2's Conv1D: a linear layer whose weight has its inputs in dimension 0."""
    return isinstance(layer, class_if_imported("transformers.pytorch_utils", "Conv1D"))


def _is_prunable(layer: nn.Module) -> bool:
    kinds = (nn.Linear, nn.modules.conv._ConvNd, nn.Embedding)
    is_kind = isinstance(layer, kinds) or is_conv1d(layer)
    return is_kind and isinstance(getattr(layer, "weight", None), nn.Parameter)


def select_parameters(model: nn.Module, wanted: str | Iterable[str], what: str = "params") -> dict[str, nn.Parameter]:
    """Parameters by name; exact names, ``re:pattern`` from the start of a name, ``__ALL__`` or ``__ALL_PRUNABLE__``.

    A name that fits nothing is an error. A parameter that is shared is there once.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    >>> list(select_parameters(model, "__ALL_PRUNABLE__")), list(select_parameters(model, ["re:1[.]"]))
    (['0.weight', '1.weight'], ['1.weight', '1.bias'])
    """
    named = dict(model.named_parameters())
    chosen: dict[str, nn.Parameter] = {}
    for name in _expand(wanted, named, _prunable_names(model, named), what):
        chosen[name] = named[name]
    return chosen


def select_layers(model: nn.Module, wanted: str | Iterable[str], what: str = "layers") -> dict[str, nn.Module]:
    """The same for layers; ``__ALL_PRUNABLE__`` are those of :func:`prunable_layers`."""
    named = {name: layer for name, layer in model.named_modules() if name}
    return {name: named[name] for name in _expand(wanted, named, list(prunable_layers(model)), what)}


def _prunable_names(model: nn.Module, named: dict[str, nn.Parameter]) -> list[str]:
    # A weight that two layers share has the name of the first.
    first = {id(parameter): name for name, parameter in reversed(list(named.items()))}
    names = [first[id(layer.weight)] for layer in prunable_layers(model).values() if id(layer.weight) in first]
    return list(dict.fromkeys(names))


def _expand(wanted: str | Iterable[str], named: dict[str, Any], prunable: list[str], what: str) -> list[str]:
    found: list[str] = []
    for pattern in [wanted] if isinstance(wanted, str) else list(wanted):
        if pattern == ALL:
            matches = list(named)
        elif pattern == ALL_PRUNABLE:
            matches = prunable
        elif pattern.startswith("re:"):
            matches = _matching(pattern, named, what)
        else:
            matches = [pattern] if pattern in named else []
        if not matches:
            hint = "" if pattern.startswith("re:") else suggestion(pattern, named)
            examples = ", ".join(list(named)[:3])
            raise ValueError(f"{what}: {pattern!r} fits nothing in this model{hint}; it has {examples}, ...")
        found += matches
    return list(dict.fromkeys(found))


def _matching(pattern: str, names: Iterable[str], what: str) -> list[str]:
    try:
        expression = Pattern(pattern.removeprefix("re:"))
        return [name for name in names if expression.match(name)]
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None


def sparsity_of(tensor: torch.Tensor) -> float:
    """Share of zeros."""
    return 1.0 - tensor.count_nonzero().item() / max(tensor.numel(), 1)
