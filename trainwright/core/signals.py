"""Signals that ask for a stop, and who answers them: handlers that come and go without a moment in between."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import signal
import stat
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

#: Those that ask for a stop and would otherwise end a process without a word; and what a keyboard sends.
ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name))
STOPPING = (*ENDING, signal.SIGINT)
HANG_UP = getattr(signal, "SIGHUP", None)


class Handlers:
    """Handlers of signals, until they are taken away again. A process that is forked meanwhile does not have them."""

    #: Those in force, the innermost last.
    in_force: list[Handlers] = []  # noqa: RUF012 - signals are the process's, and so is this

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}

    def install(
        self,
        numbers: tuple[int, ...],
        handler: Callable[[int, FrameType | None], None],
        instead_of: Handlers | None = None,
    ) -> None:
        """Let ``handler`` answer; in the place of others, which are then taken away, without a moment in between."""
        Handlers.in_force.append(self)
        for number in numbers:
            before = signal.getsignal(number)
            if before is None or (number == HANG_UP and before is signal.SIG_IGN):
                # Not Python's to change; and under nohup a closed terminal is to be ignored.
                continue
            self._before[number] = before
            signal.signal(number, handler)
            if instead_of is not None and number in instead_of._before:
                self._before[number] = instead_of._before.pop(number)
        if instead_of is not None:
            instead_of.take_away()

    @property
    def numbers(self) -> set[int]:
        return set(self._before)

    def take_away(self) -> None:
        """Put back those from before."""
        for number, handler in list(self._before.items()):
            signal.signal(number, handler)
            del self._before[number]
        if self in Handlers.in_force:
            Handlers.in_force.remove(self)


def mute_lost_terminal() -> None:
    """After a hang-up: let output go nowhere, since printing to a terminal that is gone is an error."""
    for descriptor in (0, 1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
                nowhere = os.open(os.devnull, os.O_RDWR)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)


@functools.cache
def be_deaf_at_exit() -> None:
    """Somebody who asks again, while the interpreter is on its way out, must not turn the exit code into a death."""
    atexit.register(_be_deaf)


def _be_deaf() -> None:
    if threading.current_thread() is threading.main_thread():
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)


class _Fork(threading.local):
    """Take our handlers away where a process is forked: the new one starts without them.

    Whoever ends it (a pool its workers) must not be answered by a run that is not its own. Signals wait meanwhile: one
    that comes before the handlers are gone would be lost.
    """

    mask: Any = None

    def begin(self) -> None:
        if Handlers.in_force and hasattr(signal, "pthread_sigmask"):
            self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)

    def end_in_parent(self) -> None:
        if self.mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)
            self.mask = None

    def end_in_child(self) -> None:
        # Where another thread than the main one forked, it may not set handlers.
        with contextlib.suppress(ValueError):
            if Handlers.in_force:
                signal.set_wakeup_fd(-1)
            for handlers in reversed(list(Handlers.in_force)):
                handlers.take_away()
        self.end_in_parent()


if hasattr(os, "register_at_fork"):
    _fork = _Fork()
    os.register_at_fork(before=_fork.begin, after_in_parent=_fork.end_in_parent, after_in_child=_fork.end_in_child)
