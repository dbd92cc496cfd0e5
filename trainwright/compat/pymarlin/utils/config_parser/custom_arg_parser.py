"""A YAML file, changed from the command line: ``--section.key value``."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

logger = logging.getLogger("trainwright")

_TRUE, _FALSE = ("yes", "true", "t", "y", "1"), ("no", "false", "f", "n", "0")


class WrongArgument(ValueError, SystemExit):
    """A word on the command line that cannot be used; if nobody catches it, the program ends with what it says."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = message


class CustomArgParser:
    """Reads ``--config_path`` (a file, or a folder with one YAML file) and applies what the command line changes.

    A value given on the command line takes the type of the file's value; null takes what the text looks like. Names the
    file does not have are warned of and ignored. ``--params '{"--section.key": 1}'`` is applied last.
    """

    def __init__(
        self, yaml_file_arg_key: str = "config_path", default_yamlfile: str = "config.yaml", log_level: str = "INFO"
    ) -> None:
        self._key = yaml_file_arg_key
        self.parser = argparse.ArgumentParser(allow_abbrev=False)
        self.parser.add_argument(f"--{yaml_file_arg_key}", default=default_yamlfile, help="YAML file, or its folder")
        self.parser.add_argument("--params", default="{}", help="JSON object of changes, applied last")
        self.logger = logging.getLogger("trainwright.pymarlin.config")
        self.logger.setLevel(log_level)

    def parse(self, arguments: Sequence[str] | None = None) -> dict[str, Any]:
        """The file's contents with all changes; ``arguments`` are those of the command line unless given."""
        known, changes = self.parser.parse_known_args(arguments)
        config = self._parse_config(getattr(known, self._key))
        # As in PyMarlin: where the configuration came from is part of it.
        config[self._key] = str(getattr(known, self._key))
        for name, text in _pairs(changes):
            self._change(config, name, text)
        try:
            last = json.loads(known.params)
            last.items()
        except (ValueError, AttributeError) as error:
            raise WrongArgument(
                f"--params must be a JSON object such as '{{\"--trainer.epochs\": 3}}', got {known.params!r} ({error})."
            ) from None
        for name, value in last.items():
            self._change(config, name, value)
        return config

    def _parse_config(self, path: str) -> dict[str, Any]:
        return _read(Path(path))

    def _change(self, config: dict[str, Any], name: str, value: object) -> None:
        *sections, key = name.lstrip("-").split(".")
        place: Any = config
        for section in sections:
            place = place.get(section) if isinstance(place, dict) else None
        if not isinstance(place, dict) or key not in place:
            self.logger.warning("%s is not in the configuration file and is ignored.", name)
            return
        try:
            place[key] = _converted(value, place[key])
        except ValueError as error:
            raise WrongArgument(f"{name}: {error}") from None


def _read(path: Path) -> dict[str, Any]:
    if path.is_dir():
        found = sorted([*path.glob("*.yaml"), *path.glob("*.yml")])
        if len(found) != 1:
            names = ", ".join(file.name for file in found) or "none"
            raise ValueError(f"{path} must hold one YAML file, it has {names}: pass the file itself.")
        path = found[0]
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no configuration file {path}: pass its path with --config_path.") from None
    try:
        config = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {error}.") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path} must hold sections and keys (key: value), not {type(config).__name__}.")
    return _with_numbers(config)


def _pairs(words: Sequence[str]) -> list[tuple[str, Any]]:
    """``--name value``, ``--name=value``, and ``--name`` alone, which is true."""
    pairs: list[tuple[str, Any]] = []
    position = 0
    while position < len(words):
        name = words[position]
        position += 1
        if not name.startswith("--"):
            logger.warning("%r on the command line belongs to no --name and is ignored.", name)
            continue
        name, equals, value = name.partition("=")
        if equals:
            pairs.append((name, value))
        elif position < len(words) and not words[position].startswith("--"):
            pairs.append((name, words[position]))
            position += 1
        else:
            pairs.append((name, True))
    return pairs


def _converted(value: Any, old: Any) -> Any:
    """``value`` as the type of ``old``."""
    if isinstance(old, bool):
        return _truth(value)
    if isinstance(old, list):
        return _list(value, old)
    if isinstance(old, dict):
        if isinstance(value, dict):
            return value
        raise ValueError("this is a section; change the keys in it, as --section.key value.")
    if old is None:
        return _with_numbers(yaml.safe_load(value)) if isinstance(value, str) else value
    if isinstance(value, str) and value.lower() in ("null", "none") and not isinstance(old, str):
        return None
    if value is True:
        raise ValueError(f"needs a value, {type(old).__name__}.")
    try:
        return type(old)(value)
    except (TypeError, ValueError):
        raise ValueError(f"{value!r} is not {_article(old)}, which the file has ({old!r}).") from None


def _truth(value: object) -> bool:
    word = str(value).lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise ValueError(f"{value!r} is neither true nor false.")


def _list(value: object, old: list[Any]) -> list[Any]:
    """JSON or YAML, with or without brackets, or PyMarlin's 1-2-3; each element as the type of the old first one."""
    if isinstance(value, str):
        text = value.strip()
        if text.startswith("["):
            value = yaml.safe_load(text)
        elif "," in text:
            value = [part.strip() for part in text.split(",")]
        else:
            value = [part for part in text.split("-") if part] if _is_dashed(text) else [text]
    elements = value if isinstance(value, (list, tuple)) else [value]
    if not old:
        return [_with_numbers(yaml.safe_load(item)) if isinstance(item, str) else item for item in elements]
    return [_converted(item, old[0]) for item in elements]


def _is_dashed(text: str) -> bool:
    # "-3" and "1e-4" are numbers; "1-2-3" and "a-b" are lists.
    try:
        float(text)
    except ValueError:
        return "-" in text
    return False


def _with_numbers(value: object) -> Any:
    """YAML 1.1 takes 1e-4 for text; people who write it mean a number."""
    if isinstance(value, dict):
        return {key: _with_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_numbers(item) for item in value]
    if isinstance(value, str) and value[:1] in "+-.0123456789" and "e" in value.lower():
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _article(old: object) -> str:
    name = type(old).__name__
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"
