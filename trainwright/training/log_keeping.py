"""The log through saves and resumes: a checkpoint says how much of it is on disk, a resumed run goes on from there."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, MutableSequence
from pathlib import Path
from typing import Any

from trainwright.callbacks.flow import DefaultFlowCallback
from trainwright.callbacks.run_directory import ResumedLog, RunDirectoryCallback
from trainwright.checkpoint.stored_log import (
    LOG,
    StoredLog,
    evaluations_of,
    find_log,
    kept_of,
    read_stored_log,
    whole_history,
)
from trainwright.core.log_history import Entry, LogFiles, LogUnreadable
from trainwright.core.state import TrainerState
from trainwright.training.run import TrainingRun
from trainwright.training.save_model import run_folder
from trainwright.training.setup import Setup

logger = logging.getLogger("trainwright")


def log_for_checkpoint(
    setup: Setup,
) -> tuple[MutableSequence[dict[str, Any]], dict[str, Callable[[], str]]]:
    """Return ``log_history`` as the next checkpoint holds it, and the file that says where the rest is.

    The whole of it where transformers is to read it, and where it is not known what is on disk: the run directory is
    not ours to write, or somebody's code has changed the list.
    """
    history, writer = setup.state.log_history, _writer(setup)
    is_ours = setup.args.checkpoint_format != "hf"
    record = writer.record if writer is not None and is_ours else None
    known = None if record is None else record.mark(history)
    if record is None or known is None:
        return copy.copy(history), {}
    entries, stored = kept_of(setup.state, *known)
    return entries, {LOG: stored.text}


def restore_log(run: TrainingRun, checkpoint: Path, saved: TrainerState) -> None:
    """Put the log of ``saved``, which ``checkpoint`` holds in part, together again."""
    stored = read_stored_log(checkpoint)
    if stored is None:
        return
    setup = run.setup
    files = find_log(stored, (checkpoint.parent, run_folder(setup)))
    history = _whole(stored, files, saved.log_history)
    # The same log in every process: when something is due may depend on it.
    if not all(setup.backend.gather(history is not None)):
        history = None
    writer = _writer(setup)
    if writer is not None and (history is None or files is None):
        _say_what_is_missing(run, checkpoint, stored, saved)
    is_whole = history is not None
    evaluations = evaluations_of(stored, saved.log_history, saved.best_global_step, is_whole=is_whole)
    if history is not None:
        saved.log_history = history
    for callback in setup.callbacks.everyone:
        if isinstance(callback, DefaultFlowCallback):
            callback.evaluations.resume(saved.log_history, stored.evaluations)
    if writer is not None:
        is_there = history is not None and files is not None
        writer.resumed = ResumedLog(saved.log_history, evaluations, stored.mark, files if is_there else None)


def go_back_in_log(run: TrainingRun) -> None:
    """The lines since the checkpoint that the run has gone back to belong to a course that was given up."""
    writer = _writer(run.setup)
    if writer is not None:
        writer.begin_log(run_folder(run.setup), run.setup.state)


def _writer(setup: Setup) -> RunDirectoryCallback | None:
    return next((one for one in setup.callbacks.everyone if isinstance(one, RunDirectoryCallback)), None)


def _whole(stored: StoredLog, files: LogFiles | None, kept: MutableSequence[Entry]) -> MutableSequence[Entry] | None:
    """Return the whole log; None where the checkpoint holds a part of it and the rest is not to be found."""
    if not stored.is_needed:
        return kept
    try:
        return None if files is None else whole_history(stored, files, kept)
    except LogUnreadable:
        return None


def _say_what_is_missing(run: TrainingRun, checkpoint: Path, stored: StoredLog, saved: TrainerState) -> None:
    name, metrics = checkpoint.name, LogFiles(run_folder(run.setup)).metrics
    if stored.is_needed:
        logger.warning(
            "%s holds the newest %d of %d entries of the log; metrics.jsonl with the others is not there, or was "
            "changed: log_history begins with those that are known.",
            name,
            len(saved.log_history) - stored.evaluations_before,
            stored.mark.entries,
        )
    elif metrics.is_file():
        logger.warning(
            "metrics.jsonl is not as it was when %s was saved: its lines up to step %d are kept as they are.",
            name,
            saved.global_step,
        )
    else:
        # As when a checkpoint was copied alone, or fetched from elsewhere: nothing is lost.
        logger.info("metrics.jsonl is not there: it begins with what %s holds of the log.", name)
