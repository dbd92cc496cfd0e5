"""Layers that were dropped from a transformers model: the rest closes up, and its configuration counts anew."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch
from torch import nn

from trainwright.recipes.language.reading import read_recipe
from trainwright.recipes.language.writing import write_recipe
from trainwright.recipes.pruning.layers import PassThrough


def close_gaps(model: nn.Module) -> dict[str, str] | None:
    """Take dropped layers out of the lists they stand in: {old name: new name} of the layers that moved up.

    None where ``model`` has gaps that its configuration cannot express; it is then left as it is.
    """
    lists = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and any(isinstance(layer, PassThrough) for layer in module)
    }
    gaps = sum(isinstance(module, PassThrough) for module in model.modules())
    if not gaps:
        return {}
    inside = sum(isinstance(layer, PassThrough) for layers in lists.values() for layer in layers)
    if inside < gaps or not hasattr(getattr(model, "config", None), "to_dict"):
        return None
    closed, moved = copy.deepcopy(model), {}
    config: Any = closed.config
    for name, layers in lists.items():
        kept = [index for index, layer in enumerate(layers) if not isinstance(layer, PassThrough)]
        moved |= {f"{name}.{old}": f"{name}.{new}" for new, old in enumerate(kept)}
        own: Any = closed.get_submodule(name)
        closed.set_submodule(name, nn.ModuleList([own[index] for index in kept]))
        _count_anew(config, len(layers), kept)
    if not _builds(closed):
        return None
    for name in lists:
        model.set_submodule(name, closed.get_submodule(name))
    vars(model)["config"] = config
    return moved


def _count_anew(config: Any, before: int, kept: list[int]) -> None:
    """Every setting that counts layers, or lists them one by one, as it is for those that are left."""
    for name, value in list(config.to_dict().items()):
        if "layer" not in name and name != "depth":
            continue
        if isinstance(value, int) and not isinstance(value, bool) and value == before:
            setattr(config, name, len(kept))
        elif isinstance(value, list) and len(value) == before:
            setattr(config, name, [value[index] for index in kept])


def _builds(model: nn.Module) -> bool:
    """Whether the configuration gives a model of exactly these weights."""
    kind: Any = type(model)
    try:
        with torch.device("meta"):
            built = kind(model.config)
    except Exception:
        # Whatever a model's own code says to a configuration it does not like.
        return False
    return _shapes(built) == _shapes(model)


def _shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def renamed(name: str, moved: dict[str, str]) -> str:
    """The name of a parameter after its layer moved up.

    >>> renamed("encoder.2.weight", {"encoder.2": "encoder.1"}), renamed("head.weight", {"encoder.2": "encoder.1"})
    ('encoder.1.weight', 'head.weight')
    """
    for old, new in moved.items():
        if name.startswith(f"{old}."):
            return new + name.removeprefix(old)
    return name


def without_dropping(recipe: str) -> str:
    """The recipe as text, without what drops layers: where they are gone, their numbers mean others."""
    read = read_recipe(recipe)
    stages = tuple(
        dataclasses.replace(
            stage, modifiers=tuple(spec for spec in stage.modifiers if spec.kind != "LayerPruningModifier")
        )
        for stage in read.stages
    )
    return write_recipe(dataclasses.replace(read, stages=stages))
