"""Handler: which errors are answered by a checkpoint before they are raised."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum


class Handler(IntEnum):
    """Kinds of errors.

    >>> rescue_kinds([Handler.KEYBOARD, Handler.CUDA_OUT_OF_MEMORY])
    ['interrupt', 'out_of_memory']
    """

    #: Ctrl-C.
    KEYBOARD = 1
    #: The device's memory does not suffice.
    CUDA_OUT_OF_MEMORY = 2
    #: Any other error.
    ANY = 3
    #: All of them.
    ALL = 4


_KINDS = {
    Handler.KEYBOARD: ["interrupt"],
    Handler.CUDA_OUT_OF_MEMORY: ["out_of_memory"],
    Handler.ANY: ["error"],
    Handler.ALL: ["interrupt", "out_of_memory", "error"],
}


def rescue_kinds(handlers: object) -> list[str] | None:
    """``handlers``, one or several, in the words of ``TrainingArguments.rescue_on``."""
    if handlers is None:
        return None
    given = list(handlers) if isinstance(handlers, Iterable) and not isinstance(handlers, str) else [handlers]
    kinds: list[str] = []
    for handler in given:
        try:
            kinds += _KINDS[Handler(handler)]
        except ValueError:
            names = ", ".join(f"Handler.{each.name}" for each in Handler)
            raise ValueError(f"handlers: {handler!r} is none of {names}.") from None
    return list(dict.fromkeys(kinds))
