"""Requests to stop: signals, and the time a run may take.

A signal handler only sets a flag; the loop looks at it where stopping is clean: between steps, between evaluation
batches, while it waits for data. A helper thread hears of a signal at once, even while the main thread is inside a long
computation, and asks for a save of the last finished step when the deadline passes. Where no training runs there is
nothing to finish, and ``LeavesAtOnce`` answers at once.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, TypeVar

from trainwright.core.errors import Preempted, StopRequested
from trainwright.core.run import Stopped
from trainwright.core.signals import ENDING, HANG_UP, STOPPING, Handlers, be_deaf_at_exit, mute_lost_terminal

logger = logging.getLogger("trainwright")

T = TypeVar("T")

#: Names a file whose presence asks for a stop, for trainings outside the main thread (Ray's are).
STOP_FILE = "TRAINWRIGHT_STOP_FILE"
#: Seconds between looks at it: it may lie on a network drive.
_LOOK_EVERY = 1.0

#: Whoever presses Ctrl-C this often wants out now, checkpoint or not.
_IMPATIENT = 3
_QUIT = b"\0"


class LeavesAtOnce:
    """Does work during which a signal is answered at once, by ``Preempted``: there is nothing to finish or to save.

    Ctrl-C is left to Python, and a signal to a handler that somebody else has set.

    Args:
        say: Called with the name of the signal before ``Preempted`` is raised.
        code: The exit code.
        handle_signals: False leaves all signals alone.
    """

    def __init__(self, say: Callable[[str], None], *, code: int = 75, handle_signals: bool = True) -> None:
        self._say, self._code = say, code
        self._handles = handle_signals and threading.current_thread() is threading.main_thread()
        self._received: int | None = None
        self._handlers = Handlers()

    def do(self, work: Callable[[], T]) -> T:
        """Return what ``work`` returns."""
        if not self._handles:
            return work()
        error: BaseException | None = None
        try:
            try:
                self._handlers.install(tuple(number for number in ENDING if _is_nobodys(number)), self._note)
                result = work()
            finally:
                self._handlers.take_away()
        except BaseException as raised:
            # Somebody's code may have made another error of it, or swallowed it: then the signal still counts.
            if self._received is None:
                raise
            error = raised
        if self._received is None:
            return result
        self._handlers.take_away()
        be_deaf_at_exit()
        name = signal.Signals(self._received).name
        self._say(name)
        raise Preempted(name, self._code) from (None if isinstance(error, StopRequested) else error)

    def _note(self, number: int, frame: FrameType | None) -> None:
        # Once: what it interrupts a second time would be the leaving.
        if self._received is None:
            self._received = number
            if number == HANG_UP:
                mute_lost_terminal()
            raise StopRequested(signal.Signals(number).name)

    def hand_over(self, others: Handlers, note: Callable[[int, FrameType | None], None]) -> int | None:
        """Let others answer from now on; returns a signal that came and that somebody's code has swallowed."""
        others.install(STOPPING, note, self._handlers)
        received, self._received = self._received, None
        return received


def _is_nobodys(number: int) -> bool:
    """Return True when a signal would end the process, or is answered by us."""
    handler = signal.getsignal(number)
    return handler is signal.SIG_DFL or isinstance(getattr(handler, "__self__", None), LeavesAtOnce)


class StopRequests:
    """A context in which signals and time ask for a stop instead of ending the process.

    >>> with StopRequests(handle_signals=False, max_seconds=None) as stops:
    ...     stops.raise_if_asked()   # nothing was asked for
    """

    def __init__(
        self,
        *,
        handle_signals: bool = True,
        max_seconds: float | None = None,
        deadline: float = 20.0,
        on_deadline: Callable[[], None] | None = None,
        instead_of: LeavesAtOnce | None = None,
    ) -> None:
        self._handle_signals = handle_signals
        self._max_seconds = max_seconds
        self._deadline = deadline
        self._on_deadline = on_deadline
        self._instead_of = instead_of
        self._received: int | None = None
        self._interrupts = 0
        self._served = self._leaves_at_once = False
        self._handlers = Handlers()
        self._listener: _Listener | None = None
        self._file: str | None = None
        self._next_look = 0.0

    def __enter__(self) -> StopRequests:
        self._began = time.monotonic()
        if self._handle_signals:
            self._install()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._listener is not None:
            self._listener.close()
        self._handlers.take_away()
        if self._served:
            be_deaf_at_exit()
        if self._received is not None and not self._served and error is None:
            # It came when there was nothing left to stop: now it is for whoever handled it before.
            signal.raise_signal(self._received)

    def _install(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            self._file = os.environ.get(STOP_FILE)
            if self._file is not None:
                logger.info("train() runs outside the main thread: whoever launched it asks for a stop by a file.")
                return
            logger.warning(
                "train() runs outside the main thread, where Python delivers no signals: SIGTERM will not save. "
                "Stop it through control.should_training_stop or max_hours."
            )
            return
        if self._instead_of is None:
            self._handlers.install(STOPPING, self._note)
        elif (earlier := self._instead_of.hand_over(self._handlers, self._note)) is not None:
            self._received = earlier
        if self._on_deadline is not None:
            self._listener = _Listener.start(self._handlers.numbers, self._deadline, self._on_deadline)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._received is None:
            self._received = number
        if number == HANG_UP:
            mute_lost_terminal()
        if number == signal.SIGINT:
            self._interrupts += 1
            if self._interrupts >= _IMPATIENT:
                raise KeyboardInterrupt
        if self._leaves_at_once:
            # Once: what it interrupts a second time would be the leaving.
            self._leaves_at_once = False
            self.raise_if_asked()

    @contextmanager
    def answered_at_once(self) -> Iterator[None]:
        """A block that a signal ends wherever it is, by ``StopRequested``: nothing has to be finished or saved."""
        self.raise_if_asked()
        self._leaves_at_once = True
        try:
            yield
            self._leaves_at_once = False
            # Somebody's code may have swallowed it.
            self.raise_if_asked()
        finally:
            self._leaves_at_once = False

    @property
    def is_pressed(self) -> bool:
        """Whether Ctrl-C was pressed so often that nothing may be waited for."""
        return self._interrupts >= _IMPATIENT

    @property
    def by_keyboard(self) -> bool:
        """Return True when it was Ctrl-C that came first."""
        return self._received == signal.SIGINT

    def explains(self, error: BaseException) -> bool:
        """Return True when ``error`` is only that somebody printed to the terminal whose end asks for a stop."""
        lost = isinstance(error, OSError) and error.errno in (errno.EIO, errno.EPIPE)
        return lost and self._received is not None and self._received == HANG_UP

    @property
    def reason(self) -> str:
        """The signal that came first."""
        return "a signal" if self._received is None else signal.Signals(self._received).name

    @property
    def asked(self) -> bool:
        """Whether a stop is wanted."""
        return self._received is not None or self._time_is_up() or self._file_asks()

    def request(self) -> Stopped | None:
        """The stop that is wanted, if one is."""
        if self._received is not None:
            self._served = True
            return Stopped(signal.Signals(self._received).name, by_keyboard=self._received == signal.SIGINT)
        # Asked first whether there is a limit at all: this runs after every step.
        if self._max_seconds is not None and self._time_is_up():
            return Stopped(f"max_hours={self._max_seconds / 3600:g}")
        return Stopped("the launcher") if self._file is not None and self._file_asks() else None

    def raise_if_asked(self) -> None:
        """Leave, by an exception, where a stop is wanted and the loop is not the one that asks."""
        stop = self.request()
        if stop is not None:
            raise StopRequested(stop.reason, by_keyboard=stop.by_keyboard)

    def _file_asks(self) -> bool:
        if self._file is None or time.monotonic() < self._next_look:
            return False
        if os.path.exists(self._file):
            return True
        self._next_look = time.monotonic() + _LOOK_EVERY
        return False

    def _time_is_up(self) -> bool:
        return self._max_seconds is not None and time.monotonic() - self._began >= self._max_seconds


class _Listener:
    """Hears of signals through the wake-up pipe, which the C handler writes to at once."""

    def __init__(self, numbers: set[int], deadline: float, act: Callable[[], None]) -> None:
        self._numbers, self._deadline, self._act = numbers, deadline, act
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="trainwright-deadline", daemon=True)

    @staticmethod
    def start(numbers: Any, deadline: float, act: Callable[[], None]) -> _Listener | None:
        listener = _Listener(set(numbers), deadline, act)
        before = signal.set_wakeup_fd(listener._writer, warn_on_full_buffer=False)
        if before != -1:
            # Somebody (an event loop) listens already: leave it to them and do without the deadline.
            signal.set_wakeup_fd(before)
            os.close(listener._reader)
            os.close(listener._writer)
            return None
        listener._thread.start()
        return listener

    def _listen(self) -> None:
        while (heard := os.read(self._reader, 1)) != _QUIT:
            if heard[0] in self._numbers:
                if not self._over.wait(self._deadline):
                    self._act()
                return

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
        self._over.set()
        os.write(self._writer, _QUIT)
        self._thread.join(timeout=30)
        os.close(self._reader)
        os.close(self._writer)
