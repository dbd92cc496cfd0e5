"""Things by name: registered ones, and ``my_file.py:Name``. Nothing else is ever imported by name.

Importing a file runs it. Whoever calls :func:`load_object` says by that that the user allowed it: it stood in a Python
program, or on the command line; never only in a configuration file.
"""

from __future__ import annotations

import difflib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from trainwright.config.errors import ConfigError

_REFERENCE = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_][\w.]*)")

_LONGEST_NAME = 200

_REGISTERED: dict[str, dict[str, Any]] = {}


def register(kind: str, name: str) -> Callable[[Any], Any]:
    """A decorator that makes ``name`` known in experiments and recipes.

    ``kind`` is "model", "dataset", "callback", "tracker" or "modifier".

    >>> @register("model", "my-line")
    ... def build(inputs: int = 1):
    ...     return ("a line with", inputs)
    >>> registered("model")["my-line"] is build
    True
    """

    def add(thing: Any) -> Any:
        _REGISTERED.setdefault(kind, {})[name] = thing
        return thing

    return add


def registered(kind: str) -> dict[str, Any]:
    """Everything of a kind that was registered, by name."""
    return dict(_REGISTERED.get(kind, {}))


def split_reference(text: Any) -> tuple[str, str] | None:
    """``("my_file.py", "Name")`` for ``"my_file.py:Name"``; None for anything else.

    >>> split_reference("nets/my_net.py:Net"), split_reference("bert-base-uncased")
    (('nets/my_net.py', 'Net'), None)
    """
    match = _REFERENCE.fullmatch(text) if isinstance(text, str) else None
    return None if match is None else (match["file"], match["name"])


def load_object(reference: str, what: str = "this") -> Any:
    """What ``my_file.py:Name`` names; the file is run once in a process."""
    parts = split_reference(reference)
    if parts is None:
        raise ConfigError(f"{what}={reference!r}: write my_file.py:Name.")
    found: Any = import_file(parts[0], what)
    for part in parts[1].split("."):
        if not hasattr(found, part):
            names = [name for name in vars(found) if not name.startswith("_")]
            raise ConfigError(f"{what}={reference!r}: {parts[0]} has no {part!r}{suggestion(part, names)}.")
        found = getattr(found, part)
    return found


def import_file(file: str | Path, what: str = "this") -> ModuleType:
    """The module that ``file`` is, with its folder importable as when it is run as a script."""
    path = Path(file).expanduser().resolve()
    if not path.is_file():
        raise ConfigError(f"{what}: there is no file {file}.")
    for module in list(sys.modules.values()):
        # Once a process: a second copy of a class would not be the same class.
        if getattr(module, "__file__", None) == str(path):
            return module
    name = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else f"trainwright_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def suggestion(wrong: str, names: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` where one of ``names`` is near, else nothing.

    >>> suggestion("learning_rat", ["learning_rate", "seed"])
    " (did you mean 'learning_rate'?)"
    """
    if len(str(wrong)) > _LONGEST_NAME:
        # No slip of the pen, and comparing takes a time that grows with the square of its length.
        return ""
    near = difflib.get_close_matches(str(wrong), [str(name) for name in names], n=1, cutoff=0.6)
    return f" (did you mean {near[0]!r}?)" if near else ""
