"""What should be in a checkpoint and could not be added: named, and no reason to lose the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")


@dataclass
class LeftOut:
    """Collects, for one checkpoint, what code that is not ours failed to add.

    >>> left_out = LeftOut()
    >>> left_out.attempt("the tokenizer", lambda: 1 / 0, otherwise=None)
    >>> left_out.reasons
    ['the tokenizer (ZeroDivisionError: division by zero)']
    """

    reasons: list[str] = field(default_factory=list)

    def attempt(self, what: str, work: Callable[[], T], otherwise: T) -> T:
        """What ``work`` returns, or ``otherwise`` if it raises; then ``what`` is noted with the reason."""
        try:
            return work()
        except Exception as error:
            self.note(what, error)
            return otherwise

    def note(self, what: str, error: BaseException | str) -> None:
        reason = error if isinstance(error, str) else in_words(error)
        self.reasons.append(f"{what} ({reason})")


def in_words(error: BaseException) -> str:
    """An error in a few words, on one line."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}, {error.filename}" if error.filename else str(error.strerror)
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]
