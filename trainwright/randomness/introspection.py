"""What objects hold and what functions refer to by name, seen without running any code of theirs."""

from __future__ import annotations

import datetime
import functools
import os
import random
import sys
import threading
import types
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from trainwright.config.origin import library_of
from trainwright.randomness import generators

CONTAINERS = (list, tuple, set, frozenset, deque, dict)
#: Items of one container that are looked at.
_ITEMS = 64
#: Attributes of a torch module that hold its parameters and submodules, which are looked at by their own names.
_OF_MODULE = frozenset(("_parameters", "_buffers", "_modules"))
_LIBRARIES = frozenset(("builtins", "torch", "numpy", "trainwright", "transformers", "datasets"))
#: Run when an object is made, shown or copied, and not when it is used.
_ASIDE = frozenset(("__init__", "__new__", "__del__", "__repr__", "__str__", "__getstate__", "__setstate__"))

#: By module, names whose answers come from the operating system.
_SYSTEMS = {
    "os": {"urandom", "getrandom"},
    "random": {"SystemRandom"},
    "secrets": {"SystemRandom", "choice", "randbelow", "randbits", "token_bytes", "token_hex", "token_urlsafe"},
}
_CLOCKS = {
    "time": {"time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns"},
    "datetime": {"now", "utcnow", "today"},
}


def is_a(value: Any, kinds: Any) -> bool:
    """Return True as ``isinstance`` does, which would run code of a proxy's."""
    return issubclass(type(value), kinds)


def is_module(value: object) -> bool:
    """Return True for torch modules."""
    return callable(getattr(type(value), "named_modules", None))


def draws(value: object) -> bool:
    """Return True for random generators of any known library."""
    return is_a(value, random.Random) or generators.kind_of(value) is not None


def items(container: Any) -> Iterator[tuple[str, Any]]:
    """List the first items of a container, each with the way to it."""
    pairs = container.items() if is_a(container, dict) else enumerate(container)
    for place, (key, part) in enumerate(pairs):
        if place == _ITEMS:
            return
        yield f"[{key!r}]", part


def attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """List what is in an object's ``__dict__`` and slots, by name."""
    # That of a thread's own values is another one in each thread.
    reader = threading.local if is_a(value, threading.local) else object
    try:
        held = reader.__getattribute__(value, "__dict__")
    except AttributeError:
        held = {}
    passed_by = _OF_MODULE if is_module(value) else ()
    for name, part in list(held.items()) if isinstance(held, dict) else ():
        if name not in passed_by:
            yield str(name), part
    for name, slot in slots(type(value)):
        try:
            yield name, slot.__get__(value)
        except AttributeError:
            continue


@functools.lru_cache(maxsize=1024)
def slots(kind: type) -> tuple[tuple[str, Any], ...]:
    """List the slots of a class and its bases."""
    return tuple(
        (name, slot)
        for one in kind.__mro__
        for name, slot in vars(one).items()
        if isinstance(slot, types.MemberDescriptorType)
    )


@functools.lru_cache(maxsize=1024)
def is_users(module: str | None) -> bool:
    """Return True for modules that are no library's: what their functions call is worth a look, too."""
    root = (module or "builtins").split(".")[0]
    if root in _LIBRARIES or root in sys.stdlib_module_names:
        return False
    file = str(getattr(sys.modules.get(module or root), "__file__", None) or "")
    return not {"site-packages", "dist-packages"} & set(file.split(os.sep))


def named_by(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """List generators that ``function`` names in its module, and what of the user's there may lead to others."""
    names = _names(function.__code__)
    follows = is_users(function.__module__)
    for name in names:
        value = function.__globals__.get(name)
        if draws(value) or (follows and is_a(value, (type, types.FunctionType)) and is_users(value.__module__)):
            yield f".{name}", value
        elif follows:
            yield from ((f".{name}{way}", part) for way, part in _beside(value, names) if draws(part))


def _beside(value: Any, names: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """List what lies one step behind a name of a module: it may be a cache, a namespace or another module."""
    if is_a(value, CONTAINERS):
        yield from items(value)
    elif is_a(value, types.ModuleType):
        if is_users(value.__name__):
            yield from ((f".{name}", vars(value)[name]) for name in names if name in vars(value))
    elif is_a(value, (threading.local, types.SimpleNamespace)) or (
        is_users(type(value).__module__) and not is_module(value)
    ):
        yield from ((f".{name}", part) for name, part in attributes(value))


def held_by_class(kind: type) -> Iterator[tuple[str, Any]]:
    """List generators that a user's class has as attributes, and what its methods name in their module."""
    for one in kind.__mro__:
        if library_of(one) in _LIBRARIES:
            continue
        for name, value in list(vars(one).items()):
            value = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
            if draws(value):
                yield f".{name}", value
            if isinstance(value, types.FunctionType):
                is_aside = name in _ASIDE
                yield from (found for found in named_by(value) if not is_aside or draws(found[1]))


def methods(kind: type) -> Iterator[tuple[str, types.FunctionType]]:
    """List what a user's class does when it is used."""
    for one in kind.__mro__:
        for name, value in list(vars(one).items()) if is_users(one.__module__) else ():
            value = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
            if isinstance(value, types.FunctionType) and name not in _ASIDE:
                yield name, value


def asks_the_system(function: types.FunctionType) -> str | None:
    """Return what ``function`` names that takes numbers from the operating system, such as ``os.urandom``."""
    return _named_of(function, _SYSTEMS)


def asks_the_clock(function: types.FunctionType) -> bool:
    """Return True when ``function`` names a clock; it may only measure with it."""
    return _named_of(function, _CLOCKS) is not None


def _named_of(function: types.FunctionType, wanted: dict[str, set[str]]) -> str | None:
    if not is_users(function.__module__):
        return None
    names = _names(function.__code__)
    for name in names:
        value: Any = function.__globals__.get(name)
        if is_a(value, types.ModuleType):
            module = next((module for module in wanted if value is sys.modules.get(module)), None)
            if module is not None and (found := names.keys() & wanted[module]):
                return f"{module}.{min(found)}"
        # from os import urandom
        for module, known in wanted.items():
            if value is not None and any(value is getattr(sys.modules.get(module), one, None) for one in known):
                return f"{module}.{name}"
            is_clock = value is datetime.datetime or value is datetime.date
            if module == "datetime" and is_clock and names.keys() & known:
                return f"{module}.{name}"
    return None


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> dict[str, None]:
    """Return the names that a function and those inside it refer to, in order."""
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return dict.fromkeys([*code.co_names, *(name for names in inner for name in names)])
