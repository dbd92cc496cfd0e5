"""The newest lines of a run's log and events, in the order of time, and those that come: ``trainwright tail``."""

from __future__ import annotations

import heapq
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from trainwright.callbacks.wording import log_line
from trainwright.core.files import open_regular
from trainwright.core.json_values import plain_values
from trainwright.core.state import TrainerState
from trainwright.report.lines import Entry, number
from trainwright.report.state import RunState, state_of
from trainwright.report.stored_run import EVENTS, METRICS

#: Bytes that are read at once, and that a line is looked for in.
_MOST = 4 * 2**20
#: Bytes for each line that is asked for at the beginning.
_A_LINE = 4096
#: Characters of one line on the screen.
_LONGEST = 2000
_SECONDS_BETWEEN_LOOKS, _LOOKS_BETWEEN_STATES = 0.5, 4


class Line(NamedTuple):
    """One line of ``metrics.jsonl`` (``log``) or ``events.jsonl`` (``event``)."""

    kind: str
    #: Seconds since 1970; of a line that says nothing, those of the line before.
    time: float
    entry: Entry


class GrowingFile:
    """A file of one JSON object a line that another process writes: appended to, cut back or replaced.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "events.jsonl"
    >>> _ = path.write_text('{"time": 1, "message": "a"}\\n{"time": 2, "mess')
    >>> file = GrowingFile(path, "event")
    >>> [line.entry for line in file.new()], [line.entry for line in file.new()]
    ([{'time': 1, 'message': 'a'}], [])
    """

    def __init__(self, path: Path, kind: str, size: int = _MOST) -> None:
        self.path, self.kind = path, kind
        self._first_size = size
        self._place: tuple[int, int] | None = None
        self._offset = 0
        #: The last bytes that were read: others in their place mean another file.
        self._before = b""
        self._newest = 0.0

    def new(self) -> list[Line]:
        """Whole lines that were not there before."""
        try:
            descriptor = open_regular(self.path)
        except OSError:
            return []
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            place = status.st_dev, status.st_ino
            is_new = self._place is None
            goes_on = place == self._place and self._is_unchanged(file, status.st_size)
            self._place = place
            if not goes_on:
                self._offset = max(0, status.st_size - (self._first_size if is_new else _MOST))
                file.seek(self._offset)
                if self._offset:
                    self._offset += len(file.readline(_MOST))
            file.seek(self._offset)
            text = file.read(_MOST)
        whole = text[: text.rfind(b"\n") + 1]
        if not whole and len(text) == _MOST:
            # A line of which nobody knows the end.
            whole = text
        self._offset += len(whole)
        self._before = (self._before + whole)[-64:] if goes_on else whole[-64:]
        # What a run that went back keeps was shown before.
        return self._lines(whole, after=0.0 if goes_on or is_new else self._newest)

    def _is_unchanged(self, file: Any, size: int) -> bool:
        if size < self._offset:
            return False
        file.seek(self._offset - len(self._before))
        return file.read(len(self._before)) == self._before

    def _lines(self, text: bytes, after: float) -> list[Line]:
        found: list[Line] = []
        for line in text.splitlines():
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if not isinstance(entry, dict):
                continue
            when = number(entry.get("time"))
            is_known = when is not None and 0 <= when < 2**40
            if after and (not is_known or (when or 0.0) <= after):
                continue
            # Never back: lines of one file stay in their order.
            self._newest = max(self._newest, when or 0.0) if is_known else self._newest
            found.append(Line(self.kind, self._newest, entry))
        return found


class Tail:
    """What a run says, newest last."""

    def __init__(self, folder: Path, lines: int) -> None:
        self.folder, self._count = folder, lines
        size = min(max(lines * _A_LINE, 2**16), _MOST)
        self._files = [
            GrowingFile(folder / METRICS, "log", size),
            GrowingFile(folder / EVENTS, "event", size),
        ]

    def newest(self) -> list[Line]:
        """The last so many lines that are there."""
        found = self._merged()
        return found[max(len(found) - self._count, 0) :]

    def follow(self) -> Iterator[Line | RunState]:
        """Lines as they come, until nobody trains there any more; the run's state last."""
        looks = 0
        while True:
            state = state_of(self.folder) if looks % _LOOKS_BETWEEN_STATES == 0 else None
            # After the state: what was written before it ended is read.
            yield from self._merged()
            if state is not None and state.word != "training":
                yield state
                return
            looks += 1
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def _merged(self) -> list[Line]:
        return list(heapq.merge(*(file.new() for file in self._files), key=lambda line: line.time))


def for_people(line: Line | RunState) -> str:
    """One line for a terminal, in which nothing that a file says moves the cursor.

    >>> for_people(Line("event", 0.0, {"kind": "saved", "message": "all \\x1b[2J is well"}))
    '--:--:--  saved: all \\\\x1b[2J is well'
    """
    if isinstance(line, RunState):
        return escaped(f"{line.word}: {line.text}" if not line.text.startswith(line.word) else line.text)
    clock = time.strftime("%H:%M:%S", time.localtime(line.time)) if line.time else "--:--:--"
    entry = line.entry
    if line.kind == "event":
        return escaped(f"{clock}  {entry.get('kind', 'event')}: {entry.get('message', '')}")
    step, epoch = entry.get("step"), number(entry.get("epoch"))
    words = [f"step {step}"] if isinstance(step, int) else []
    if epoch is not None:
        words.append(f"epoch {round(epoch, 2):g}")
    numbers = {
        name: value for name, text in entry.items() if (value := number(text)) is not None and _is_shown(name, value)
    }
    return escaped(f"{clock}  {'  '.join([*words, log_line(numbers, TrainerState())])}")


def _is_shown(name: str, value: float) -> bool:
    if name.endswith("_runtime"):
        return 0 <= value < 2**40
    return name != "time" and not name.startswith("step_seconds_")


def for_programs(line: Line | RunState) -> str:
    """The same as a JSON object of one line, in the form of docs/run-commands.md."""
    if isinstance(line, RunState):
        return json.dumps({"kind": "state", "state": line.word, "message": line.text})
    entry, step = dict(line.entry), line.entry.get("step")
    entry.pop("time", None), entry.pop("step", None)
    found: dict[str, Any] = {"kind": line.kind, "time": line.time or None, "step": step if type(step) is int else None}
    if line.kind == "event":
        found |= {"event": str(entry.pop("kind", "")), "message": str(entry.pop("message", ""))}
    found["values"] = entry
    return json.dumps(plain_values(found, nonfinite_as_text=True))


def escaped(text: str) -> str:
    """``text`` with control characters spelled out, and not longer than a person reads."""
    short = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in short)
