"""Modifiers as text, and from text; classes that somebody wrote are found by the name they were registered with."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from trainwright.config.errors import ConfigError
from trainwright.config.yaml12 import Tagged, read_yaml
from trainwright.recipes.language.reading import read_recipe
from trainwright.recipes.language.records import ModifierSpec
from trainwright.recipes.language.sources import document_of
from trainwright.recipes.language.stages import recipe_from

PYTORCH_FRAMEWORK = "pytorch"

#: (framework, name) -> class: what recipes may name besides what is shipped.
_WRITTEN_BY_USERS: dict[tuple[str, str], type] = {}


def as_text(value: object, *, inside: bool = False) -> str:
    """``value`` as SparseML writes it into a recipe, but so that it is read back as it was.

    >>> [as_text(one) for one in (0.05, True, None, "cubic", "2:4", ["re:.*\\\\.weight", None], {0.8: ["a"]})]
    ['0.05', 'True', 'null', 'cubic', "'2:4'", "['re:.*\\\\.weight', null]", "{0.8: ['a']}"]
    """
    if callable(getattr(value, "as_recipe", None)):
        value = value.as_recipe()  # type: ignore[attr-defined]
    if isinstance(value, Mapping):
        pairs = [f"{as_text(key, inside=True)}: {as_text(item, inside=True)}" for key, item in value.items()]
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(as_text(item, inside=True) for item in value) + "]"
    if value is None:
        return "null"
    if not isinstance(value, str):
        return str(value)
    if not inside and _is_plain(value):
        return value
    return f"'{value.replace(chr(39), chr(39) * 2)}'" if value.isprintable() else json.dumps(value)


def _is_plain(text: str) -> bool:
    """Whether it needs no quotes, for readers of YAML 1.1 too: to them 2:4 is a number."""
    if not re.fullmatch(r"[A-Za-z_/][\w./ -]*", text) or text != text.strip():
        return False
    return text.lower() not in ("null", "true", "false", "yes", "no", "on", "off", "y", "n", "none")


def remember(framework: str, cls: type) -> None:
    """Let recipes name ``cls``."""
    _WRITTEN_BY_USERS[framework, cls.__name__] = cls


def _bare(yaml_str: str, framework: str) -> str:
    """Without the framework in front of names: ``!pytorch.Name``."""
    return re.sub(rf"!{re.escape(framework)}\.(?=\w)", "!", yaml_str)


def load_modifier(yaml_str: str, framework: str = PYTORCH_FRAMEWORK) -> Any:
    """The modifier that ``yaml_str`` describes."""
    text = _bare(yaml_str, framework)
    if only_name := re.fullmatch(r"\s*!(\w+)\s*", text):
        text = f"!{only_name[1]} {{}}"
    data = read_yaml(text, "modifier", tagged=True).data
    if not isinstance(data, Tagged):
        raise ConfigError("This describes no modifier: write !NameModifier, and its arguments below it.")
    return _made(data.name, data.value, framework)


def load_modifiers(yaml_str: str, framework: str = PYTORCH_FRAMEWORK) -> Any:
    """The modifiers of a recipe: a list, or by stage where it has stages."""
    if re.match(r"\s*!\w", yaml_str):
        return [load_modifier(yaml_str, framework)]
    recipe = recipe_from(document_of(_bare(yaml_str, framework)), {}) if "\n" in yaml_str else read_recipe(yaml_str)
    if not recipe.is_staged:
        return [_of(spec, framework) for spec in recipe.modifiers]
    return {str(stage.name): [_of(spec, framework) for spec in stage.modifiers] for stage in recipe.stages}


def _of(spec: ModifierSpec, framework: str) -> Any:
    return _made(spec.kind, spec.arguments, framework)


def _made(name: str, arguments: dict[str, Any], framework: str) -> Any:
    if (framework, name) in _WRITTEN_BY_USERS:
        return _WRITTEN_BY_USERS[framework, name](**arguments)
    # Here, for the shipped classes are written with the bases that this file serves.
    from trainwright.compat.sparseml.classes.catalogue import shipped_from

    return shipped_from(ModifierSpec(name, arguments))
