"""Write the log of a run, and know at any moment how much of it is on disk, and with which hash.

A checkpoint notes both (:class:`LogMark`), so that it need not hold the log itself: what it costs to note them does not
depend on how long the run has been.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
import threading
from collections.abc import MutableSequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from trainwright.config.secrets import redacted_values
from trainwright.core.files import open_regular, replacing
from trainwright.core.json_values import plain_values, same_values
from trainwright.core.log_history import KEPT_IN_MEMORY, Entry, Evaluations, LogFiles, LongLog, entry_of
from trainwright.core.state import TrainerState

_BLOCK = 2**20


class FileMark(NamedTuple):
    """The first ``bytes`` of a file, and their hash."""

    bytes: int = 0
    sha256: str = hashlib.sha256().hexdigest()


class LogMark(NamedTuple):
    """How much of a log was on disk at one moment."""

    #: Entries of ``log_history``, and lines of ``metrics.jsonl``, that the files hold up to here.
    entries: int
    lines: int
    metrics: FileMark
    differences: FileMark

    def is_in(self, files: LogFiles) -> bool:
        """Return True when ``files`` begin with what was marked."""
        pairs = ((files.metrics, self.metrics), (files.differences, self.differences))
        return all(_hashed(path, mark) is not None for path, mark in pairs)


def _hashed(path: Path, mark: FileMark) -> Any:
    """Return the running hash of the file's first bytes; None where they are not the marked ones."""
    found, left = hashlib.sha256(), mark.bytes
    with contextlib.suppress(OSError):
        if left:
            with os.fdopen(open_regular(path), "rb") as file:
                while left and (block := file.read(min(left, _BLOCK))):
                    found.update(block)
                    left -= len(block)
    return found if not left and found.hexdigest() == mark.sha256 else None


class _GrowingFile:
    """A file that only grows, by us alone: its size and hash are known without reading it."""

    def __init__(self, path: Path, *, is_always_there: bool) -> None:
        self.path = path
        self._is_always_there = is_always_there
        self._size = 0
        self._hash = hashlib.sha256()
        #: Where an attempt that failed began: it may have left half a line behind.
        self._torn_at: int | None = None

    def start(self, text: bytes) -> None:
        """Begin anew with ``text``."""
        if text or self._is_always_there:
            with replacing(self.path) as file:
                file.write(text)
        else:
            self.path.unlink(missing_ok=True)
        self._size, self._hash, self._torn_at = len(text), hashlib.sha256(text), None

    def cut(self, mark: FileMark, source: Path) -> bool:
        """Go on behind what is marked in ``source``; False where that cannot be done."""
        found = _hashed(source, mark)
        if found is None:
            return False
        if not mark.bytes:
            self.start(b"")
            return True
        if source != self.path or self.path.is_symlink():
            _copy_beginning(source, self.path, mark.bytes)
        descriptor = open_regular(self.path, os.O_WRONLY)
        try:
            os.ftruncate(descriptor, mark.bytes)
        finally:
            os.close(descriptor)
        self._size, self._hash, self._torn_at = mark.bytes, found, None
        return True

    def append(self, text: bytes) -> bool:
        """Add ``text``; False where the file was not as long as it should be: somebody else writes it too."""
        descriptor = open_regular(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            size = os.fstat(descriptor).st_size
            if self._torn_at is not None and size > self._torn_at:
                os.ftruncate(descriptor, self._torn_at)
                size = self._torn_at
            self._torn_at = size
            left = memoryview(text)
            while left:
                left = left[os.write(descriptor, left) :]
        finally:
            os.close(descriptor)
        is_as_known = size == self._size
        self._torn_at, self._size = None, size + len(text)
        self._hash.update(text)
        return is_as_known

    def mark(self) -> FileMark | None:
        """Return how far it is; None where it is not there as it was written."""
        try:
            size = self.path.lstat().st_size if self._size else 0
        except OSError:
            return None
        return FileMark(self._size, self._hash.hexdigest()) if size == self._size else None


@dataclass
class LogRecord:
    """The log of one run as it is written; entries that are on disk may leave memory.

    Once something happens that it cannot follow (somebody replaced ``state.log_history`` or shortened it, or wrote to
    the file), it goes on writing lines and says no more what they stand for: then the log stays in memory, and in
    checkpoints, as a whole.
    """

    files: LogFiles
    follows: bool = True
    lines: int = 0
    _history: MutableSequence[Entry] | None = None
    #: Entries that lines stand for, and the last one of them.
    _entries: int = 0
    _last: Entry | None = None
    _evaluations: Evaluations = field(default_factory=Evaluations)
    _unwritten: list[str] = field(default_factory=list)
    _unwritten_differences: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._metrics = _GrowingFile(self.files.metrics, is_always_there=True)
        self._differences = _GrowingFile(self.files.differences, is_always_there=False)
        # A deadline's thread may save while training logs.
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        # Hashes and locks cannot be copied; a copy writes lines and leaves the rest in memory.
        return {"files": self.files}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(vars(LogRecord(**state, follows=False)))

    # ---- where it begins

    def start(self, lines: list[str], history: MutableSequence[Entry], evaluations: Evaluations) -> None:
        """Begin with these lines, which stand for all of ``history``."""
        self._metrics.start("".join(lines).encode())
        self._take(history, len(history), len(lines), evaluations)
        stand_for = [json.loads(line) for line in lines]
        forms = [stored_form(entry) for entry in history]
        is_same = same_values([entry_of(line) for line in stand_for], forms)
        self._differences.start(b"" if is_same else _difference(0, len(lines), forms).encode())

    def resume(
        self, mark: LogMark, source: LogFiles, history: MutableSequence[Entry], evaluations: Evaluations
    ) -> bool:
        """Go on behind ``mark``, of the log in ``source``; False where its files are not what was marked."""
        try:
            done = self._metrics.cut(mark.metrics, source.metrics)
            done = done and self._differences.cut(mark.differences, source.differences)
        except OSError:
            done = False
        if not done:
            return False
        self._take(history, mark.entries, mark.lines, evaluations)
        return True

    def _take(self, history: MutableSequence[Entry], entries: int, lines: int, evaluations: Evaluations) -> None:
        self._evaluations = evaluations
        self.follows, self._history, self._entries, self.lines = True, history, entries, lines
        self._last = history[entries - 1] if entries else None
        self._unwritten.clear()
        self._unwritten_differences.clear()

    # ---- while the run goes on

    def add(self, line: Entry, state: TrainerState) -> None:
        """Write a line for what ``state.log_history`` got since the last one. ``OSError`` where the disk refuses:
        then the line waits for the next attempt."""
        with self._lock:
            if self.follows:
                self._follow(line, state)
            self._unwritten.append(json.dumps(line) + "\n")
            self.lines += 1
            self._write()
            self._lighten(state)

    def _lose_track(self) -> None:
        self.follows = False
        if isinstance(self._history, LongLog):
            self._history.is_lost = True

    def _follow(self, line: Entry, state: TrainerState) -> None:
        history = state.log_history
        count = len(history)
        self.follows = history is self._history and count >= self._entries
        if not self.follows or (self._entries and history[self._entries - 1] is not self._last):
            self.follows = False
            return
        new = history[self._entries : count]
        if len(new) != 1 or not same_values(entry_of(line), new[0]):
            forms = [stored_form(entry) for entry in new]
            if not same_values([entry_of(json.loads(json.dumps(line)))], forms):
                self._unwritten_differences.append(_difference(self.lines, self.lines + 1, forms))
        self._evaluations.see(self._entries, new, state.best_global_step)
        self._entries, self._last = count, history[count - 1] if count else None

    def _write(self) -> None:
        is_as_known = True
        if self._unwritten_differences and self.follows:
            is_as_known = self._differences.append("".join(self._unwritten_differences).encode())
        self._unwritten_differences.clear()
        is_as_known &= self._metrics.append("".join(self._unwritten).encode())
        self._unwritten.clear()
        if not is_as_known:
            self._lose_track()

    def _lighten(self, state: TrainerState) -> None:
        """Let older entries leave memory, half of what may be there at once."""
        history = state.log_history
        if not self.follows or self._unwritten or len(history) != self._entries:
            return
        if isinstance(history, LongLog):
            if len(history.recent) > KEPT_IN_MEMORY:
                history.let_go(KEPT_IN_MEMORY // 2)
        elif type(history) is list and len(history) > KEPT_IN_MEMORY:
            log = LongLog(self.files, 0, list(history))
            log.let_go(KEPT_IN_MEMORY // 2)
            state.log_history = self._history = log

    # ---- for checkpoints

    def mark(self, history: MutableSequence[Entry]) -> tuple[LogMark, Evaluations] | None:
        """Return how much of ``history`` is on disk, and the evaluations in that; None where it is not known."""
        with self._lock:
            is_known = self.follows and history is self._history and not self._unwritten
            if not is_known or len(history) < self._entries:
                return None
            metrics, differences = self._metrics.mark(), self._differences.mark()
            if metrics is None or differences is None:
                self._lose_track()
                return None
            return LogMark(self._entries, self.lines, metrics, differences), copy.copy(self._evaluations)


def stored_form(entry: Entry) -> Entry:
    """Return an entry as a checkpoint holds it: in JSON, without secrets."""
    return json.loads(json.dumps(redacted_values(plain_values(entry), certain=True)))


def _difference(start: int, end: int, forms: list[Entry]) -> str:
    return json.dumps({"from": start, "to": end, "entries": forms}) + "\n"


def _copy_beginning(source: Path, target: Path, size: int) -> None:
    with os.fdopen(open_regular(source), "rb") as given, replacing(target) as file:
        while size > 0 and (block := given.read(min(size, _BLOCK))):
            file.write(block)
            size -= len(block)
