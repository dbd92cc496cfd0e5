"""``checkpoint_every``: "2 epochs", "eval", "30ep", "50 steps", in ACCMT's grammar."""

from __future__ import annotations

import re

_UNITS = {
    **dict.fromkeys(("epoch", "ep", "epochs", "eps"), "epoch"),
    **dict.fromkeys(("step", "st", "steps", "sts"), "step"),
    **dict.fromkeys(("evaluation", "eval", "evaluations", "evals"), "eval"),
}
_FORM = re.compile(r"\s*(\d*)\s*([a-z]+)\s*", re.IGNORECASE)
_GRAMMAR = (
    "write [number] unit, the number a whole one of at least 1 (1 when left out) and the unit one of "
    "epoch(s), ep(s), step(s), st(s), evaluation(s), eval(s): for instance 'epoch', '2 epochs', '30ep', '50 steps' or "
    "'3 evals'; None switches checkpoints off"
)


def unit_of(word: str) -> str | None:
    """ "epoch", "step" or "eval", whichever ``word`` means; None for other words."""
    return _UNITS.get(word.lower())


def number_and_unit(text: str) -> tuple[int, str]:
    """How many of which unit ``text`` says.

    >>> number_and_unit("30ep"), number_and_unit("EVAL"), number_and_unit(" 2 steps")
    ((30, 'epoch'), (1, 'eval'), (2, 'step'))
    """
    match = _FORM.fullmatch(text) if isinstance(text, str) else None
    unit = unit_of(match[2]) if match else None
    if match is None or unit is None or (match[1] and int(match[1]) == 0):
        raise ValueError(f"checkpoint_every={text!r}: {_GRAMMAR}.")
    return int(match[1] or 1), unit


def native_cadence(text: str | None) -> str:
    """The same in the words of ``TrainingArguments.checkpoint_every``.

    >>> native_cadence("3evals"), native_cadence(None)
    ('3 evals', 'never')
    """
    if text is None:
        return "never"
    number, unit = number_and_unit(text)
    return f"{number} {unit}s"
