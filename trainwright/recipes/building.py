"""From what a recipe says to modifiers."""

from __future__ import annotations

import inspect

from trainwright.config.errors import ConfigError
from trainwright.config.registry import find, suggestion
from trainwright.core.modifier import Modifier
from trainwright.recipes.language.records import ModifierSpec, Recipe


def build_modifiers(recipe: Recipe) -> list[Modifier]:
    """The modifiers of ``recipe``, in the order in which they act; what does not fit is an error with its line.

    >>> from trainwright.recipes.language.reading import read_recipe
    >>> recipe = read_recipe({"training_modifiers": [{"EpochRangeModifier": {"start_epoch": 0, "end_epoch": 3}}]})
    >>> [type(modifier).__name__ for modifier in build_modifiers(recipe)]
    ['EpochRangeModifier']
    """
    return in_order([build_modifier(spec) for spec in recipe.modifiers])


def in_order(modifiers: list[Modifier]) -> list[Modifier]:
    """As they act: those that end first, and of the rest those that begin first; later ones build on earlier ones."""
    return sorted(modifiers, key=lambda m: (m.end_epoch if m.end_epoch != -1 else float("inf"), m.start_epoch))


def build_modifier(spec: ModifierSpec) -> Modifier:
    """One modifier."""
    cls = modifier_class(spec.kind)
    parameters = arguments_of(cls)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for name in spec.arguments:
        if name not in parameters and not takes_any:
            raise ConfigError(
                f"{spec.where}: {spec.kind} has no argument {name!r}{suggestion(name, parameters)}; it takes "
                f"{', '.join(parameters)}."
            )
    missing = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty and parameter.kind is parameter.KEYWORD_ONLY
        if name not in spec.arguments
    ]
    if missing:
        raise ConfigError(f"{spec.where}: {spec.kind} needs {', '.join(missing)}.")
    try:
        built = cls(**spec.arguments)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{spec.where}: {spec.kind}: {error}") from error
    built.written_as = spec
    return built


def arguments_of(cls: type[Modifier]) -> dict[str, inspect.Parameter]:
    """The arguments of a modifier by name: first those that must be given.

    A class that inherits its arguments declares only what differs, so their own order is that of the base classes.
    """
    parameters = inspect.signature(cls).parameters
    return dict(sorted(parameters.items(), key=lambda entry: entry[1].default is not inspect.Parameter.empty))


def modifier_class(kind: str) -> type[Modifier]:
    """The class that a recipe calls ``kind``."""
    found = find("modifier", kind, "recipe")
    if not (isinstance(found, type) and issubclass(found, Modifier)):
        raise ConfigError(f"recipe: {kind} is {found!r}, which is no subclass of trainwright.Modifier.")
    return found
