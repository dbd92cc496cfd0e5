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
    Evaluations,
    LogFiles,
    LogUnreadable,
    LongLog,
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


def kept_of(state: TrainerState, mark: LogMark, evaluations: Evaluations) -> tuple[list[Entry], StoredLog]:
    """Return the entries for ``trainer_state.json``, and what is to be known of the others.

    ``evaluations`` are those among the entries that are on disk; later ones are added to them.
    """
    history = state.log_history
    count = len(history)
    evaluations.see(mark.entries, history[mark.entries : count], state.best_global_step)
    # What is not on disk yet is in the checkpoint in any case.
    first = max(0, min(mark.entries, count - KEPT))
    before = evaluations.before(first)
    return [*before, *history[first:count]], StoredLog(mark, len(before), first, evaluations.count)


def evaluations_of(
    stored: StoredLog, kept: MutableSequence[Entry], best_step: int | None, *, is_whole: bool
) -> Evaluations:
    """Return the evaluations of a log of which a checkpoint holds ``kept``; unless ``is_whole`` the rest is lost."""
    found = Evaluations()
    found.see(stored.first - stored.evaluations_before if is_whole else 0, kept, best_step)
    found.count = stored.evaluations
    return found


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
