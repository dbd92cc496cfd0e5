"""Words for people: safe to print, and of a length that can be read."""

from __future__ import annotations

import unicodedata


def shown(text: object, longest: int = 400) -> str:
    """Text in one line: line breaks as ↵, nothing invisible, not too long.

    >>> shown("two\\nlines\\x1b[2J")
    'two↵lines\\\\x1b[2J'
    """
    whole = str(text)
    found = "".join("↵" if one == "\n" else _visible(one) for one in whole[:longest])
    return found if len(whole) <= longest else found + " …"


def _visible(character: str) -> str:
    is_hidden = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
    return character.encode("unicode_escape").decode("ascii") if is_hidden else character


def amount(number: float, unit: str) -> str:
    """A number with a unit that may be large.

    >>> amount(336, "FLOP"), amount(2.5e12, "FLOP")
    ('336 FLOP', '2.5 TFLOP')
    """
    for prefix in ("", "K", "M", "G", "T", "P"):
        if abs(number) < 1000 or prefix == "P":
            return f"{number:.3g} {prefix}{unit}"
        number /= 1000
    raise AssertionError


def size(bytes_: float) -> str:
    """Memory.

    >>> size(70_000), size(3 * 2**30)
    ('68.4 KiB', '3 GiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(bytes_) < 1024 or unit == "GiB":
            return f"{bytes_:.3g} {unit}"
        bytes_ /= 1024
    raise AssertionError
