"""Read a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainwright.config.errors import ConfigError
from trainwright.recipes.language.arguments import read_recipe_args
from trainwright.recipes.language.records import Recipe
from trainwright.recipes.language.sources import document_of
from trainwright.recipes.language.stages import recipe_from


def read_recipe(
    source: str | Path | Mapping[str, Any] | Recipe, recipe_args: Mapping[str, Any] | str | None = None
) -> Recipe:
    """The recipe in a file (YAML, JSON, a Markdown card), in text of several lines, or in a mapping.

    ``recipe_args`` replaces variables of the recipe: a mapping, JSON or ``"name=value,name=value"``.

    >>> recipe = read_recipe('''
    ... epochs: 10
    ... training_modifiers:
    ...   - !EpochRangeModifier {start_epoch: 0.0, end_epoch: eval(epochs)}
    ... pruning_modifiers:
    ...   - !MagnitudePruningModifier
    ...     params: __ALL_PRUNABLE__
    ...     init_sparsity: 0.05
    ...     final_sparsity: 0.9
    ...     start_epoch: 2
    ...     end_epoch: eval(epochs * 0.8)
    ...     update_frequency: 0.5
    ... ''', recipe_args="epochs=20")
    >>> recipe.max_epochs, recipe.modifiers[1].arguments["end_epoch"]
    (20.0, 16.0)
    """
    given = read_recipe_args(recipe_args)
    if isinstance(source, Recipe):
        if given:
            raise ConfigError(
                "recipe_args: this recipe was read already, its variables are gone: pass recipe_args to read_recipe."
            )
        return source
    return recipe_from(document_of(source), given)
