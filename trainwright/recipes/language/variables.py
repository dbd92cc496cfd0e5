"""Variables of a recipe, worked out in whatever order they need each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trainwright.config.errors import ConfigError
from trainwright.recipes.language.expressions import evaluate, inside, is_expression, names_in
from trainwright.recipes.language.plain import Allowance, plain

LONGEST_CHAIN = 64


class Scope(Mapping[str, Any]):
    """The variables of a recipe, or of one stage in front of them; each is worked out when it is first asked for.

    >>> scope = Scope({"epochs": 30, "end": "eval(start + 5)", "start": "eval(epochs // 2)"})
    >>> scope.resolved({"end_epoch": "eval(end)", "params": ["eval(start)", "text"]}, "here")
    {'end_epoch': 20, 'params': [15, 'text']}
    >>> Scope({"a": "eval(b)", "b": "eval(a + 1)"})["a"]
    Traceback (most recent call last):
    trainwright.config.errors.ConfigError: recipe: variables need each other: a -> b -> a.
    """

    def __init__(
        self,
        written: Mapping[str, Any],
        outer: Scope | None = None,
        where: Callable[[str], str] = lambda name: "recipe",
        allowance: Allowance | None = None,
    ) -> None:
        self._written = dict(written)
        self._outer = outer
        self._where = where
        self._allowance = allowance or (outer._allowance if outer else Allowance())
        self._values: dict[str, Any] = {}
        #: Names whose values are being worked out, one for the sake of the other.
        self._waiting: list[str] = []

    def __getitem__(self, name: str) -> Any:
        if name not in self._written or self._waiting[-1:] == [name]:
            # `epochs: eval(epochs)` in a stage means the epochs outside of it.
            if self._outer is not None and name in self._outer:
                return self._outer[name]
            if name not in self._written:
                raise KeyError(name)
        if name not in self._values:
            if name in self._waiting:
                cycle = " -> ".join([*self._waiting[self._waiting.index(name) :], name])
                raise ConfigError(f"{self._where(name)}: variables need each other: {cycle}.")
            if len(self._waiting) >= LONGEST_CHAIN:
                raise ConfigError(f"{self._where(name)}: more than {LONGEST_CHAIN} variables in a chain.")
            self._waiting.append(name)
            try:
                self._values[name] = self.resolved(self._written[name], self._where(name))
            finally:
                self._waiting.pop()
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        yield from dict.fromkeys([*self._written, *(self._outer or ())])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, name: object) -> bool:
        return name in self._written or (self._outer is not None and name in self._outer)

    @property
    def own(self) -> dict[str, Any]:
        """Those written here, worked out."""
        return {name: self[name] for name in self._written}

    def resolved(self, value: object, where: str) -> Any:
        """A copy of ``value`` with every ``eval(...)`` in it worked out."""
        if isinstance(value, Mapping):
            return {key: self.resolved(item, where) for key, item in value.items()}
        if isinstance(value, list):
            return [self.resolved(item, where) for item in value]
        if not (isinstance(value, str) and is_expression(value)):
            return plain(value, where, self._allowance)
        text = inside(value, where)
        try:
            names = names_in(text)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        for name in names:
            if name in self:
                # Before the expression itself: what is wrong with a variable has the variable's line.
                self[name]
        try:
            found = evaluate(text, self)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        if isinstance(found, str) and is_expression(found):
            raise ConfigError(f"{where}: {value} gives another expression, {found}: write that one.")
        return plain(found, where, self._allowance)
