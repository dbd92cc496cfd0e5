"""Write a recipe: as YAML that this library and others read as it was."""

from __future__ import annotations

from typing import Any

from trainwright.config.yaml12 import Tagged, write_yaml
from trainwright.recipes.language.records import METADATA, Recipe, Stage


def write_recipe(recipe: Recipe) -> str:
    """``recipe`` as text; reading it gives the same recipe. Variables are gone, their values stand in their place.

    >>> from trainwright.recipes.language.reading import read_recipe
    >>> recipe = read_recipe({"rate": 1e-4, "modifiers": [
    ...     {"SetLearningRateModifier": {"learning_rate": "eval(rate)"}},
    ...     {"ConstantPruningModifier": {"params": ["2:4", "re:.*"]}},
    ... ]})
    >>> print(write_recipe(recipe))
    modifiers:
    - !SetLearningRateModifier
      learning_rate: 0.0001
    - !ConstantPruningModifier
      params:
      - '2:4'
      - re:.*
    <BLANKLINE>
    >>> read_recipe(write_recipe(recipe)) == recipe
    True
    """
    written: dict[str, Any] = {}
    if recipe.version is not None:
        written["version"] = recipe.version
    for stage in recipe.stages:
        metadata = stage.metadata if recipe.is_staged else recipe.metadata
        if stage.name is None:
            written.update(_stage(stage, metadata))
        else:
            written[stage.name] = _stage(stage, metadata)
    return write_yaml(written)


def _stage(stage: Stage, metadata: dict[str, Any] | None) -> dict[str, Any]:
    written: dict[str, Any] = {}
    if metadata is not None:
        written[METADATA] = _fresh(metadata)
    if stage.run_type is not None:
        written["run_type"] = stage.run_type
    for spec in stage.modifiers:
        written.setdefault(spec.group, []).append(Tagged(spec.kind, _fresh(spec.arguments)))
    if not stage.modifiers:
        written["modifiers"] = []
    return written


def _fresh(value: object) -> Any:
    """Without parts that are one and the same: these would be written as references to each other."""
    if isinstance(value, dict):
        return {key: _fresh(item) for key, item in value.items()}
    return [_fresh(item) for item in value] if isinstance(value, list) else value
