"""Regular expressions from files and arguments, matched in bounded time.

Python's ``re`` tries one way after the other, and ``re:(a+)+x`` has more ways than there is time. Here all ways are
followed at once: the places reached so far are the bits of one number. RE2 does the same, but knows no look-ahead,
which recipes use (``re:(?!lm_head).*``), and a time limit would depend on the machine.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import groupby

# What ``re`` itself is made of.
from re import _compiler, _constants, _parser  # type: ignore[attr-defined]
from typing import Any

_LONGEST = 2_000
#: For one name; an ordinary pattern takes some tens, and a million take about a second.
_MOST_STEPS = 1_000_000
#: A step in a longer text takes as many times as long.
_LONG_TEXT = 2_000
_REFUSED = {
    _constants.GROUPREF: "a reference to a group, such as \\1,",
    _constants.GROUPREF_EXISTS: "a condition on a group",
    _constants.ATOMIC_GROUP: "an atomic group, (?>...),",
    _constants.POSSESSIVE_REPEAT: "a possessive repeat, such as *+,",
}
_SINGLES = (_constants.LITERAL, _constants.NOT_LITERAL, _constants.IN, _constants.ANY)

#: From places in a text, the bits of a number, to the places that can be reached from them.
_Step = Callable[["_Text", int], int]


class Pattern:
    """A compiled expression that answers yes or no.

    >>> Pattern(r"(.*.*.*.*)*x$").match("a" * 200), Pattern(r"(?!head).*weight").match("body.weight")
    (False, True)
    """

    def __init__(self, pattern: str) -> None:
        self._step = _compiled(pattern)
        self.pattern = pattern

    def match(self, text: str) -> bool:
        """Return True when the expression fits from the start of ``text``, as ``re.match``."""
        return self._ends(text, 1) != 0

    def fullmatch(self, text: str) -> bool:
        """Return True when it fits the whole of ``text``, as ``re.fullmatch``."""
        return bool(self._ends(text, 1) >> len(text))

    def search(self, text: str) -> bool:
        """Return True when it fits anywhere, as ``re.search``."""
        return self._ends(text, (2 << len(text)) - 1) != 0

    def _ends(self, text: str, starts: int) -> int:
        return self._step(_Text(text, self.pattern), starts)


class _Text:
    """A text that is being matched, and what is known of its places."""

    def __init__(self, text: str, pattern: str) -> None:
        self.text, self._pattern = text, pattern
        self._known: dict[re.Pattern[str], int] = {}
        self._left = _MOST_STEPS
        self._cost = 1 + len(text) // _LONG_TEXT

    def spend(self) -> None:
        self._left -= self._cost
        if self._left < 0:
            raise ValueError(
                f"{self._pattern!r} repeats what repeats itself, which takes too long: use fewer brackets, or list the "
                "names."
            )

    def fitting(self, single: re.Pattern[str]) -> int:
        """Return the places at which ``single`` fits: one character, a word, or a condition on a place."""
        if single not in self._known:
            self._left -= len(self.text) // 4
            places = bytearray(b"0") * (len(self.text) + 1)
            for found in single.finditer(self.text):
                places[len(self.text) - found.start()] = ord("1")
            self._known[single] = int(places, 2)
        return self._known[single]


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> _Step:
    if len(pattern) > _LONGEST:
        raise ValueError(f"a regular expression of {len(pattern)} characters is too long (at most {_LONGEST}).")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parsed = _parser.parse(pattern)
        return _sequence(parsed, parsed.state.flags)
    except (re.error, OverflowError) as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}.") from None
    except RecursionError:
        raise ValueError("the regular expression has too many brackets inside each other.") from None


def _sequence(items: object, flags: int) -> _Step:
    steps = list(_steps(items, flags))

    def run(text: _Text, places: int) -> int:
        for step in steps:
            if not places:
                break
            text.spend()
            places = step(text, places)
        return places

    return run


def _steps(items: Any, flags: int) -> Iterator[_Step]:
    for is_word, group in groupby(items, lambda item: item[0] is _constants.LITERAL):
        found = list(group)
        if is_word:
            # A word at once: names consist of them. Behind (?=...) because two may overlap.
            inside = _parser.SubPattern(_parser.State(), found)
            yield _moved(_single(_constants.ASSERT, (1, inside), flags), len(found))
        else:
            for operation, argument in found:
                yield _step(operation, argument, flags)


def _step(operation: Any, argument: Any, flags: int) -> _Step:
    if operation in _REFUSED:
        raise re.error(f"{_REFUSED[operation]} cannot be matched in bounded time; write the alternatives out")
    if operation is _constants.SUBPATTERN:
        _, added, removed, inner = argument
        return _sequence(inner, _compiler._combine_flags(flags, added, removed))
    if operation is _constants.BRANCH:
        return _any_of([_sequence(branch, flags) for branch in argument[1]])
    if operation in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
        least, most, inner = argument
        if most is _constants.MAXREPEAT and least < 2 and len(inner) == 1 and inner[0][0] in _SINGLES:
            (repeated, what), *_ = inner
            return _starred(_single(repeated, what, flags), at_least_once=least == 1)
        return _repeated(_sequence(inner, flags), int(least), int(most))
    if operation in (_constants.ASSERT, _constants.ASSERT_NOT):
        direction, inner = argument
        width = _fixed_width(inner) if direction < 0 else None
        return _looking(_sequence(inner, flags), width, operation is _constants.ASSERT)
    return _moved(_single(operation, argument, flags), int(operation is not _constants.AT))


def _single(operation: object, argument: object, flags: int) -> re.Pattern[str]:
    # A state of its own: that of the whole pattern would bring back the flags that (?-i:...) and (?a:...) take away.
    return _compiler.compile(_parser.SubPattern(_parser.State(), [(operation, argument)]), flags)


def _fixed_width(behind: Any) -> int:
    least, most = behind.getwidth()
    if least != most:
        raise re.error(
            "what a look-behind, (?<=...) or (?<!...), looks for must have one length; write one look-behind for each "
            "length"
        )
    return int(least)


def _moved(single: re.Pattern[str], width: int) -> _Step:
    return lambda text, places: (text.fitting(single) & places) << width


def _any_of(branches: list[_Step]) -> _Step:
    def run(text: _Text, places: int) -> int:
        found = 0
        for branch in branches:
            text.spend()
            found |= branch(text, places)
        return found

    return run


def _starred(single: re.Pattern[str], *, at_least_once: bool) -> _Step:
    """Return the step of ``.*`` and the like: in a sum, carries run through all fitting characters at once."""

    def run(text: _Text, places: int) -> int:
        fitting = text.fitting(single)
        if at_least_once:
            places = (places & fitting) << 1
        return (((places & fitting) + fitting) ^ fitting) | places

    return run


def _repeated(inner: _Step, least: int, most: int) -> _Step:
    def run(text: _Text, places: int) -> int:
        for _ in range(least):
            before = places
            places = inner(text, places)
            text.spend()
            if places in (0, before):
                break
        found = fresh = places
        for _ in range(most - least):
            fresh = inner(text, fresh) & ~found
            text.spend()
            if not fresh:
                break
            found |= fresh
        return found

    return run


def _looking(inner: _Step, width: int | None, wanted: bool) -> _Step:
    """Return the condition that ``inner`` fits from here on, or with a ``width`` up to here."""

    def run(text: _Text, places: int) -> int:
        found = 0
        while places:
            index = (places & -places).bit_length() - 1
            places &= places - 1
            text.spend()
            start = index - (width or 0)
            ends = inner(text, 1 << start) if start >= 0 else 0
            fits = ends != 0 if width is None else bool(ends >> index & 1)
            found |= int(fits is wanted) << index
        return found

    return run
