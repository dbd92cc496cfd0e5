"""``__metadata__``: what a recipe was used with, written beside it so that a run can be repeated."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from trainwright.config.errors import ConfigError
from trainwright.config.registry import suggestion
from trainwright.config.secrets import is_secret_name, redacted_values
from trainwright.config.warnings import warn
from trainwright.recipes.language.plain import plain
from trainwright.recipes.language.records import METADATA, Recipe
from trainwright.version import __version__

FRAMEWORK = "framework_metadata"


def metadata_from(names: Sequence[str], *sources: object) -> dict[str, Any]:
    """Arguments of a run by name, from mappings, dataclasses or other objects, and the versions it runs with.

    What no source has is None, with a warning. Secrets are refused.

    >>> found = metadata_from(["seed", "split"], {"seed": 3}, {"split": "train"})
    >>> found["seed"], found["split"], list(found["framework_metadata"])
    (3, 'train', ['python_version', 'trainwright_version', 'torch_version'])
    """
    if isinstance(names, str):
        raise ConfigError(f"metadata_args is {names!r}: pass a list of names.")
    found: dict[str, Any] = {}
    for name in names:
        if is_secret_name(name):
            raise ConfigError(f"metadata_args: {name} looks like a secret, and a recipe is not the place for one.")
        holders = [source for source in sources if name in _names(source)]
        if not holders:
            known = [known for source in sources for known in _names(source)]
            warn(f"metadata_args: there is no argument {name!r}{suggestion(name, known)}; it is written as null.")
        values = [_value(source, name) for source in holders]
        if any(value != values[0] for value in values[1:]):
            raise ConfigError(
                f"metadata_args: {name} is there more than once, as {' and as '.join(map(repr, values))}: rename one."
            )
        found[name] = values[0] if values else None
    return redacted_values({**found, FRAMEWORK: _versions()})


def with_metadata(recipe: Recipe, metadata: Mapping[str, Any]) -> Recipe:
    """``recipe`` with ``metadata`` in place of what it had; in a recipe of stages, every stage has it.

    >>> from trainwright.recipes.language.reading import read_recipe
    >>> recipe = read_recipe({"modifiers": [{"EpochRangeModifier": {"start_epoch": 0, "end_epoch": 3}}]})
    >>> with_metadata(recipe, {"seed": 3}).metadata
    {'seed': 3}
    """
    for holder in [recipe, *recipe.stages]:
        if holder.metadata and _own(holder.metadata) != _own(metadata):
            which = getattr(holder, "name", None)
            warn(
                f"{recipe.source}: {METADATA}{f' of stage {which}' if which else ''} is overwritten: it was "
                f"{_own(holder.metadata)}, and is {_own(metadata)} now."
            )
    if not recipe.is_staged:
        return replace(recipe, metadata=dict(metadata))
    return replace(recipe, stages=tuple(replace(stage, metadata=dict(metadata)) for stage in recipe.stages))


def _own(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Without the versions, which are other ones on every machine."""
    return {name: value for name, value in metadata.items() if name != FRAMEWORK}


def _names(source: object) -> list[str]:
    if isinstance(source, Mapping):
        return [str(name) for name in source]
    if is_dataclass(source):
        return [field.name for field in fields(source)]
    return [name for name in getattr(source, "__dict__", {}) if not name.startswith("_")]


def _value(source: object, name: str) -> Any:
    value = source[name] if isinstance(source, Mapping) else getattr(source, name)
    try:
        return plain(value, "metadata_args")
    except ConfigError:
        # It is there to be read by people.
        return str(value)


def _versions() -> dict[str, str | None]:
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = None
    return {"python_version": platform.python_version(), "trainwright_version": __version__, "torch_version": torch}
