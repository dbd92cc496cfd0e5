"""A training has its run directory to itself, or ends: taking it, and what to do when somebody else took it over."""

from __future__ import annotations

import logging
from functools import partial

from trainwright.checkpoint.run_lock import RunLock, take
from trainwright.core.errors import RunTakenOver
from trainwright.core.events import RunEvents
from trainwright.training.run import TrainingRun
from trainwright.training.save_model import run_folder
from trainwright.training.setup import Setup


def take_run_directory(setup: Setup, events: RunEvents) -> RunLock | None:
    """Take the run directory, in the process that writes; ``ValueError`` in all of them where somebody else has it."""
    lock: RunLock | None = None
    refusal: str | None = None
    if setup.args.should_save:
        try:
            lock = take(run_folder(setup), force=setup.args.take_over)
        except ValueError as error:
            refusal = str(error)
    if setup.backend.world_size > 1:
        # Whoever went on alone would wait for the others.
        refusal = next((said for said in setup.backend.gather(refusal) if said is not None), None)
    if refusal is not None:
        if lock is not None:
            lock.release()
        raise ValueError(refusal)
    if lock is not None:
        lock.when_lost = partial(_write_no_more, lock, events)
        for note in lock.notes:
            events.record(note.kind, note.message, level=note.level)
        lock.notes.clear()
    return lock


def _write_no_more(lock: RunLock, events: RunEvents) -> None:
    # The folder's record is somebody else's now.
    events.folder = None
    events.record(
        "taken_over",
        f"{lock.folder} was taken over by {lock.taken_by}: this training writes nothing more there, and ends.",
        level=logging.ERROR,
    )


def may_write(run: TrainingRun) -> bool:
    """Return False when another training has taken the run directory over."""
    return run.lock is None or run.lock.is_still_ours()


def leave_if_taken_over(run: TrainingRun) -> None:
    """Raise ``RunTakenOver`` where another training has the folder by now; in all processes, which all come here."""
    lock, backend = run.lock, run.setup.backend
    own = None if lock is None or lock.is_ours() else lock.taken_by
    who = next((said for said in backend.gather(own) if said is not None), None) if backend.world_size > 1 else own
    if who is not None:
        raise RunTakenOver(str(run_folder(run.setup)), who)
