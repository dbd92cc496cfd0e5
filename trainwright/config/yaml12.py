"""YAML as YAML 1.2 reads it, with the line of every value, and with bounds on what a file may unfold to.

PyYAML follows YAML 1.1: ``1e-4`` is text to it, ``2:4`` is 124 and ``no`` is false. Here ``1e-4`` is a number, ``2:4``
and ``no`` are text, and nothing in a file makes an object: a tag that asks for one is an error, unless the reader says
that it expects names like ``!Thing``; these are handed over as :class:`Tagged`, for the reader to judge.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from trainwright.config.errors import ConfigError

#: A path to a value: keys and positions from the root.
Place = tuple[str | int, ...]

LARGEST_FILE = 2_000_000
DEEPEST = 32
MOST_VALUES = 50_000
#: Up to this many characters the reader in Python is quick enough; it says more clearly what is wrong.
_SMALL = 20_000
#: Pipes that were named on purpose: ``trainwright train <(make-an-experiment)``.
_FROM_THE_SHELL = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")

_PREFIX = "tag:yaml.org,2002:"
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_NULL = re.compile(r"~|null|Null|NULL|")
_MERGE = re.compile(r"<<")
_NAME_TAG = re.compile(r"!([A-Za-z_][A-Za-z0-9_]*)")
#: Read as line ends or left out where they are not escaped.
_TO_ESCAPE = re.compile("[\r\x85\u2028\u2029\ufeff]")


@dataclass(frozen=True)
class Tagged:
    """``!name`` and the mapping it stands in front of.

    >>> read_yaml("- !Prune {to: 0.9}", tagged=True).data
    [Tagged(name='Prune', value={'to': 0.9})]
    """

    name: str
    value: dict[str, Any]


@dataclass(frozen=True)
class Document:
    """What a file says, and on which line it says it.

    >>> document = read_yaml("a: 1e-4\\nb:\\n  c: 2:4\\n  d: [no, 0x10]", "x.yaml")
    >>> document.data
    {'a': 0.0001, 'b': {'c': '2:4', 'd': ['no', 16]}}
    >>> document.where(("b", "d"))
    'x.yaml:4'
    """

    data: Any
    source: str
    lines: dict[Place, int] = field(default_factory=dict)

    def where(self, place: Place) -> str:
        """``file:line`` of a value, or of the nearest thing around it that has a line."""
        while place and place not in self.lines:
            place = place[:-1]
        return f"{self.source}:{self.lines[place]}" if place in self.lines else self.source


class _Loader(yaml.SafeLoader):
    """Composes nodes; the tags of plain scalars are YAML 1.2's."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 - filled below, once


for _name, _pattern in (("bool", _BOOL), ("int", _INT), ("float", _FLOAT), ("null", _NULL), ("merge", _MERGE)):
    _Loader.add_implicit_resolver(_PREFIX + _name, re.compile(f"^(?:{_pattern.pattern})$"), None)


#: libyaml's, with which PyYAML is normally built: 50,000 values take 0.4 s and not 3.
_Quick: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _FastLoader(_Quick):
    """The same for large files."""

    yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers


class _Dumper(yaml.SafeDumper):
    """Quotes text that YAML 1.1 or 1.2 would take for something else."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - filled once
        first: [*yaml.SafeDumper.yaml_implicit_resolvers.get(first, []), *_Loader.yaml_implicit_resolvers[None]]
        for first in [*yaml.SafeDumper.yaml_implicit_resolvers, None]
    }


def _represent_text(dumper: Any, text: str) -> Any:
    return dumper.represent_scalar(f"{_PREFIX}str", text, style='"' if _TO_ESCAPE.search(text) else None)


def _represent_tagged(dumper: Any, tagged: Tagged) -> Any:
    return dumper.represent_mapping(f"!{tagged.name}", tagged.value)


_Dumper.add_representer(str, _represent_text)
_Dumper.add_representer(Tagged, _represent_tagged)


def write_yaml(data: object) -> str:
    """``data`` as text that :func:`read_yaml` reads as it was, and other readers of YAML too.

    >>> write_yaml({"a": "1e-4", "b": 1e-4, "c": "no"}).splitlines()
    ["a: '1e-4'", 'b: 0.0001', "c: 'no'"]
    """
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def read_yaml_file(path: str | Path) -> Document:
    """The document in ``path``; JSON is YAML too."""
    return read_yaml(read_text_file(path), str(path))


def read_text_file(path: str | Path) -> str:
    """What is in ``path``, if it has the size and form of a configuration."""
    path = Path(path)
    try:
        if path.exists() and not path.is_file() and not str(path).startswith(_FROM_THE_SHELL):
            raise ConfigError(f"{path} is a folder, a pipe or a device: name a file.")
        with path.open(encoding="utf-8") as file:
            text = file.read(LARGEST_FILE + 1)
        if len(text) > LARGEST_FILE:
            raise ConfigError(f"{path} is larger than {LARGEST_FILE // 1_000_000} MB: this is no configuration.")
        return text
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not text in UTF-8.") from None


def read_yaml(text: str, source: str = "text", *, tagged: bool = False) -> Document:
    """The one document in ``text``; with ``tagged``, mappings may have a name in front of them (``!Name``)."""
    if len(text) > LARGEST_FILE:
        raise ConfigError(f"{source} is larger than {LARGEST_FILE // 1_000_000} MB: this is no configuration.")
    try:
        node = _composed(text, source)
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f":{error.problem_mark.line + 1}"
        hint = ": indent with spaces" if "'\\t'" in str(error.problem) else ""
        if "expected <block end>" in str(error.problem):
            hint = ": it is not indented like the lines that it belongs to"
        raise ConfigError(f"{source}{line}: {error.problem or error}{hint}.") from None
    except (yaml.YAMLError, UnicodeEncodeError) as error:
        raise ConfigError(f"{source}: {str(error).splitlines()[0]}.") from None
    reader = _Reader(source, tagged)
    data = None if node is None else reader.value(node, ())
    return Document(data, source, reader.lines)


def _composed(text: str, source: str) -> Any:
    loader = _Loader if len(text) <= _SMALL else _FastLoader
    try:
        _refuse_size(text, source, loader)
        return yaml.compose(text, Loader=loader)
    except yaml.scanner.ScannerError as error:
        if loader is _Loader or "Unicode character escape" not in (error.problem or ""):
            raise
    # libyaml knows no characters that JSON writes as two halves.
    _refuse_size(text, source, _Loader)
    return yaml.compose(text, Loader=_Loader)


def _refuse_size(text: str, source: str, loader: Any) -> None:
    """Before anything is built: composing goes down by recursion, and building takes ten times as long as reading."""
    documents = values = 0
    #: Of everything that is open: whether a key comes next; None in a list.
    expects_key: list[bool | None] = []
    for event in yaml.parse(text, Loader=loader):
        documents += isinstance(event, yaml.DocumentStartEvent)
        if isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            expects_key.pop()
        elif isinstance(event, yaml.NodeEvent):
            values += not (expects_key and expects_key[-1])
            if expects_key and expects_key[-1] is not None:
                expects_key[-1] = not expects_key[-1]
            if isinstance(event, yaml.CollectionStartEvent):
                expects_key.append(True if isinstance(event, yaml.MappingStartEvent) else None)
        problem = (
            f"{DEEPEST} levels inside each other" if len(expects_key) > DEEPEST
            else f"{MOST_VALUES:,} values in one file" if values > MOST_VALUES
            else "one document in one file" if documents > 1
            else None
        )  # fmt: skip
        if problem is not None:
            mark: Any = event.start_mark
            raise ConfigError(f"{source}:{mark.line + 1}: more than {problem}.")


def _whole_characters(text: str) -> str:
    """JSON writes a character beyond the first 65,536 as two halves, which belong together."""
    if not any("\ud800" <= character <= "\udfff" for character in text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class _Reader:
    """Nodes to plain values."""

    def __init__(self, source: str, tagged: bool = False) -> None:
        self.source = source
        self._tagged = tagged
        self.lines: dict[Place, int] = {}
        self._count = 0
        self._open: list[Any] = []

    def value(self, node: Any, place: Place) -> Any:
        self._count += 1
        if self._count > MOST_VALUES:
            raise self._error(node, f"aliases unfold to more than {MOST_VALUES:,} values")
        if any(node is other for other in self._open):
            raise self._error(node, "an alias stands inside what it stands for")
        self.lines.setdefault(place, node.start_mark.line + 1)
        name = self._name(node)
        if name is not None and isinstance(node, yaml.ScalarNode):
            return Tagged(name, {})
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        self._open.append(node)
        try:
            if name is not None:
                return Tagged(name, self._mapping(node, place, named=True))
            return self._mapping(node, place) if isinstance(node, yaml.MappingNode) else self._sequence(node, place)
        finally:
            self._open.pop()

    def _name(self, node: Any) -> str | None:
        """The name in front of a mapping, or of nothing, which is an empty mapping."""
        found = _NAME_TAG.fullmatch(node.tag) if self._tagged else None
        is_mapping = isinstance(node, yaml.MappingNode) or (
            isinstance(node, yaml.ScalarNode) and not node.value and not node.style
        )
        return found[1] if found and is_mapping else None

    def _sequence(self, node: Any, place: Place) -> list[Any]:
        self._expect_tag(node, "seq")
        return [self.value(item, (*place, index)) for index, item in enumerate(node.value)]

    def _mapping(self, node: Any, place: Place, *, named: bool = False) -> dict[str, Any]:
        if not named:
            self._expect_tag(node, "map")
        found: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == f"{_PREFIX}merge":
                for mapping in self._merged(value_node, place):
                    merged = {**mapping, **merged}
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._error(key_node, "a key must be one word")
            key = _whole_characters(key_node.value)
            if key in found:
                raise self._error(key_node, f"{key!r} is there twice, first on line {self.lines[(*place, key)]}")
            self.lines[(*place, key)] = key_node.start_mark.line + 1
            found[key] = self.value(value_node, (*place, key))
        return {**merged, **found}

    def _merged(self, node: object, place: Place) -> Iterator[dict[str, Any]]:
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        for item in nodes:
            if not isinstance(item, yaml.MappingNode):
                raise self._error(item, "<< merges mappings only")
            value = self.value(item, place)
            yield value.value if isinstance(value, Tagged) else value

    def _scalar(self, node: Any) -> Any:
        kind, text = node.tag.removeprefix(_PREFIX), node.value
        if kind == "str":
            return _whole_characters(text)
        if kind == "null":
            return None
        if kind == "bool" and _BOOL.fullmatch(text):
            return text.lower() == "true"
        if kind == "int" and _INT.fullmatch(text):
            # A leading zero means nothing in YAML 1.2.
            try:
                return int(text, 0) if text[:2] in ("0x", "0o") else int(text)
            except ValueError:
                raise self._error(node, f"a number of {len(text)} digits is too long") from None
        if kind == "float" and _FLOAT.fullmatch(text):
            return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        raise self._error(
            node, f"{node.tag.replace(_PREFIX, '!!')} {text!r} is not a plain value: write it without a tag"
        )

    def _expect_tag(self, node: Any, kind: str) -> None:
        if node.tag != _PREFIX + kind:
            raise self._error(node, f"the tag {node.tag.replace(_PREFIX, '!!')} is not allowed: plain values only")

    def _error(self, node: Any, problem: str) -> ConfigError:
        return ConfigError(f"{self.source}:{node.start_mark.line + 1}: {problem}.")
