"""Values on their way to a tracker, from a thread of its own: a service that is slow or gone never stops a run."""

from __future__ import annotations

import contextvars
import json
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from trainwright.config.errors import ConfigError
from trainwright.config.secrets import redacted
from trainwright.core.tracker import TrackedRun

logger = logging.getLogger("trainwright")

#: Entries that wait for a service at most; the oldest values go first.
MOST_WAITING = 10_000
#: Seconds: the first pause after a failure, which doubles, and the longest.
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0
#: Seconds that a run waits for a service to start, and to take what is left at the end.
START_WITHIN, FINISH_WITHIN = 30.0, 20.0
#: How often a value is offered that a tracker calls wrong, and not merely undeliverable.
_OFFERS = 3


@dataclass
class _Entry:
    """One call of a tracker's method."""

    verb: str
    values: tuple[Any, ...]
    offers: int = 0


class Delivery:
    """Calls one tracker's methods in order; what fails is kept and tried again, after growing pauses.

    ``name`` is for messages; ``started`` hears the id that ``start`` returned.
    """

    def __init__(self, name: str, tracker: object, started: Callable[[str | None], None] = lambda _: None) -> None:
        self.name, self.tracker = name, tracker
        self._started = started
        self._waiting: deque[_Entry] = deque()
        self._change = threading.Condition()
        self._is_open = threading.Event()
        self._mistake: BaseException | None = None
        self._was_told = self._is_closing = False
        self._missing: set[str] = set()
        self._failures = self._lost = 0
        self._pause = 0.0
        # It sees what the script opened in its own thread, where a package keeps that in the context.
        work = partial(contextvars.copy_context().run, self._work)
        self._thread = threading.Thread(target=work, name=f"trainwright-tracker-{name}", daemon=True)

    def start(self, run: TrackedRun) -> None:
        """Open the run; what the user must correct is raised here, a service that does not answer is not."""
        self._waiting.append(_Entry("start", (run,)))
        hook, streams = sys.excepthook, (sys.stdout, sys.stderr)
        self._thread.start()
        answered = self._is_open.wait(START_WITHIN)
        # Some packages put theirs in their place, for the whole process.
        sys.excepthook, (sys.stdout, sys.stderr) = hook, streams
        if self._mistake is not None:
            raise ConfigError(str(self._mistake)) from self._mistake
        if not answered:
            self._tell(f"it has not answered for {START_WITHIN:g} s")

    def put(self, verb: str, *values: object) -> None:
        """Call ``tracker.verb(*values)`` soon."""
        with self._change:
            if len(self._waiting) >= MOST_WAITING:
                self._lose_oldest()
            self._waiting.append(_Entry(verb, values))
            self._change.notify()

    def close(self, status: str) -> None:
        """Nothing comes after this: deliver what is left and finish; :meth:`settle` waits for it."""
        with self._change:
            self._waiting.append(_Entry("finish", (status,)))
            self._is_closing = True
            self._change.notify()

    def settle(self, seconds: float) -> None:
        """Wait so long at most, and say what never arrived."""
        self._thread.join(max(seconds, 0.0))
        with self._change:
            lost = self._lost + sum(entry.verb.startswith("log") for entry in self._waiting)
        if lost:
            logger.warning("%d logged values never reached the tracker %s.", lost, self.name)
        elif self._thread.is_alive():
            logger.warning("The tracker %s did not finish in time; what it still holds may be lost.", self.name)

    def _lose_oldest(self) -> None:
        for index, entry in enumerate(self._waiting):
            # The first may be on its way just now.
            if index and entry.verb.startswith("log"):
                del self._waiting[index]
                self._lost += 1
                return

    # ---- the tracker's thread

    def _work(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(self._may_go_on, self._pause or None)
                if not self._waiting:
                    return
                entry, is_last_try = self._waiting[0], self._is_closing
            error = self._deliver(entry)
            if self._mistake is not None:
                return
            with self._change:
                if error is None:
                    self._waiting.popleft()
                    self._pause, self._failures = 0.0, 0
                    if entry.verb == "finish":
                        return
                    continue
                is_over = entry.verb == "finish" or (is_last_try and self._failures > 0)
                self._failures += 1
                self._pause = min(FIRST_PAUSE * 2 ** (self._failures - 1), LONGEST_PAUSE)
            if is_over:
                if entry.verb.startswith("log"):
                    # It may still hear how the run ended.
                    self._deliver(self._waiting[-1])
                return

    def _may_go_on(self) -> bool:
        return self._is_closing or (not self._pause and bool(self._waiting))

    def _deliver(self, entry: _Entry) -> BaseException | None:
        method = getattr(self.tracker, entry.verb, None)
        if method is None:
            if entry.verb not in self._missing:
                self._missing.add(entry.verb)
                logger.warning("The tracker %s has no %s: what goes there is left out.", self.name, entry.verb)
            return None
        try:
            answer = method(*entry.values)
        except (Exception, SystemExit) as error:
            if entry.verb == "start" and not self._is_open.is_set() and _is_mistake(error):
                self._mistake = error
                self._is_open.set()
                return error
            return self._failed(entry, error)
        if entry.verb == "start":
            self._started(answer)
            self._is_open.set()
        return None

    def _failed(self, entry: _Entry, error: BaseException) -> BaseException | None:
        lines = str(error).strip().splitlines() or [""]
        self._tell(f"{type(error).__name__}: {lines[0]}")
        self._is_open.set()
        entry.offers += 1
        if isinstance(error, (TypeError, ValueError)) and entry.offers >= _OFFERS and entry.verb.startswith("log"):
            # It is this value that the tracker cannot take; those behind it may be fine.
            self._lost += 1
            return None
        return error

    def _tell(self, why: str) -> None:
        if not self._was_told:
            self._was_told = True
            logger.warning(
                "The tracker %s fails (%s). Training goes on; values are kept and tried again.",
                self.name,
                redacted(why),
            )


def finish_all(deliveries: list[Delivery], status: str) -> None:
    """Close all at once, and wait for all together."""
    until = time.monotonic() + FINISH_WITHIN
    for delivery in deliveries:
        delivery.close(status)
    for delivery in deliveries:
        delivery.settle(until - time.monotonic())


def _is_mistake(error: BaseException) -> bool:
    """Whether the user must correct something: not where the network or a damaged file speaks, in whatever class."""
    is_users = isinstance(error, (ValueError, TypeError, ImportError))
    return is_users and not isinstance(error, (OSError, json.JSONDecodeError, UnicodeError))
