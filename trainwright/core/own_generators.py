"""Random generators that users' objects keep for themselves: where they are, and their states together.

Looked for in attributes (``__dict__`` and slots, so no property runs), plain containers, what functions close over or
find beside them in their module, and in classes; not deeper and not more than a look before a training may cost.
"""

from __future__ import annotations

import functools
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from trainwright.core import generators

#: Attributes and items on the way to a generator, things looked at, and items of one container looked at.
_DEEPEST, _MOST, _ITEMS = 8, 50_000, 64
#: Libraries whose objects neither draw numbers nor lead to any.
_PASSED_BY = {"logging", "threading", "_thread", "multiprocessing", "concurrent", "asyncio", "subprocess", "socket"}
_PASSED_BY |= {"queue", "pathlib", "re", "io", "_io", "enum", "datetime", "typing", "ctypes", "weakref", "_weakref"}
_PASSED_BY |= {"abc", "inspect", "tokenizers", "pyarrow"}
_CONTAINERS = (list, tuple, set, frozenset, deque, dict)
_CALLED = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial)
_PLAIN = (type(None), bool, int, float, complex, str, bytes, bytearray, range, slice, type, types.ModuleType)
#: Attributes of a torch module that hold its parameters and submodules, which are looked at by their own names.
_OF_MODULE = frozenset(("_parameters", "_buffers", "_modules"))

_PYTHONS, _NUMPYS = random._inst, np.random.mtrand._rand  # type: ignore[attr-defined]

States = dict[str, Any]


class Findings(NamedTuple):
    """The findings of a look, by path."""

    generators: dict[str, Any]
    #: What draws or moves on and cannot be read, with the reason.
    unknown: dict[str, str]


def look(roots: Mapping[str, Any], *, iterators: bool = True, passed_by: Iterable[Any] = ()) -> Findings:
    """The generators that can be reached from ``roots``, each once, under the first path that leads to it.

    ``iterators``: what is in the midst of an iteration is unknown too. Nothing in ``passed_by`` is looked at.

    >>> found = look({"sampler": types.SimpleNamespace(tools=[random.Random(1)], secret=random.SystemRandom())})
    >>> list(found.generators), list(found.unknown)
    (['sampler.tools[0]'], ['sampler.secret'])
    """
    search = _Search(iterators, passed_by)
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
            self.found, self.unknown = look(self._roots(), **self._options)

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
    def __init__(self, iterators: bool, passed_by: Iterable[Any]) -> None:
        self.findings = Findings({}, {})
        self._iterators = iterators
        self._seen = {id(value) for value in passed_by}
        self._classes: set[type] = set()
        self._left = _MOST

    def visit(self, value: Any, path: str, depth: int) -> None:
        if _is(value, _PLAIN) or (_is(value, _CONTAINERS) and not value):
            return
        if id(value) in self._seen or depth > _DEEPEST or self._left <= 0:
            return
        self._seen.add(id(value))
        self._left -= 1
        if self._is_generator(value, path) or _is_numbers(value):
            return
        for name, part in _parts(value):
            self.visit(part, f"{path}{name}", depth + 1)
        if _is_module(value):
            # By the names that torch gives them, however deep they are.
            for name, module in value.named_modules():
                self._seen.add(id(module))
                self.attributes(module, f"{path}.{name}" if name else path, 0)
        elif not _is(value, (*_CONTAINERS, *_CALLED)):
            self.attributes(value, path, depth)

    def attributes(self, value: Any, path: str, depth: int) -> None:
        """List what ``value`` and its class hold."""
        kind = type(value)
        if kind.__module__.split(".")[0] in _PASSED_BY:
            return
        for name, part in _attributes(value):
            self.visit(part, f"{path}.{name}", depth + 1)
        if kind not in self._classes:
            self._classes.add(kind)
            for name, generator in _beside(kind):
                self.visit(generator, f"{path}.{name}", depth + 1)

    def _is_generator(self, value: Any, path: str) -> bool:
        if _is_global(value):
            return True
        if _is(value, random.SystemRandom):
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


def _is(value: Any, kinds: Any) -> bool:
    # Unlike `isinstance` it runs no code of a proxy's.
    return issubclass(type(value), kinds)


def _is_module(value: Any) -> bool:
    return callable(getattr(type(value), "named_modules", None))


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
    return type(value).__module__ in ("builtins", "itertools") and hasattr(type(value), "__next__")


def _sounds_random(value: Any) -> bool:
    """Return True for generators that another library wrote in C: nothing to look into, and a telling name."""
    kind = type(value)
    if kind.__module__.split(".")[0] in ("builtins", "torch", "numpy") or kind.__dictoffset__ or _slots(kind):
        return False
    return any(word in kind.__name__.lower() for word in ("random", "rng"))


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """List what lies in a container, and what a function needs."""
    if _is(value, dict):
        yield from ((f"[{key!r}]", part) for key, part in _first(value.items()))
    elif _is(value, _CONTAINERS):
        yield from ((f"[{place}]", part) for place, part in enumerate(_first(value)))
    elif _is(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif _is(value, types.MethodType):
        yield from ((".__self__", value.__self__), (".__func__", value.__func__))
    elif _is(value, types.FunctionType):
        yield from _of_function(value)


def _first(items: Any) -> Iterator[Any]:
    for place, item in enumerate(items):
        if place == _ITEMS:
            return
        yield item


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
    yield from _global_generators(function)


def _global_generators(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Generators that lie in the module of ``function`` and that it names."""
    for name in _names(function.__code__):
        value = function.__globals__.get(name)
        if _draws(value):
            yield f".{name}", value


def _draws(value: Any) -> bool:
    return _is(value, random.Random) or generators.kind_of(value) is not None


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        held = {}
    passed_by = _OF_MODULE if _is_module(value) else ()
    for name, part in list(held.items()) if isinstance(held, dict) else ():
        if name not in passed_by:
            yield str(name), part
    for name, slot in _slots(type(value)):
        try:
            yield name, slot.__get__(value)
        except AttributeError:
            continue


@functools.lru_cache(maxsize=1024)
def _slots(kind: type) -> tuple[tuple[str, Any], ...]:
    return tuple(
        (name, slot)
        for one in kind.__mro__
        for name, slot in vars(one).items()
        if isinstance(slot, types.MemberDescriptorType)
    )


def _beside(kind: type) -> list[tuple[str, Any]]:
    """Generators that a user's class has as attributes, or that its methods find in their module."""
    found: dict[str, Any] = {}
    for one in kind.__mro__:
        if one.__module__.split(".")[0] in ("builtins", "torch", "numpy", "trainwright", "transformers", "datasets"):
            continue
        for name, value in vars(one).items():
            value = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
            if _draws(value):
                found[name] = value
            if isinstance(value, types.FunctionType):
                found |= {path.removeprefix("."): generator for path, generator in _global_generators(value)}
    return list(found.items())
