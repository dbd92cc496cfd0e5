"""Functions of ``sparseml.optim`` about recipes as text."""

from __future__ import annotations

import logging
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from trainwright.config.errors import ConfigError
from trainwright.config.yaml12 import Tagged, read_yaml, write_yaml
from trainwright.recipes.language.arguments import read_recipe_args
from trainwright.recipes.language.metadata import FRAMEWORK
from trainwright.recipes.language.plain import plain
from trainwright.recipes.language.records import METADATA
from trainwright.recipes.language.sources import document_of
from trainwright.recipes.language.variables import Scope
from trainwright.version import __version__

logger = logging.getLogger("trainwright")

#: What stands where SparseML's version stood: the text says whose it is.
SPARSEML_VERSION = f"trainwright-{__version__}"


def framework_versions(**more: str) -> dict[str, str]:
    """The versions that a recipe was used with."""
    try:
        torch = {"torch_version": version("torch")}
    except PackageNotFoundError:
        torch = {}
    return {"python_version": platform.python_version(), "sparseml_version": SPARSEML_VERSION, **torch, **more}


def parse_recipe_variables(recipe_variables: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """Values for variables, from a mapping, JSON or ``name=value,name=value``."""
    return read_recipe_args(recipe_variables)


def load_recipe_yaml_str(file_path: Any, **variable_overrides: Any) -> str:
    """The text of a recipe in a file, a Markdown card or text, with other values for variables."""
    text = write_yaml(_tagged(document_of(file_path).data))
    return update_recipe_variables(text, variable_overrides) if variable_overrides else text


def load_recipe_yaml_str_no_classes(recipe_yaml_str: str) -> Any:
    """What a recipe holds, as dicts and lists: ``!Name`` is ``{"Name": {...}}``, or ``"Name"`` without arguments.

    >>> load_recipe_yaml_str_no_classes("modifiers:\\n  - !EpochRangeModifier {end_epoch: 1}\\n")
    {'modifiers': [{'EpochRangeModifier': {'end_epoch': 1}}]}
    """
    return _plain_names(read_yaml(recipe_yaml_str, "recipe", tagged=True).data)


def check_if_staged_recipe(container: Mapping[str, Any]) -> bool:
    """Whether modifiers stand in stages."""
    return any(
        isinstance(part, Mapping) and any("modifiers" in str(key) for key in part) for part in container.values()
    )


def update_recipe_variables(recipe_yaml_str: str, variable_overrides: Mapping[str, Any]) -> str:
    """``recipe_yaml_str`` with other values for variables, at the root and in every stage."""
    data = read_yaml(recipe_yaml_str, "recipe", tagged=True).data
    if not isinstance(data, dict):
        raise ConfigError("This is no recipe with variables: it is a list of modifiers.")
    holders = [data, *(part for part in data.values() if isinstance(part, dict) and _is_stage(part))]
    for name, value in variable_overrides.items():
        holding = [part for part in holders if name in part]
        if not holding:
            raise ConfigError(f"The recipe has no variable {name!r}.")
        for part in holding:
            part[name] = plain(value, name)
    return write_yaml(_tagged(data))


def evaluate_recipe_yaml_str_equations(recipe_yaml_str: str) -> str:
    """``recipe_yaml_str`` with every ``eval(...)`` worked out."""
    data = read_yaml(recipe_yaml_str, "recipe", tagged=True).data
    if not isinstance(data, dict):
        return recipe_yaml_str
    try:
        scope = _scope(data, None)
        worked_out = {
            key: _part(part, _scope(part, scope)) if isinstance(part, dict) and _is_stage(part) else part
            for key, part in data.items()
        }
        worked_out = _part(worked_out, scope)
    except ConfigError as error:
        # As the original has it.
        raise RuntimeError(str(error)) from error
    return write_yaml(_tagged(worked_out))


def validate_metadata(metadata: Mapping[str, Any] | None, yaml_str: str) -> dict[str, Any]:
    """Metadata by stage, or under ``__metadata__``: what is given, or else what the recipe has."""
    data = load_recipe_yaml_str_no_classes(yaml_str)
    stages = [name for name, part in data.items() if isinstance(part, dict) and _is_stage(part)]
    found: dict[str, Any] = {}
    for name in stages or [METADATA]:
        before = data[name].get(METADATA) if stages else data.get(METADATA)
        given = metadata[name] if stages and metadata is not None and set(metadata) == set(stages) else metadata
        if before is not None and given is not None and dict(given) != before:
            logger.warning("%s: the metadata of the recipe is overwritten.", name)
        found[name] = before if given is None else dict(given)
    return found


def add_framework_metadata(metadata: Mapping[str, Any], **kwargs: str) -> dict[str, Any]:
    """Metadata with the versions of Python and of this library, and whatever else is given."""
    versions = {name: value for name, value in framework_versions().items() if name != "torch_version"} | kwargs
    found: dict[str, Any] = {}
    for name, own in metadata.items():
        if own is not None and own.get(FRAMEWORK, versions) != versions:
            logger.warning("%s: the versions in the metadata are overwritten.", name)
        found[name] = {**(own or {}), FRAMEWORK: versions}
    return found


def _is_stage(part: Mapping[str, Any]) -> bool:
    return any("modifiers" in str(key) for key in part)


def _scope(part: Mapping[str, Any], outer: Scope | None) -> Scope:
    own = {
        name: value
        for name, value in part.items()
        if "modifiers" not in name and name != METADATA and not (isinstance(value, dict) and _is_stage(value))
    }
    return Scope(own, outer)


def _part(part: Mapping[str, Any], scope: Scope) -> dict[str, Any]:
    """The root of a recipe or a stage: variables are those of the part itself."""
    own = scope.own
    return {name: own[name] if name in own else _worked_out(value, scope) for name, value in part.items()}


def _worked_out(value: object, scope: Scope) -> Any:
    if isinstance(value, Tagged):
        return Tagged(value.name, _worked_out(value.value, scope))
    if isinstance(value, dict):
        return {key: _worked_out(item, scope) for key, item in value.items()}
    if isinstance(value, list):
        return [_worked_out(item, scope) for item in value]
    return scope.resolved(value, "recipe")


def _plain_names(value: object) -> Any:
    if isinstance(value, Tagged):
        return {value.name: _plain_names(value.value)}
    if isinstance(value, dict):
        return {key: _plain_names(item) for key, item in value.items()}
    return [_plain_names(item) for item in value] if isinstance(value, list) else value


def _tagged(value: object) -> Any:
    """A copy without parts that are one and the same: these would be written as references to each other."""
    if isinstance(value, Tagged):
        return Tagged(value.name, _tagged(value.value))
    if isinstance(value, dict):
        return {key: _tagged(item) for key, item in value.items()}
    return [_tagged(item) for item in value] if isinstance(value, list) else value
