"""``section.key=value`` from a command line, put over what a file says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trainwright.config.errors import ConfigError
from trainwright.config.registry import suggestion
from trainwright.config.yaml12 import DEEPEST, Place, read_yaml

COMMAND_LINE = "command line"
#: Options of commands, which look like overrides when they are misspelled.
_OPTIONS = ("--force", "--fresh", "--import", "--json", "--trust")
#: Sections that may be written as one word, and the key that it then stands for.
SHORT_FORMS = {"model": "name", "data": "train", "adapter": "kind"}
#: A key inside a section for which the same holds, where an override gives it another key.
_SHORT_INSIDE: dict[Place, str] = {("model", "loss"): "name"}


def parse_overrides(words: Iterable[str]) -> list[tuple[Place, Any]]:
    """``a.b=c``, ``--a.b=c`` and ``--a.b c`` as (place, value); values are read as YAML.

    >>> parse_overrides(["training.learning_rate=1e-4", "--data.train", "my data.csv", "--model.options={layers: 2}"])
    [(('training', 'learning_rate'), 0.0001), (('data', 'train'), 'my data.csv'), (('model', 'options'), {'layers': 2})]
    """
    found: list[tuple[Place, Any]] = []
    waiting = iter(words)
    for word in waiting:
        if not word.isprintable() and _is_no_text(word):
            raise ConfigError(f"{COMMAND_LINE}: {word!r} is not text in UTF-8.")
        name, equals, text = word.removeprefix("--").partition("=")
        if not equals:
            following = next(waiting, None) if word.startswith("--") else None
            if following is None:
                near = suggestion(word, _OPTIONS) if word.startswith("--") else ""
                raise ConfigError(f"{COMMAND_LINE}: {word!r}{near}: write section.key=value, or --section.key value.")
            text = following
        place = tuple(name.split("."))
        if not all(place):
            raise ConfigError(f"{COMMAND_LINE}: {word!r}: write section.key=value.")
        if len(place) > DEEPEST:
            raise ConfigError(f"{COMMAND_LINE}: {word!r}: more than {DEEPEST} levels inside each other.")
        found.append((place, read_override(text)))
    return found


def _is_no_text(word: str) -> bool:
    """Return True for bytes that the command line could not decode."""
    return any("\ud800" <= character <= "\udfff" for character in word)


def read_override(text: str) -> Any:
    """One value of a command line: a YAML value, and otherwise the text itself (``C:/a: b``, ``*.csv``)."""
    try:
        value = read_yaml(text, COMMAND_LINE).data
    except ConfigError:
        return text
    # Only brackets make a mapping or list here.
    return text if isinstance(value, (dict, list)) and text.lstrip()[:1] not in ("{", "[") else value


def put_value(data: dict[str, Any], place: Place, value: object) -> Place:
    """Set a value; returns where, which for a short form is one level deeper."""
    if len(place) == 1 and place[0] in SHORT_FORMS and isinstance(value, str):
        place = (*place, SHORT_FORMS[str(place[0])])
    within: Any = data
    for depth, key in enumerate(place[:-1]):
        if within.get(key) is None:
            within[key] = {}
        elif isinstance(within[key], list) and all(isinstance(item, str) for item in within[key]):
            # A list of names is a mapping of names to no options.
            within[key] = dict.fromkeys(within[key])
        elif isinstance(within[key], str) and place[: depth + 1] in _SHORT_INSIDE:
            within[key] = {_SHORT_INSIDE[place[: depth + 1]]: within[key]}
        within = within[key]
        if not isinstance(within, dict):
            shown = ".".join(map(str, place[: depth + 1]))
            raise ConfigError(f"{COMMAND_LINE}: {shown} is {within!r}, which has no keys of its own.")
    within[place[-1]] = value
    return place
