"""The log of a run in its checkpoints: the newest entries, and where the others are.

``trainer_state.json`` holds whole logs up to :data:`KEPT` entries. Of a longer one it holds the newest, after the last
evaluation and that of the best model; ``log.json`` says how much of the run's ``metrics.jsonl`` comes before them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, MutableSequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from trainwright.checkpoint.manifest import holds
from trainwright.core.json_files import read_json
from trainwright.core.log_history import (
    DIFFERENCES,
    KEPT_IN_MEMORY,
    METRICS,
    Entry,
    EvaluationCount,
    LogFiles,
    LogUnreadable,
    LongLog,
    continues,
    is_evaluation,
)
from trainwright.core.log_record import FileMark, LogMark
from trainwright.core.state import TrainerState

LOG = "log.json"
#: The newest entries that a checkpoint holds: as many as most runs ever log. They take about 10 ms of each save, in the
#: background.
KEPT = 1000


class StoredLog(NamedTuple):
    """What ``log.json`` says."""

    mark: LogMark
    #: ``trainer_state.json`` holds this many evaluations from before ``first``, then all entries from there on.
    evaluations_before: int
    first: int
    #: Evaluations in the whole log.
    evaluations: int

    @property
    def is_needed(self) -> bool:
        """Return True when the checkpoint does not hold the whole log."""
        return self.first > 0

    def text(self) -> str:
        files = {METRICS: self.mark.metrics._asdict(), DIFFERENCES: self.mark.differences._asdict()}
        numbers = {"entries": self.mark.entries, "lines": self.mark.lines, "first": self.first}
        counts = {"evaluations_before": self.evaluations_before, "evaluations": self.evaluations}
        return json.dumps({**numbers, **counts, "files": files}, indent=2, sort_keys=True) + "\n"


class LogKeeper:
    """Chooses what a checkpoint holds of the log; looks at each entry once, however many checkpoints there are."""

    def __init__(self) -> None:
        self._newest: Entry | None = None
        self._seen = 0
        self._last: tuple[int, Entry] | None = None
        self._best: tuple[int, Entry] | None = None
        self.evaluations = EvaluationCount()

    def kept(self, state: TrainerState, mark: LogMark) -> tuple[list[Entry], StoredLog]:
        """Return the entries for ``trainer_state.json``, and what is to be known of the others."""
        history = state.log_history
        count = len(history)
        self._look(state, count)
        # What is not on disk yet is in the checkpoint in any case.
        first = max(0, min(mark.entries, count - KEPT))
        found = [pair for pair in (self._best, self._last) if pair is not None and pair[0] < first]
        before = [entry for _, entry in sorted(dict(found).items())]
        stored = StoredLog(mark, len(before), first, self.evaluations.read(history))
        return [*before, *history[first:count]], stored

    def _look(self, state: TrainerState, count: int) -> None:
        history = state.log_history
        if not continues(history, self._seen, self._newest):
            self._seen, self._last, self._best = 0, None, None
        if self._best is not None and self._best[1].get("step") != state.best_global_step:
            self._best = None
        for index, entry in enumerate(history[self._seen : count], self._seen):
            if is_evaluation(entry):
                self._last = (index, entry)
                if entry.get("step") == state.best_global_step:
                    self._best = (index, entry)
        self._seen, self._newest = count, history[count - 1] if count else None

    def resume(self, history: MutableSequence[Entry], stored: StoredLog, before: list[Entry]) -> None:
        """Take up what an earlier process has seen."""
        self.evaluations.resume(history, stored.evaluations)
        # What the checkpoint holds is looked at again.
        is_in_memory = 0 < stored.first and not isinstance(history, LongLog)
        self._seen, self._newest = stored.first, history[stored.first - 1] if is_in_memory else None
        # Of their places it counts only that they come before what the checkpoint holds.
        places = [(stored.first - len(before) + number, entry) for number, entry in enumerate(before)]
        self._best, self._last = (places[0], places[-1]) if places else (None, None)


def read_stored_log(checkpoint: Path) -> StoredLog | None:
    """Return what a checkpoint says of the log that it does not hold; None where it holds all of it."""
    if not holds(checkpoint, LOG):
        return None
    said = read_json(checkpoint / LOG)
    metrics, differences = (FileMark(**said["files"][name]) for name in (METRICS, DIFFERENCES))
    mark = LogMark(said["entries"], said["lines"], metrics, differences)
    return StoredLog(mark, said["evaluations_before"], said["first"], said["evaluations"])


def find_log(stored: StoredLog, folders: Iterable[Path]) -> LogFiles | None:
    """Return the files in the first folder whose log begins as the checkpoint says."""
    # Somebody's code may change the working directory before it is read.
    places = (LogFiles(folder.absolute()) for folder in folders)
    return next((files for files in places if stored.mark.is_in(files)), None)


def whole_history(
    stored: StoredLog, files: LogFiles, kept: MutableSequence[Entry], *, in_memory: int | None = None
) -> MutableSequence[Entry]:
    """Return ``log_history`` as it was when the checkpoint was saved.

    Raises :class:`LogUnreadable` where the files do not hold it.
    """
    newest = list(kept[stored.evaluations_before :])
    if stored.first + len(newest) > (KEPT_IN_MEMORY if in_memory is None else in_memory):
        return LongLog(files, stored.first, newest)
    older = list(islice(files.entries(), stored.first))
    if len(older) < stored.first:
        raise LogUnreadable(files.metrics)
    return [*older, *newest]
