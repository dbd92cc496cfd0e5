"""Values a recipe may hold: what YAML can write, every number finite, of bounded size."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any

from trainwright.config.errors import ConfigError
from trainwright.config.yaml12 import DEEPEST, MOST_VALUES

#: Arguments that map numbers to something: ``final_sparsity: {0.8: [...], 0.9: [...]}``.
KEYED_BY_NUMBER = frozenset({"final_sparsity", "num_grads"})

_NUMBER = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")


class Allowance:
    """How much a recipe may still unfold to; variables that stand for variables could grow without end."""

    def __init__(self, values: int = MOST_VALUES) -> None:
        self.left = values

    def spend(self, value: object, where: str) -> None:
        """Count one value; long text counts as many."""
        self.left -= 1 + (len(value) // 64 if isinstance(value, str) else 0)
        if self.left < 0:
            raise ConfigError(f"{where}: the recipe unfolds to more than {MOST_VALUES} values.")


def plain(value: object, where: str, allowance: Allowance | None = None, depth: int = 0) -> Any:
    """A copy of ``value`` made of dicts, lists, text, finite numbers, bools and None; anything else is an error.

    >>> plain({"a": (1, 2.5), 3: None}, "here")
    {'a': [1, 2.5], '3': None}
    """
    allowance = allowance or Allowance()
    allowance.spend(value, where)
    if depth > DEEPEST:
        raise ConfigError(f"{where}: more than {DEEPEST} levels inside each other.")
    if isinstance(value, Mapping):
        return {plain_key(key, where): plain(item, where, allowance, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, where, allowance, depth + 1) for item in value]
    return plain_scalar(value, where)


def plain_scalar(value: Any, where: str) -> Any:
    """One value that holds no others."""
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, str):
        if not value.isascii() and _HALF_CHARACTER.search(value):
            raise ConfigError(f"{where}: {value!r} holds half a character, which no file can hold.")
        return str(value)
    # numpy's and torch's numbers
    if not isinstance(value, (int, float)) and callable(getattr(value, "item", None)) and not getattr(value, "ndim", 0):
        value = value.item()
    if isinstance(value, (int, float)):
        if not math.isfinite(value):
            raise ConfigError(f"{where}: {value} is not a number to train with: write a finite one.")
        return float(value) if isinstance(value, float) else int(value)
    raise ConfigError(
        f"{where}: {value!r} is a {type(value).__name__}: a recipe holds text, numbers, lists and mappings."
    )


def plain_key(key: object, where: str) -> str:
    """Keys are text; ``{0: ...}`` means a layer called "0"."""
    if isinstance(key, bool) or not isinstance(key, (str, int, float)):
        raise ConfigError(f"{where}: {key!r} cannot be a key: write text.")
    return str(plain_scalar(key, where))


def numbered(arguments: dict[str, Any], where: str) -> dict[str, Any]:
    """Keys that are numbers where numbers are meant: a YAML key is text until somebody knows better."""
    for name in KEYED_BY_NUMBER & arguments.keys():
        given = arguments[name]
        if isinstance(given, dict):
            arguments[name] = {_number(key): item for key, item in given.items()}
            if len(arguments[name]) != len(given):
                raise ConfigError(f"{where}: {name} has a number twice: {', '.join(map(str, given))}.")
    return arguments


def _number(key: str) -> str | float:
    return float(key) if _NUMBER.fullmatch(key) and math.isfinite(float(key)) else key


def scalars_in(value: object) -> Iterator[Any]:
    """Everything in ``value`` that holds nothing else."""
    if isinstance(value, dict):
        for item in value.values():
            yield from scalars_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from scalars_in(item)
    else:
        yield value
