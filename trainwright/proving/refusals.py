"""What was refused in words for users, and what failed."""

from __future__ import annotations

from trainwright.config.origin import OURS, library_running
from trainwright.core.errors import FirstStepError


def is_refusal(error: BaseException) -> bool:
    """Whether this library itself refused something: its ValueErrors speak to users, and others' are failures.

    So is a first step that failed, whoever says why.
    """
    if isinstance(error, FirstStepError):
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return isinstance(error, ValueError) and trace is not None and library_running(trace.tb_frame) == OURS


def first_line(error: BaseException) -> str:
    """The kind of an error, unless it speaks to users, and what it says."""
    text = str(error).strip()
    if not text:
        return type(error).__name__
    speaks_to_users = is_refusal(error) or isinstance(error, FirstStepError)
    return text.splitlines()[0] if speaks_to_users else f"{type(error).__name__}: {text.splitlines()[0]}"
