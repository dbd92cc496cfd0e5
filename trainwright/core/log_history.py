"""The log of a run: where its entries lie on disk, and ``log_history`` of a run too long to keep in memory.

metrics.jsonl        one line for each entry of ``log_history``, as callbacks left it: what people and trackers see
log_history.jsonl    only where a line says something else than its entry (a Monitor hides a value, a callback adds
                     one): the entries that lines from ``from`` up to ``to`` stand for
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Iterator, MutableSequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, overload

from trainwright.core.files import open_regular
from trainwright.core.json_values import with_nonfinite

METRICS = "metrics.jsonl"
DIFFERENCES = "log_history.jsonl"
#: Entries that stay in memory; beyond them older ones are read from disk. About 50 MB.
KEPT_IN_MEMORY = 100_000
#: Entries in which a resumed run looks for the step of its last evaluation.
_LOOKED_AT = 100

Entry = dict[str, Any]


class LogUnreadable(OSError):
    """The files of a log are gone, or are not what was written."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.EIO, "older entries of log_history are not there any more", str(path))


def entry_of(line: Entry) -> Entry:
    """Return the entry of ``log_history`` that a line of ``metrics.jsonl`` stands for.

    >>> entry_of({"step": 3, "time": 1.5, "loss": "nan"})
    {'loss': nan, 'step': 3}
    """
    entry = {name: with_nonfinite(value) for name, value in line.items() if name not in ("step", "time")}
    return {**entry, "step": line["step"]} if "step" in line else entry


class _Difference(NamedTuple):
    """Lines ``start`` up to ``end`` stand for ``entries``."""

    start: int
    end: int
    entries: list[Entry]


class LogFiles(NamedTuple):
    """The two files of a log."""

    folder: Path

    @property
    def metrics(self) -> Path:
        return self.folder / METRICS

    @property
    def differences(self) -> Path:
        return self.folder / DIFFERENCES

    @property
    def both(self) -> tuple[Path, Path]:
        return self.metrics, self.differences

    def entries(self) -> Iterator[Entry]:
        """Yield all entries from the first one on; :class:`LogUnreadable` where the files end or make no sense."""
        try:
            yield from self._entries()
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise LogUnreadable(self.metrics) from error

    def _entries(self) -> Iterator[Entry]:
        differences = self._differences()
        ahead = next(differences, None)
        skipped_to = 0
        with os.fdopen(open_regular(self.metrics), "rb") as lines:
            for number, line in enumerate(lines):
                while ahead is not None and ahead.start == number:
                    yield from ahead.entries
                    skipped_to, ahead = max(skipped_to, ahead.end), next(differences, None)
                if number >= skipped_to:
                    yield entry_of(json.loads(line))

    def _differences(self) -> Iterator[_Difference]:
        if not self.differences.exists():
            return
        with os.fdopen(open_regular(self.differences), "rb") as lines:
            for line in lines:
                found = json.loads(line)
                yield _Difference(found["from"], found["to"], found["entries"])


class LongLog(MutableSequence[Entry]):
    """``log_history`` of a long run: a sequence whose older entries are read from disk whenever they are asked for.

    ``len``, ``[-1]``, ``append`` and the newest entries cost nothing; a look at older ones, or at all of them, reads
    the run's ``metrics.jsonl``. ``list(state.log_history)`` is a list of everything.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, files: LogFiles, older: int, recent: list[Entry]) -> None:
        self._files = files
        #: How many entries are on disk only, and those after them.
        self._older = older
        self._recent = recent
        #: The files are known not to be those that it was written to.
        self.is_lost = False

    @property
    def older(self) -> int:
        """How many entries are on disk only."""
        return self._older

    @property
    def recent(self) -> list[Entry]:
        """The newest entries, which are in memory."""
        return self._recent

    def let_go(self, keep: int) -> None:
        """Keep the newest ``keep`` entries in memory; whoever calls knows that all others are on disk."""
        gone = max(0, len(self._recent) - keep)
        del self._recent[:gone]
        self._older += gone

    def copy(self) -> LongLog:
        """Return the log as it is now: what is appended later is not in it."""
        twin = LongLog(self._files, self._older, list(self._recent))
        twin.is_lost = self.is_lost
        return twin

    __copy__ = copy

    def append(self, value: Entry) -> None:
        self._recent.append(value)

    def insert(self, index: int, value: Entry) -> None:
        place = max(0, len(self) + index) if index < 0 else min(index, len(self))
        self._in_memory(place).insert(place - self._older, value)

    def __len__(self) -> int:
        return self._older + len(self._recent)

    def __iter__(self) -> Iterator[Entry]:
        yield from self._from_disk()
        yield from self._recent

    def __reversed__(self) -> Iterator[Entry]:
        yield from reversed(self._recent)
        yield from reversed(list(self._from_disk()))

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> list[Entry]: ...
    def __getitem__(self, index: int | slice) -> Entry | list[Entry]:
        if isinstance(index, slice):
            return self._slice(range(len(self))[index])
        place = _place(index, len(self))
        if place >= self._older:
            return self._recent[place - self._older]
        return next(islice(self._from_disk(), place, None))

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, slice):
            self._in_memory(0)[index] = value
            return
        place = _place(index, len(self))
        self._in_memory(place)[place - self._older] = value

    def __delitem__(self, index: int | slice) -> None:
        places = range(len(self))[index] if isinstance(index, slice) else [_place(index, len(self))]
        recent = self._in_memory(min(places, default=len(self)))
        for place in sorted(places, reverse=True):
            del recent[place - self._older]

    def clear(self) -> None:
        self._older = 0
        self._recent.clear()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (list, LongLog)):
            return NotImplemented
        return len(self) == len(other) and all(one == two for one, two in zip(self, other, strict=True))

    def __add__(self, other: Iterable[Entry]) -> list[Entry]:
        return [*self, *other]

    def __repr__(self) -> str:
        return f"<log of {len(self)} entries, {self._older} of them in {self._files.metrics}>"

    def _slice(self, places: range) -> list[Entry]:
        if not places:
            return []
        if min(places) >= self._older:
            return [self._recent[place - self._older] for place in places]
        wanted = set(places)
        found = {place: entry for place, entry in enumerate(islice(self, max(places) + 1)) if place in wanted}
        return [found[place] for place in places]

    def _from_disk(self) -> Iterator[Entry]:
        found = 0
        if self._older and self.is_lost:
            raise LogUnreadable(self._files.metrics)
        for entry in islice(self._files.entries(), self._older):
            found += 1
            yield entry
        if found < self._older:
            raise LogUnreadable(self._files.metrics)

    def _in_memory(self, place: int) -> list[Entry]:
        """Return the entries in memory, among them that at ``place``: what is changed there must not be on disk."""
        if place < self._older:
            self._recent[:0] = list(self._from_disk())
            self._older = 0
        return self._recent


def _place(index: int, length: int) -> int:
    try:
        return range(length)[index]
    except IndexError:
        raise IndexError("log_history index out of range") from None


def is_evaluation(entry: Entry) -> bool:
    """Return True for the numbers of an evaluation."""
    return any(str(name).startswith("eval_") for name in entry)


class Evaluations:
    """Evaluations of a log as they come: how many, the last one, and that of the best model."""

    def __init__(self) -> None:
        #: Steps at which something named ``eval_`` was logged.
        self.count = 0
        #: Place in the log, and entry.
        self.last: tuple[int, Entry] | None = None
        self.best: tuple[int, Entry] | None = None

    def see(self, first: int, entries: Iterable[Entry], best_step: int | None) -> None:
        """Look at the entries from place ``first`` on; the best model so far is that of ``best_step``."""
        # Which of them is the best is known after it was logged.
        self._choose(best_step)
        for place, entry in enumerate(entries, first):
            if is_evaluation(entry):
                self.count += self.last is None or self.last[1].get("step") != entry.get("step")
                self.last = (place, entry)
                self._choose(best_step)

    def _choose(self, best_step: int | None) -> None:
        if self.last is not None and self.last[1].get("step") == best_step:
            self.best = self.last
        elif self.best is not None and self.best[1].get("step") != best_step:
            self.best = None

    def before(self, place: int) -> list[Entry]:
        """Return the last and the best one, where they stand before ``place``."""
        found = [pair for pair in (self.best, self.last) if pair is not None and pair[0] < place]
        return [entry for _, entry in sorted(dict(found).items())]


def continues(history: MutableSequence[Entry], seen: int, newest: Entry | None) -> bool:
    """Return True when ``history`` begins with the ``seen`` entries of an earlier look, of which this was the newest.

    Asked by an entry, since to keep the list would keep all that has left memory meanwhile.
    """
    if not seen or len(history) < seen:
        return not seen
    is_on_disk = isinstance(history, LongLog) and seen <= history.older
    return is_on_disk or history[seen - 1] is newest


class EvaluationCount:
    """Counts evaluations in a log, looking at each entry once: steps at which something named ``eval_`` was logged."""

    def __init__(self) -> None:
        self.count = 0
        self._newest: Entry | None = None
        self._seen = 0
        self._last_step: object = None

    def read(self, history: MutableSequence[Entry]) -> int:
        """Return how many there are in ``history``."""
        if not continues(history, self._seen, self._newest):
            self.count, self._seen, self._last_step = 0, 0, None
        for entry in _known(history, self._seen):
            if is_evaluation(entry) and entry.get("step") != self._last_step:
                self.count, self._last_step = self.count + 1, entry.get("step")
        self._take(history)
        return self.count

    def _take(self, history: MutableSequence[Entry]) -> None:
        self._seen, self._newest = len(history), history[-1] if history else None

    def resume(self, history: MutableSequence[Entry], count: int) -> None:
        """Take ``history`` as one with ``count`` evaluations, without looking through it."""
        self.count = count
        self._take(history)
        evaluated = (entry.get("step") for entry in reversed(history[-_LOOKED_AT:]) if is_evaluation(entry))
        self._last_step = next(evaluated, None)


def _known(history: MutableSequence[Entry], seen: int) -> list[Entry]:
    """Return the entries after the first ``seen``, or those of them that can be read."""
    try:
        return list(history[seen:])
    except LogUnreadable:
        return history.recent if isinstance(history, LongLog) else []
