"""Checkpoint folders of a run: which there are, which is newest and good, which may go.

A folder belongs to one run at a time, the one that ``run.json`` names. Checkpoints of other runs that are found in it
are never taken, counted or deleted; a new run moves them into ``previous-<id>``.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from trainwright.checkpoint.durable import delete_folder, discard
from trainwright.checkpoint.identity import Owner, RunIdentity, read_owner
from trainwright.checkpoint.manifest import DamagedCheckpoint, has_manifest, problems_of, run_of
from trainwright.core.fsync import sync_folder

logger = logging.getLogger("trainwright")

PREFIX = "checkpoint"
PREVIOUS = "previous"
_NAME = re.compile(rf"^{PREFIX}-(\d+)$")
_LEFTOVER = re.compile(rf"^\.{PREFIX}-(\d+)\.(writing|deleting|replaced)$")


def checkpoint_path(run_directory: str | Path, step: int) -> Path:
    return Path(run_directory) / f"{PREFIX}-{step}"


def step_of(checkpoint: Path) -> int:
    """The step in a checkpoint's name."""
    match = _NAME.match(checkpoint.name) or _LEFTOVER.match(checkpoint.name)
    return int(match.group(1)) if match else -1


def all_checkpoints(run_directory: str | Path) -> list[Path]:
    """Checkpoints in a folder, of whichever run, lowest step first; only folders that carry a manifest."""
    root = Path(run_directory)
    if not root.is_dir():
        return []
    found = [path for path in root.iterdir() if _is_checkpoint(path) and path.is_dir() and has_manifest(path)]
    return sorted(found, key=step_of)


def _is_checkpoint(path: Path) -> bool:
    if _NAME.match(path.name):
        return True
    match = _LEFTOVER.match(path.name)
    if match is None or match.group(2) != "replaced":
        return False
    # A kill between the two renames of a save left it under this name; the next training puts it back.
    return not checkpoint_path(path.parent, int(match.group(1))).exists()


def list_checkpoints(run_directory: str | Path) -> list[Path]:
    """Checkpoints of the run that a folder belongs to, lowest step first; never a half-written one.

    One whose manifest cannot be read is among them: it is named when a good one is looked for.
    """
    writers = {path: run_of(path) for path in all_checkpoints(run_directory)}
    owner = owner_of(run_directory, writers.values())
    return [path for path, run in writers.items() if owner.wrote(run) or (run is None and _is_damaged(path))]


def owner_of(run_directory: str | Path, writers: Iterable[RunIdentity | None]) -> Owner:
    """The run that a folder belongs to; where nothing says it, that of the ``writers`` which was started last."""
    named = read_owner(Path(run_directory))
    if named is not None:
        return named
    last = max((run for run in writers if run is not None), key=lambda run: run.began, default=None)
    return Owner(RunIdentity.new(), owns_unnamed=True) if last is None else Owner(last)


def _is_damaged(path: Path) -> bool:
    return bool(problems_of(path, hashes=False))


def get_last_checkpoint(folder: str | Path) -> str | None:
    """Path of the newest checkpoint in ``folder`` whose files are what was written, or None.

    >>> get_last_checkpoint("no-such-run") is None
    True
    """
    found = newest_good(folder)
    return None if found is None else str(found)


def newest_good(run_directory: str | Path) -> Path | None:
    """The newest checkpoint of the run that verifies; damaged ones are named in the log and passed over."""
    for path in reversed(list_checkpoints(run_directory)):
        problems = problems_of(path)
        if not problems:
            return path
        logger.warning("%s", DamagedCheckpoint(path, [*problems, "trying the one before it"]))
    return None


def sweep(run_directory: str | Path) -> list[str]:
    """Clear what a killed run left behind; returns the names. A checkpoint caught between two names is put back."""
    root = Path(run_directory)
    if not root.is_dir():
        return []
    swept = []
    for path, step, kind in _leftovers(root):
        target = checkpoint_path(root, step)
        if kind == "replaced" and not target.exists() and has_manifest(path):
            os.rename(path, target)
            sync_folder(root)
        else:
            discard(path)
        swept.append(path.name)
    return swept


def put_back(checkpoint: Path) -> Path:
    """Where a checkpoint is that :func:`sweep` has put back since its path was found out."""
    match = _LEFTOVER.match(checkpoint.name)
    if match is None or checkpoint.exists():
        return checkpoint
    return checkpoint_path(checkpoint.parent, int(match.group(1)))


def _leftovers(root: Path) -> Iterator[tuple[Path, int, str]]:
    for path in sorted(root.iterdir()):
        match = _LEFTOVER.match(path.name)
        if match and (path.is_dir() or path.is_symlink()):
            yield path, int(match.group(1)), match.group(2)


def set_aside_others(run_directory: str | Path, owner: Owner, last_step: int | None = None) -> dict[Path, list[str]]:
    """Move checkpoints that are not of ``owner``'s run into ``previous-<id>``; returns what went where.

    With ``last_step`` also those of the run that come after it: the run was resumed there and takes another course.
    """
    moved: dict[Path, list[str]] = {}
    for path in all_checkpoints(run_directory):
        is_later = last_step is not None and step_of(path) > last_step
        if is_later or not owner.wrote(run_of(path)):
            moved.setdefault(set_aside(path).parent, []).append(path.name)
    return moved


def set_aside(checkpoint: Path) -> Path:
    """Move a checkpoint of another run into ``previous-<id>`` beside it; returns where it is now."""
    run = run_of(checkpoint)
    name = f"{PREVIOUS}-{'unknown' if run is None else run.id}"
    number = 1
    folder = checkpoint.with_name(name)
    # A link may lead anywhere.
    while (target := checkpoint_path(folder, step_of(checkpoint))).exists() or folder.is_symlink():
        number += 1
        folder = checkpoint.with_name(f"{name}-{number}")
    folder.mkdir(exist_ok=True)
    os.rename(checkpoint, target)
    sync_folder(folder)
    sync_folder(checkpoint.parent)
    return target


def rotate(
    run_directory: str | Path,
    owner: Owner,
    limit: int | None,
    *pinned: str | Path | None,
    keep_every: int | None = None,
) -> list[Path]:
    """Delete the oldest checkpoints of ``owner``'s run beyond ``limit``; returns them.

    Never those ``pinned`` (the one just written, the best), nor those at multiples of ``keep_every``, which do not
    count towards the limit. What another run wrote, is damaged or carries no manifest is not ours to delete.
    """
    if limit is None or limit <= 0:
        return []
    own = [path for path in all_checkpoints(run_directory) if owner.wrote(run_of(path)) and not _is_damaged(path)]
    found = [path for path in own if not keep_every or step_of(path) % keep_every]
    kept = {Path(path).resolve() for path in pinned if path is not None}
    removable = [path for path in found if path.resolve() not in kept]
    surplus = removable[: max(0, len(found) - limit)]
    for path in surplus:
        delete_folder(path)
    return surplus
