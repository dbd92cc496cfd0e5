"""Let names of another library stand for ours, in this process: reversible, and only when asked.

``from transformers import Trainer`` is an attribute of a module. A :class:`Redirection` sets such attributes to ours:
at once in modules that are imported already, in others when they have run. Nothing is imported before somebody needs
it: an open redirection costs a process that never trains nothing. A :class:`ScriptRedirection` gives ours to the user's
own scripts and leaves installed packages what they ask for.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from trainwright.config.origin import OURS, is_users_own, library_of, library_running

#: Module of another library -> name in it -> "module of ours:name".
Names = dict[str, dict[str, str]]


class Redirection(MetaPathFinder):
    """Names in modules of ``library`` that lead to ours while it is open."""

    def __init__(self, library: str, names: Names) -> None:
        self.library, self.names = library, names
        #: (module, name) -> what it was, for each name that leads to ours.
        self._originals: dict[tuple[str, str], Any] = {}
        #: How many of the modules are being imported, one inside another.
        self._depth = 0
        #: The library's package; transformers may replace itself, and whoever had the first keeps it.
        self._packages: list[ModuleType] = []

    @property
    def is_open(self) -> bool:
        return self in sys.meta_path

    def open(self) -> None:
        """Redirect the names, now and in modules that are imported later."""
        if not self.is_open:
            sys.meta_path.insert(0, self)
            self._see_held_packages()
            self._see_package()
            self._change()

    def close(self) -> None:
        """Give every name its own meaning again; classes that were built on ours meanwhile stay so."""
        if self.is_open:
            sys.meta_path.remove(self)
            self._give_back()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Python asks this at every import: for our few modules, find them as it would, and change them afterwards."""
        if fullname not in self.names:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Redirecting(spec.loader, self)
                return spec
        return None

    @contextlib.contextmanager
    def importing(self) -> Iterator[None]:
        """Let a module of the library run with the library's own names, and change them when it has."""
        self._see_package()
        self._give_back()
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            self._see_package()
            if self.is_open and self._depth == 0:
                self._change()

    def _change(self) -> None:
        for module_name, wanted in self.names.items():
            module = sys.modules.get(module_name)
            for name, ours in wanted.items():
                if module is not None and name in vars(module) and (module_name, name) not in self._originals:
                    self._originals[module_name, name] = getattr(module, name)
                    self._set(module_name, name, _load(ours))

    def _give_back(self) -> None:
        while self._originals:
            (module_name, name), original = self._originals.popitem()
            self._set(module_name, name, original)

    def _set(self, module_name: str, name: str, value: object) -> None:
        if module_name in sys.modules:
            setattr(sys.modules[module_name], name, value)
        for package in self._packages:
            # It looks names up in its modules, and keeps what it found.
            vars(package).pop(name, None)

    def _see_held_packages(self) -> None:
        """Somebody may hold the library's package as it was before it replaced itself, and read names from that."""
        file = getattr(sys.modules.get(self.library), "__file__", None)
        if file is None:
            return
        for module in list(sys.modules.values()):
            for held in list(getattr(module, "__dict__", {}).values()):
                # By its type: isinstance() asks the object, and some answer with a warning or an import.
                if issubclass(type(held), ModuleType) and vars(held).get("__file__") == file:
                    self._remember(held)

    def _see_package(self) -> None:
        package = sys.modules.get(self.library)
        if package is not None:
            self._remember(package)

    def _remember(self, package: ModuleType) -> None:
        if not any(package is seen for seen in self._packages):
            self._packages.append(package)


class ScriptRedirection(Redirection):
    """The same for code that is not installed: a script, a notebook, the modules beside them.

    ``taken(package, name)`` is called when an installed package asks for one of the names, and gets the library's own.
    """

    def __init__(self, library: str, names: Names, taken: Callable[[str, str], None]) -> None:
        # The package itself too: it is asked for all of the names, and may be imported anew.
        super().__init__(library, {**names, library: {n: ours for own in names.values() for n, ours in own.items()}})
        self._taken = taken
        self._classes: list[tuple[ModuleType, type]] = []

    def _change(self) -> None:
        found = [(sys.modules.get(name), wanted) for name, wanted in self.names.items()]
        for module, wanted in [*found, *((package, self.names[self.library]) for package in self._packages)]:
            if module is not None and not any(module is changed for changed, _ in self._classes):
                self._classes.append((module, type(module)))
                module.__class__ = self._answering(type(module), wanted)

    def _give_back(self) -> None:
        while self._classes:
            module, its_class = self._classes.pop()
            module.__class__ = its_class

    def _answering(self, kind: Any, wanted: dict[str, str]) -> Any:
        """The class of a module that looks who is asking."""
        taken, library = self._taken, self.library

        class Answering(kind):
            def __getattribute__(self, name: str) -> Any:
                # What somebody has put there meanwhile, a test's mock say, is theirs.
                if name in wanted and library_of(vars(self).get(name, kind)) == library:
                    asking = sys._getframe(1)
                    if is_users_own(asking):
                        return _load(wanted[name])
                    package = library_running(asking)
                    if package not in (library, OURS):
                        taken(package, name)
                return super().__getattribute__(name)

        return functools.wraps(kind, updated=())(Answering)


class _Redirecting(Loader):
    """The loader that Python chose, and then our names."""

    def __init__(self, loader: Loader, redirection: Redirection) -> None:
        self._loader, self._redirection = loader, redirection

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # So that tools which ask a module for its source find Python's own loader there.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        with self._redirection.importing():
            self._loader.exec_module(module)


def _load(ours: str) -> Any:
    module, _, name = ours.partition(":")
    assert module.partition(".")[0] == OURS
    return getattr(importlib.import_module(module), name)
