"""Things by name: ours, registered ones, those of installed packages, and ``my_file.py:Name``.

Nothing else is ever imported by name. Importing a file runs it. Whoever calls :func:`load_object` says by that that the
user allowed it: it stood in a Python program, or on the command line; never only in a configuration file.
"""

from __future__ import annotations

import difflib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from trainwright.config import entry_points
from trainwright.config.errors import ConfigError
from trainwright.config.shipped import SHIPPED
from trainwright.config.warnings import warn

_REFERENCE = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_][\w.]*)")

_NAME = re.compile(r"[A-Za-z0-9][\w.+/-]*")

_LONGEST_NAME = 200

#: Kind -> the group of entry points by which an installed package adds to it.
KINDS = {
    "optimizer": "trainwright.optimizers",
    "scheduler": "trainwright.schedulers",
    "strategy": "trainwright.strategies",
    "tracker": "trainwright.trackers",
    "task": "trainwright.tasks",
    "model": "trainwright.models",
    "dataset": "trainwright.datasets",
    "loss": "trainwright.losses",
    "callback": "trainwright.callbacks",
    "modifier": "trainwright.modifiers",
}

_REGISTERED: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}


def register(kind: str, name: str) -> Callable[[Any], Any]:
    """A decorator that lets arguments, experiments and recipes name what it stands over.

    ``kind`` is "optimizer", "scheduler", "strategy", "tracker", "task", "model", "dataset", "loss", "callback" or
    "modifier"; docs/by-name.md says what each must be. A name that is taken is refused; a definition that is run again
    (a notebook's cell, a reloaded module) replaces itself.

    >>> @register("model", "my-line")
    ... def build(inputs: int = 1):
    ...     return ("a line with", inputs)
    >>> find("model", "my-line", "model.name") is build
    True
    """
    _refuse_unknown_kind(kind)
    _refuse_unreachable(kind, name)
    if name in SHIPPED[kind]:
        raise ConfigError(f"register({kind!r}, {name!r}): trainwright has one of that name: choose another.")

    def add(thing: object) -> Any:
        if not callable(thing) and kind not in ("dataset", "tracker"):
            raise ConfigError(f"register({kind!r}, {name!r}): it must be a class or a function, and is {thing!r}.")
        before = _REGISTERED[kind].get(name, thing)
        if before is not thing and _origin(before) != _origin(thing):
            raise ConfigError(
                f"register({kind!r}, {name!r}): {' '.join(_origin(before))} has that name already: choose another."
            )
        _REGISTERED[kind][name] = thing
        return thing

    return add


def registered(kind: str) -> list[str]:
    """List the names of a kind: ours, then registered ones, then those of installed packages. Imports none of them.

    >>> registered("callback")[:3]
    ['early_stopping', 'ema', 'monitor']
    """
    _refuse_unknown_kind(kind)
    return list(dict.fromkeys((*SHIPPED[kind], *_REGISTERED[kind], *_installed(kind))))


def is_registered(kind: str, name: object, *, installed: bool = True) -> bool:
    """Return True for a name of this kind; entry points are read only where the name is not known without them.

    ``installed=False`` leaves out what packages offer.
    """
    if not isinstance(name, str):
        return False
    return name in SHIPPED[kind] or name in _REGISTERED[kind] or (installed and name in _installed(kind))


def is_shipped(kind: str, name: str) -> bool:
    """Return True for one of ours."""
    return name in SHIPPED[kind]


def check_name(kind: str, name: Any, what: str, also: Iterable[str] = ()) -> None:
    """Refuse a name that is neither registered nor among ``also``; ``what`` is the argument that it was given to.

    >>> check_name("scheduler", "cosin", "lr_scheduler_type")
    Traceback (most recent call last):
    trainwright.config.errors.ConfigError: lr_scheduler_type: there is no scheduler 'cosin' (did you mean 'cosine'?)...
    """
    if not is_registered(kind, name) and name not in also:
        known = [*also, *registered(kind)]
        raise ConfigError(
            f"{what}: there is no {kind} {name!r}{_nearest(name, known)}; choose one of {', '.join(known)}, "
            "or register your own (docs/by-name.md); one that a file registers needs --import on the command line."
        )


def find(kind: str, name: str, what: str) -> Any:
    """What ``name`` stands for, imported now if it has not been; an unknown one is refused as by :func:`check_name`."""
    check_name(kind, name, what)
    if name in _REGISTERED[kind]:
        return _REGISTERED[kind][name]
    if name in SHIPPED[kind]:
        module, _, attribute = SHIPPED[kind][name].partition(":")
        return getattr(importlib.import_module(module), attribute)
    return entry_points.load(KINDS[kind], name, what)


def _refuse_unreachable(kind: str, name: object) -> None:
    """A name that nobody could write where it is looked for."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"register({kind!r}, {name!r}): a name is letters and digits, then also any of . _ + - /")
    means_more = {"tracker": name in ("none", "all"), "strategy": name.endswith(("-amp", "-bf16", "-fp16"))}
    if means_more.get(kind, False) or split_reference(name) is not None:
        raise ConfigError(f"register({kind!r}, {name!r}): that means something else there: choose another name.")


def _refuse_unknown_kind(kind: str) -> None:
    if kind not in KINDS:
        raise ConfigError(f"There is no kind {kind!r}{suggestion(kind, KINDS)}; the kinds are {', '.join(KINDS)}.")


def _installed(kind: str) -> list[str]:
    names = entry_points.offered(KINDS[kind])
    for name in names.keys() & SHIPPED[kind].keys():
        _say_that_ours_stays(kind, name)
    return [name for name in names if name not in SHIPPED[kind]]


@cache
def _say_that_ours_stays(kind: str, name: str) -> None:
    packages = " and ".join(entry_points.package_of(point) for point in entry_points.offered(KINDS[kind])[name])
    warn(f"The {kind} {name!r} of {packages} is never used: trainwright has one of that name, and ours stays.")


def _origin(thing: Any) -> tuple[str, str]:
    """Where something was defined: equal for two runs of one definition, also as a script and as a module."""
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    module = sys.modules.get(named.__module__)
    return str(getattr(module, "__file__", None) or named.__module__), named.__qualname__


def split_reference(text: object) -> tuple[str, str] | None:
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
        entry_points.OPENED.add(str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _nearest(wrong: str, known: list[str]) -> str:
    """As :func:`suggestion`, but who writes adamw, or nearly so, means adamw_torch: beginnings count too."""
    begins = {name.split("_")[0]: name for name in reversed(known)}
    near = difflib.get_close_matches(str(wrong)[:_LONGEST_NAME], [*begins, *known], n=1, cutoff=0.6)
    return f" (did you mean {begins.get(near[0], near[0])!r}?)" if near and len(str(wrong)) <= _LONGEST_NAME else ""


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
