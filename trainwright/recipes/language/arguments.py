"""``recipe_args``: values for a recipe's variables, from Python or from a command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainwright.config.errors import ConfigError
from trainwright.config.yaml12 import read_yaml
from trainwright.recipes.language.plain import plain

_SOURCE = "recipe_args"
_OPENING, _CLOSING = "([{", ")]}"


def read_recipe_args(given: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """A mapping, JSON or ``name=value,name=value`` (also ``name:value``) as a mapping.

    In the short form values are numbers, true, false, null, ``[lists]`` and otherwise text.

    >>> read_recipe_args("num_epochs=3,lr:1e-4,mask=2:4,params=[a, b],end=eval(max(1, num_epochs))")
    {'num_epochs': 3, 'lr': 0.0001, 'mask': '2:4', 'params': ['a', 'b'], 'end': 'eval(max(1, num_epochs))'}
    >>> read_recipe_args('{"num_epochs": 3}'), read_recipe_args({"num_epochs": 3}), read_recipe_args(None)
    ({'num_epochs': 3}, {'num_epochs': 3}, {})
    """
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return plain(given, _SOURCE)
    if not isinstance(given, str):
        raise ConfigError(f"{_SOURCE} is a {type(given).__name__}: pass a dict, JSON or name=value,name=value.")
    if given.lstrip().startswith("{"):
        return plain(read_yaml(given, _SOURCE).data, _SOURCE)
    found: dict[str, Any] = {}
    for part in _parts(given):
        sign = "=" if "=" in part else ":"
        name, between, text = (piece.strip() for piece in part.partition(sign))
        if not between or not name.replace(".", "_").replace("-", "_").isidentifier():
            raise ConfigError(f"{_SOURCE}: {part.strip()!r} is not name=value.")
        if name in found:
            raise ConfigError(f"{_SOURCE}: {name} is there twice.")
        found[name] = plain(_value(text), _SOURCE)
    return found


def _parts(text: str) -> Iterator[str]:
    """The text between commas; commas in brackets or quotes are part of a value."""
    depth, quote, start = 0, "", 0
    for index, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
        elif character == "," and depth <= 0:
            yield text[start:index]
            start = index + 1
    if text[start:].strip():
        yield text[start:]


def _value(text: str) -> Any:
    if text.startswith("eval("):
        return text
    try:
        value = read_yaml(text, _SOURCE).data
    except ConfigError:
        return text
    # Only brackets make a mapping or a list here.
    return text if isinstance(value, (dict, list)) and text[:1] not in ("{", "[") else value
