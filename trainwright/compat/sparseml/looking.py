"""Small functions of ``sparseml.pytorch.utils`` that look at models and optimizers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer

from trainwright.recipes.scheduling.groups import set_in
from trainwright.recipes.selecting import prunable_layers


class NamedLayerParam(NamedTuple):
    """A parameter with its layer."""

    layer_name: str
    layer: nn.Module
    param_name: str
    param: nn.Parameter


def tensor_sparsity(tens: Tensor, dim: int | Iterable[int] | None = None) -> Tensor:
    """The share of zeros, of all values or along ``dim``.

    >>> float(tensor_sparsity(Tensor([0.0, 1.0, 0.0, 2.0])))
    0.5
    """
    zeros = (tens == 0).float()
    if dim is None:
        return zeros.mean()
    kept = {dim % tens.ndim} if isinstance(dim, int) else {one % tens.ndim for one in dim}
    return zeros.mean([one for one in range(tens.ndim) if one not in kept])


def get_optim_learning_rate(optim: Optimizer) -> float:
    """The learning rate of the first group."""
    return optim.param_groups[0]["lr"]


def set_optim_learning_rate(optim: Optimizer, value: float) -> None:
    """One rate for all groups."""
    for group in optim.param_groups:
        set_in(group, "lr", value)


def any_str_or_regex_matches_param_name(param_name: str, name_or_regex_patterns: Iterable[str]) -> bool:
    """Whether one of the patterns is this name, or begins ``re:`` and fits its beginning.

    >>> any_str_or_regex_matches_param_name("a.weight", ["re:.*weight"])
    True
    """
    return any(_fits(param_name, pattern) for pattern in name_or_regex_patterns)


def _fits(name: str, pattern: str) -> bool:
    return re.match(pattern[3:], name) is not None if pattern.startswith("re:") else pattern == name


def get_named_layers_and_params_by_regex(
    module: nn.Module, name_or_regex_patterns: list[str], params_strict: bool = False
) -> list[NamedLayerParam]:
    """Parameters that the patterns name, with their layers; with ``params_strict`` every pattern has to name one."""
    found = [
        NamedLayerParam(layer_name, layer, own, parameter)
        for layer_name, layer in module.named_modules()
        for own, parameter in layer.named_parameters(recurse=False)
        if any_str_or_regex_matches_param_name(f"{layer_name}.{own}".lstrip("."), name_or_regex_patterns)
    ]
    names = [f"{one.layer_name}.{one.param_name}".lstrip(".") for one in found]
    lost = [pattern for pattern in name_or_regex_patterns if not any(_fits(name, pattern) for name in names)]
    if params_strict and lost:
        raise ValueError(f"No parameter is called {', '.join(lost)}.")
    return found


def get_layer(name: str, module: nn.Module) -> nn.Module:
    """The layer of that name; "" is the module itself."""
    return module.get_submodule(name)


def get_prunable_layers(module: nn.Module) -> list[tuple[str, Any]]:
    """Layers that ``__ALL_PRUNABLE__`` means, with their names."""
    return list(prunable_layers(module).items())
