"""Random generators that users' objects keep for themselves: where they are, and their states together.

Looked for in attributes (``__dict__`` and slots, so no property runs), plain containers, what functions close over or
name in their module, and in classes; not deeper and not more than a look before a training may cost.
"""

from __future__ import annotations

import functools
import random
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from trainwright.config.origin import library_of
from trainwright.randomness import generators
from trainwright.randomness.introspection import (
    CONTAINERS,
    asks_the_clock,
    asks_the_system,
    attributes,
    held_by_class,
    is_a,
    is_module,
    is_users,
    items,
    methods,
    named_by,
    slots,
)

#: Attributes and items on the way to a generator, and things looked at.
_DEEPEST, _MOST = 8, 50_000
#: Libraries whose objects neither draw numbers nor lead to any.
_PASSED_BY = {"logging", "threading", "_thread", "multiprocessing", "concurrent", "asyncio", "subprocess", "socket"}
_PASSED_BY |= {"queue", "pathlib", "re", "io", "_io", "enum", "datetime", "typing", "ctypes", "weakref", "_weakref"}
_PASSED_BY |= {"abc", "inspect", "tokenizers", "pyarrow"}
_BOUND = (types.BuiltinMethodType, types.MethodWrapperType)
_CALLED = (types.FunctionType, types.MethodType, *_BOUND, functools.partial)
_PLAIN = (type(None), bool, int, float, complex, str, bytes, bytearray, range, slice, types.ModuleType)

_PYTHONS, _NUMPYS = random._inst, np.random.mtrand._rand  # type: ignore[attr-defined]

States = dict[str, Any]


class Findings(NamedTuple):
    """The findings of a look, by path."""

    generators: dict[str, Any]
    #: What draws or moves on and cannot be read, with the reason.
    unknown: dict[str, str]
    #: Code that names a clock, by which it may draw or measure.
    clocks: list[str]


def look(
    roots: Mapping[str, Any], *, iterators: bool = True, calls: bool = False, passed_by: Iterable[Any] = ()
) -> Findings:
    """The generators that can be reached from ``roots``, each once, under the first path that leads to it.

    ``iterators``: what is in the midst of an iteration is unknown too. ``calls``: and so is code of the user's that
    asks the operating system. Nothing in ``passed_by`` is looked at.

    >>> found = look({"sampler": types.SimpleNamespace(tools=[random.Random(1)], secret=random.SystemRandom())})
    >>> list(found.generators), list(found.unknown)
    (['sampler.tools[0]'], ['sampler.secret'])
    """
    search = _Search(iterators, calls, passed_by)
    for name, root in roots.items():
        search.visit(root, name, 0)
    return search.findings


class OwnGenerators:
    """The generators of some objects of the user's, read and put back together.

    Args:
        roots: The objects, by the name that messages call them; asked again at every look.
        options: What ``look`` takes.
    """

    def __init__(self, roots: Callable[[], Mapping[str, Any]] | None = None, **options: Any) -> None:
        self.found: dict[str, Any] = {}
        self.unknown: dict[str, str] = {}
        #: Paths of those that came after the look before the training.
        self.late: list[str] = []
        self.watch(roots, **options)

    def watch(self, roots: Callable[[], Mapping[str, Any]] | None, **options: Any) -> None:
        """Look at other objects from now on."""
        self._roots, self._options = roots, options
        self.look_again()

    def look_again(self) -> None:
        """Find what is there now."""
        if self._roots is not None:
            self.found, self.unknown, _ = look(self._roots(), **self._options)

    def look_for_late_ones(self) -> None:
        """Find generators that were made when they were first needed."""
        before = self.found
        self.look_again()
        self.late = [path for path in self.found if path not in before]

    def capture(self) -> States:
        """Their present states."""
        return {path: generators.capture(generator) for path, generator in self.found.items()}

    def restore(self, states: States) -> None:
        """Put back those that were captured and are still there."""
        for path, state in states.items():
            if path in self.found:
                generators.restore(self.found[path], state)

    def moved_since(self, states: States) -> bool:
        """Return True when one of them drew, or there is one that was not there before."""
        return any(
            path not in states
            or generators.digest(generator, generators.capture(generator)) != generators.digest(generator, states[path])
            for path, generator in self.found.items()
        )

    def seed(self, number: Callable[[int], int]) -> None:
        """Start each anew from ``number(place)``; places are by path, the same in every process."""
        for place, path in enumerate(sorted(self.found)):
            generators.seed(self.found[path], number(place))

    def to_json(self, states: States) -> dict[str, Any]:
        """Captured states for a checkpoint."""
        return {path: generators.to_json(self.found[path], state) for path, state in states.items()}

    def load(self, stored: Mapping[str, Any]) -> dict[str, str]:
        """Put back what a checkpoint holds; returns what does not fit, with the reason."""
        wrong = dict.fromkeys(stored.keys() - self.found.keys(), "the checkpoint has it and this run does not")
        for path, generator in self.found.items():
            if path not in stored:
                wrong[path] = "the checkpoint does not have it"
                continue
            try:
                generators.restore(generator, generators.from_json(generator, stored[path]))
            except (ValueError, KeyError, TypeError, RuntimeError) as error:
                wrong[path] = str(error)
        return wrong


class _Search:
    def __init__(self, iterators: bool, calls: bool, passed_by: Iterable[Any]) -> None:
        self.findings = Findings({}, {}, [])
        self._iterators, self._calls = iterators, calls
        self._seen = {id(value) for value in passed_by}
        self._classes: set[type] = set()
        self._left = _MOST

    def visit(self, value: Any, path: str, depth: int) -> None:
        if is_a(value, _PLAIN) or (is_a(value, CONTAINERS) and not value):
            return
        if id(value) in self._seen or depth > _DEEPEST or self._left <= 0:
            return
        if is_a(value, type):
            if is_users(value.__module__):
                self._class(value, path, depth)
            return
        self._seen.add(id(value))
        self._left -= 1
        if self._is_generator(value, path) or _is_numbers(value):
            return
        if is_a(value, types.FunctionType):
            self._code(value, path)
        for name, part in _parts(value):
            self.visit(part, f"{path}{name}", depth + 1)
        if is_module(value):
            # By the names that torch gives them, however deep they are.
            for name, module in value.named_modules():
                self._seen.add(id(module))
                self._attributes(module, f"{path}.{name}" if name else path, 0)
        elif not is_a(value, (*CONTAINERS, *_CALLED)):
            self._attributes(value, path, depth)

    def _attributes(self, value: Any, path: str, depth: int) -> None:
        """Visit what ``value`` and its class hold."""
        kind = type(value)
        if library_of(kind) in _PASSED_BY and kind is not threading.local:
            return
        for name, part in attributes(value):
            self.visit(part, f"{path}.{name}", depth + 1)
        self._class(kind, path, depth)

    def _class(self, kind: type, path: str, depth: int) -> None:
        if kind in self._classes:
            return
        self._classes.add(kind)
        for name, part in held_by_class(kind):
            self.visit(part, f"{path}{name}", depth + 1)
        for name, method in methods(kind) if self._calls else ():
            self._code(method, f"{path}.{name}()")

    def _code(self, function: types.FunctionType, path: str) -> None:
        """Note what ``function`` asks that answers differently each time."""
        if not self._calls:
            return
        asked = asks_the_system(function)
        if asked is not None:
            self.findings.unknown[path] = f"it takes numbers from the operating system, by {asked}"
        if asks_the_clock(function):
            self.findings.clocks.append(path)

    def _is_generator(self, value: Any, path: str) -> bool:
        if _is_global(value):
            return True
        if is_a(value, random.SystemRandom):
            self.findings.unknown[path] = "it takes its numbers from the operating system"
            return True
        if _is_iterator(value):
            if self._iterators:
                self.findings.unknown[path] = "it is an iterator, whose place cannot be kept"
            return True
        if generators.kind_of(value) is None:
            if _sounds_random(value):
                self.findings.unknown[path] = f"the state of a {type(value).__name__} cannot be read"
            return False
        try:
            generators.digest(value, generators.capture(value))
        except Exception as error:
            # Somebody's subclass: whatever it says, it cannot be kept.
            self.findings.unknown[path] = f"its state cannot be kept ({type(error).__name__}: {error})"
        else:
            self.findings.generators[path] = value
        return True


def _is_global(value: Any) -> bool:
    """Return True for the generators that a library's own functions use, which every checkpoint holds anyway."""
    if value is _PYTHONS or value is _NUMPYS:
        return True
    torch = sys.modules.get("torch")
    if torch is None or type(value) is not torch.Generator:
        return False
    return value is torch.default_generator or any(value is one for one in torch.cuda.default_generators)


def _is_numbers(value: Any) -> bool:
    """Return True for arrays and tensors, which hold no objects that draw."""
    kind = type(value)
    return hasattr(kind, "__array_interface__") or hasattr(kind, "__torch_function__")


def _is_iterator(value: Any) -> bool:
    # Of Python's own: files, loaders and streams of other libraries may be iterators too.
    return library_of(type(value)) in ("builtins", "itertools") and hasattr(type(value), "__next__")


def _sounds_random(value: Any) -> bool:
    """Return True for generators that another library wrote in C: nothing to look into, and a telling name."""
    kind = type(value)
    if library_of(kind) in ("builtins", "torch", "numpy") or kind.__dictoffset__ or slots(kind):
        return False
    return any(word in kind.__name__.lower() for word in ("random", "rng"))


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """List what lies in a container, and what a function needs."""
    if is_a(value, CONTAINERS):
        yield from items(value)
    elif is_a(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif is_a(value, types.MethodType):
        yield from ((".__self__", value.__self__), (".__func__", value.__func__))
    elif is_a(value, _BOUND):
        yield ".__self__", value.__self__
    elif is_a(value, types.FunctionType):
        yield from _of_function(value)


def _of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield f".{name}", cell.cell_contents
        except ValueError:
            # Not filled yet.
            continue
    yield ".__dict__", vars(function)
    yield ".__defaults__", function.__defaults__
    yield ".__kwdefaults__", function.__kwdefaults__
    yield from named_by(function)
