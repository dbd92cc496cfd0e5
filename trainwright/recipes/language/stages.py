"""From a document to stages: which keys are variables, which are groups of modifiers, which are stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from trainwright.config.errors import ConfigError
from trainwright.config.registry import suggestion
from trainwright.config.yaml12 import Document, Place, Tagged
from trainwright.recipes.language.expressions import inside, is_expression, names_in
from trainwright.recipes.language.plain import scalars_in
from trainwright.recipes.language.records import METADATA, ModifierSpec, Recipe, RunType, Stage
from trainwright.recipes.language.spelling import known_words
from trainwright.recipes.language.variables import Scope

#: How SparseML writes that there is none.
_NONE = "None"


@dataclass
class _Part:
    """The root of a recipe or one stage, its keys sorted by what they are."""

    place: Place
    variables: dict[str, Any]
    groups: dict[str, Any]
    stages: dict[str, _Part]
    version: Any = None
    run_type: Any = None
    metadata: Any = None


def recipe_from(document: Document, recipe_args: Mapping[str, Any]) -> Recipe:
    """The recipe that ``document`` holds, with ``recipe_args`` in place of its own variables."""
    data = document.data
    if isinstance(data, (list, Tagged)):
        # Modifiers and nothing else.
        data = {"modifiers": data if isinstance(data, list) else [data]}
    if not isinstance(data, dict):
        raise ConfigError(
            f"{document.source} holds no recipe: a recipe is a mapping with a key like training_modifiers."
        )
    root = _part(document, data, (), is_root=True)
    if not root.groups and not root.stages:
        raise ConfigError(
            f"{document.source} has no modifiers: they are listed under keys with 'modifiers' in their names, such as "
            "pruning_modifiers, which may stand in stages."
        )
    if root.groups and root.stages:
        group, stage = next(iter(root.groups)), next(iter(root.stages))
        raise ConfigError(
            f"{document.where((group,))}: {group} stands beside the stage {stage}: put it into a stage too."
        )
    _override(root, recipe_args, document)
    return _evaluated(document, root)


def _part(document: Document, data: dict[str, Any], place: Place, *, is_root: bool) -> _Part:
    part = _Part(place, {}, {}, {})
    for key, value in data.items():
        if not isinstance(key, str):
            raise ConfigError(f"{document.where(place)}: the key {key!r} is not text.")
        here = (*place, key)
        if "modifiers" in key:
            part.groups[key] = value
        elif key == "version" and is_root:
            part.version = value
        elif key == METADATA:
            part.metadata = value
        elif key == "run_type":
            part.run_type = value
        elif key == "args" and isinstance(value, dict) and not _holds_modifiers(value):
            part.variables.update(value)
        elif is_root and key == "stages" and isinstance(value, dict) and not _holds_modifiers(value):
            for name, stage in value.items():
                part.stages[name] = _stage(document, stage, (*here, name))
        elif isinstance(value, dict) and is_root and _holds_modifiers(value):
            part.stages[key] = _stage(document, value, here)
        elif isinstance(value, dict) and _looks_like_modifiers(key, value):
            stage = ", nor a stage: no key in it has 'modifiers' in its name" if is_root else ""
            raise ConfigError(
                f"{document.where(here)}: {key} is neither a variable nor a group of modifiers{_similar(key)}{stage}."
            )
        else:
            part.variables[key] = value
    return part


def _stage(document: Document, value: object, place: Place) -> _Part:
    if not isinstance(value, dict) or not _holds_modifiers(value):
        raise ConfigError(f"{document.where(place)}: the stage {place[-1]} has no modifiers.")
    return _part(document, value, place, is_root=False)


def _holds_modifiers(value: dict[str, Any]) -> bool:
    return any(isinstance(key, str) and "modifiers" in key for key in value)


def _looks_like_modifiers(key: str, value: object) -> bool:
    """Whether a mapping is no variable (``sparsities: {0.8: [a], 0.9: [b]}``) but was meant as something else."""
    if "modif" in key.lower() or key.endswith(("_stage", "Modifier")) or isinstance(value, Tagged):
        return True
    inner: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return any(_looks_like_modifiers(str(name), item) for name, item in inner)


def _similar(key: str) -> str:
    return suggestion(key, ["training_modifiers", "pruning_modifiers", "quantization_modifiers", "modifiers"])


def _override(root: _Part, recipe_args: Mapping[str, Any], document: Document) -> None:
    """Other values for variables, wherever they are: at the root and in every stage."""
    parts = [root, *root.stages.values()]
    needed = _needed(parts) if recipe_args else []
    names = list(dict.fromkeys([*(name for part in parts for name in part.variables), *needed]))
    for name, value in recipe_args.items():
        holders = [part for part in parts if name in part.variables]
        if not holders and name in needed:
            # It is used, and has no value of its own.
            holders = [root]
        if not holders:
            hint = suggestion(name, names) or (f"; it has {', '.join(names)}" if names else "")
            raise ConfigError(f"recipe_args: {document.source} has no variable {name!r}{hint}.")
        for part in holders:
            part.variables[name] = value


def _needed(parts: list[_Part]) -> list[str]:
    """Names that the expressions of a recipe ask for."""
    found: list[str] = []
    for text in scalars_in([[part.variables, part.groups] for part in parts]):
        if isinstance(text, Tagged):
            found += _needed([_Part((), text.value, {}, {})])
        elif isinstance(text, str) and is_expression(text):
            with suppress(ConfigError):  # it is told where it is evaluated
                found += names_in(inside(text, ""))
    return found


def _evaluated(document: Document, root: _Part) -> Recipe:
    scope = _scope(document, root, None)
    # All of them, also those that nothing uses: a mistake is a mistake.
    variables = scope.own
    version = None if root.version is None else str(root.version)
    metadata = _metadata(document, root)
    if not root.stages:
        stage = Stage(None, _modifiers(document, root, scope), _run_type(document, root, ""))
        return Recipe((stage,), version, metadata, document.source, variables)
    stages = []
    for name, part in root.stages.items():
        inner = _scope(document, part, scope)
        own = _metadata(document, part)
        if metadata is not None and own is not None:
            raise ConfigError(f"{document.where((*part.place, METADATA))}: {METADATA} is there for all stages already.")
        modifiers = _modifiers(document, part, inner)
        run_type = _run_type(document, part, name)
        stages.append(Stage(name, modifiers, run_type, metadata if own is None else own, inner.own))
    return Recipe(tuple(stages), version, None, document.source, variables)


def _scope(document: Document, part: _Part, outer: Scope | None) -> Scope:
    for name, value in part.variables.items():
        _refuse_tags(document, value, (*part.place, name))
    return Scope(part.variables, outer, lambda name: document.where((*part.place, name)))


def _metadata(document: Document, part: _Part) -> dict[str, Any] | None:
    if part.metadata is None or part.metadata == _NONE:
        return None
    if not isinstance(part.metadata, dict):
        raise ConfigError(f"{document.where((*part.place, METADATA))}: {METADATA} is a mapping.")
    _refuse_tags(document, part.metadata, (*part.place, METADATA))
    return {key: None if value == _NONE else value for key, value in part.metadata.items()}


def _run_type(document: Document, part: _Part, name: str) -> RunType | None:
    """As written; in the newer style a stage may say it by its name."""
    if part.run_type is None:
        is_newer = any(isinstance(group, dict) for group in part.groups.values())
        if is_newer and name:
            return "oneshot" if "oneshot" in name else "train" if "train" in name else None
        return None
    if part.run_type not in ("train", "oneshot"):
        where = document.where((*part.place, "run_type"))
        raise ConfigError(f"{where}: run_type is {part.run_type!r}: write train or oneshot.")
    return part.run_type


def _modifiers(document: Document, part: _Part, scope: Scope) -> tuple[ModifierSpec, ...]:
    return tuple(
        spec
        for group, listed in part.groups.items()
        for spec in _group(document, group, listed, (*part.place, group), scope)
    )


def _group(document: Document, group: str, listed: object, place: Place, scope: Scope) -> Iterator[ModifierSpec]:
    if listed is None:
        return
    if isinstance(listed, dict):
        # The newer style: names and arguments.
        for kind, arguments in listed.items():
            yield _modifier(document, group, kind, arguments, (*place, kind), scope)
        return
    if not isinstance(listed, list):
        raise ConfigError(f"{document.where(place)}: {group} is a list of modifiers.")
    for index, item in enumerate(listed):
        here = (*place, index)
        if isinstance(item, Tagged):
            where = document.where(here)
            _refuse_tags(document, item.value, here)
            yield ModifierSpec(item.name, _resolved(document, item.value, here, scope), group, where)
        elif isinstance(item, dict) and len(item) == 1:
            kind, arguments = next(iter(item.items()))
            yield _modifier(document, group, kind, arguments, (*here, kind), scope)
        else:
            raise ConfigError(
                f"{document.where(here)}: {group} has something that is no modifier: write - !NameModifier and its "
                "arguments under it."
            )


def _modifier(
    document: Document, group: str, kind: object, arguments: object, place: Place, scope: Scope
) -> ModifierSpec:
    where = document.where(place)
    if not isinstance(kind, str) or not isinstance(arguments, (dict, type(None))):
        raise ConfigError(f"{where}: {kind} in {group} has no arguments: write name: value under it.")
    _refuse_tags(document, arguments, place)
    resolved = _resolved(document, arguments or {}, place, scope)
    if kind.startswith("!"):
        return ModifierSpec(kind[1:], resolved, group, where)
    kind, resolved = known_words(kind, resolved, where)
    return ModifierSpec(kind, resolved, group, where)


def _resolved(document: Document, arguments: dict[str, Any], place: Place, scope: Scope) -> dict[str, Any]:
    return {name: scope.resolved(value, document.where((*place, name))) for name, value in arguments.items()}


def _refuse_tags(document: Document, value: object, place: Place) -> None:
    if isinstance(value, Tagged):
        raise ConfigError(
            f"{document.where(place)}: !{value.name} stands where no modifier can be: list it under a key with "
            "'modifiers' in its name."
        )
    inner: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        _refuse_tags(document, item, (*place, key))
