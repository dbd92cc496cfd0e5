"""A run takes possession of its directory: checkpoints of other runs are set aside before it writes its first."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path

from trainwright.checkpoint.directory import PREVIOUS, set_aside_others
from trainwright.checkpoint.identity import FILE as RUN
from trainwright.checkpoint.identity import Owner, RunIdentity, read_owner, write_owner
from trainwright.checkpoint.manifest import run_of
from trainwright.core.events import RunEvents
from trainwright.core.files import open_regular, replacing
from trainwright.core.log_history import LogFiles

#: What a run notes beside its log, for its report, and how such a file begins: others may have files of that name.
NOTES = {
    "evaluation.json": re.compile(rb'\{"[^"]*": \{"step"'),
    "histograms.jsonl": re.compile(rb'\{"step"'),
    "layers.json": re.compile(rb'\{"layers"'),
    "performance.jsonl": re.compile(rb'\{"step"'),
    "profile/summary.md": re.compile(rb"# Profile of steps"),
    "samples.jsonl": re.compile(rb'\{"step"'),
    "tables.json": re.compile(rb'\{\s*"tables"'),
}


def owner_after_resume(checkpoint: Path) -> Owner:
    """The run that goes on from ``checkpoint``: the one that wrote it."""
    writer, there = run_of(checkpoint), read_owner(checkpoint.parent)
    if there is not None and there.wrote(writer):
        return there
    # Releases before 0.2 named no run.
    return Owner(RunIdentity.new(), owns_unnamed=True) if writer is None else Owner(writer)


def claim(run_directory: Path, owner: Owner, events: RunEvents, last_step: int | None = None) -> None:
    """Write down whose the folder is and move what others left there into ``previous-<id>``.

    With ``last_step`` also later checkpoints of the run itself: it was resumed from there by name, so they belong to a
    course that was given up.
    """
    try:
        run_directory.mkdir(parents=True, exist_ok=True)
        # First of all: killed right after it, the next start knows that what is there is not this run's.
        before = read_owner(run_directory)
        if before != owner:
            write_owner(run_directory, owner)
        moved = set_aside_others(run_directory, owner, last_step)
        if before is not None and before.run.id != owner.run.id:
            mark = f"{PREVIOUS}-{before.run.id}"
            # One that was killed right here has left the notes of the run before it.
            places = sorted(moved, key=lambda place: not place.name.startswith(mark))
            _put_notes_away(run_directory, places[0] if places else None)
        for place in moved:
            _keep_log(run_directory, place)
    except OSError as error:
        # Saves will meet the same error, and say so; nothing of another run is touched.
        events.record("not_claimed", f"Checkpoints of earlier runs could not be set aside: {error}.")
        return
    for place, names in moved.items():
        is_one, is_own = len(names) == 1, place.name.startswith(f"{PREVIOUS}-{owner.run.id}")
        not_ours = f"{'does' if is_one else 'do'} not belong to this run"
        given_up = f"{'comes' if is_one else 'come'} after step {last_step}, where this run goes on from"
        events.record(
            "set_aside",
            f"{', '.join(names)} {given_up if is_own else not_ours}: moved to {place}. To resume from there instead, "
            "pass that path as resume_from_checkpoint.",
            checkpoints=names,
            folder=place.name,
        )


def keep_claim(run_directory: Path, owner: Owner) -> None:
    """Say again whose the folder is, where somebody has removed it since."""
    if not (run_directory / RUN).exists():
        with contextlib.suppress(OSError):
            run_directory.mkdir(parents=True, exist_ok=True)
            write_owner(run_directory, owner)


def _put_notes_away(run_directory: Path, place: Path | None) -> None:
    """Move what the run before noted for its report to its checkpoints; of one without checkpoints nothing is left."""
    for name, begins in NOTES.items():
        source = run_directory / name
        if not _begins(source, begins):
            continue
        if place is not None:
            (place / name).parent.mkdir(exist_ok=True)
            os.replace(source, place / name)
        elif name != "tables.json":
            # Somebody's own table may have been made for the run that was killed before its first save.
            source.unlink()


def _begins(path: Path, pattern: re.Pattern[bytes]) -> bool:
    if not path.is_file():
        return False
    with os.fdopen(open_regular(path), "rb") as file:
        return pattern.match(file.read(4096)) is not None


def _keep_log(run_directory: Path, place: Path) -> None:
    """Copy the log to checkpoints that were set aside: they need it, and the run begins another or goes back in it."""
    for source, target in zip(LogFiles(run_directory).both, LogFiles(place).both, strict=True):
        if source.is_file() and not target.exists():
            with os.fdopen(open_regular(source), "rb") as given, replacing(target) as file:
                shutil.copyfileobj(given, file)
