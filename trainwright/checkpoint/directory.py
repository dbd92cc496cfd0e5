"""Checkpoint folders of a run: which there are, which is newest and good, which may go."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

from trainwright.checkpoint.durable import delete_folder, discard, sync_folder
from trainwright.checkpoint.manifest import DamagedCheckpoint, has_manifest, problems_of

logger = logging.getLogger("trainwright")

PREFIX = "checkpoint"
_NAME = re.compile(rf"^{PREFIX}-(\d+)$")
_LEFTOVER = re.compile(rf"^\.{PREFIX}-(\d+)\.(writing|deleting|replaced)$")


def checkpoint_path(run_directory: str | Path, step: int) -> Path:
    return Path(run_directory) / f"{PREFIX}-{step}"


def step_of(checkpoint: Path) -> int:
    """The step in a checkpoint's name."""
    match = _NAME.match(checkpoint.name)
    return int(match.group(1)) if match else -1


def list_checkpoints(run_directory: str | Path) -> list[Path]:
    """Checkpoints of a run, oldest step first; only folders that carry a manifest, so never a half-written one."""
    root = Path(run_directory)
    if not root.is_dir():
        return []
    found = [path for path in root.iterdir() if _NAME.match(path.name) and path.is_dir() and has_manifest(path)]
    return sorted(found, key=step_of)


def get_last_checkpoint(folder: str | Path) -> str | None:
    """Path of the newest checkpoint in ``folder`` whose files are what was written, or None.

    >>> get_last_checkpoint("no-such-run") is None
    True
    """
    found = newest_good(folder)
    return None if found is None else str(found)


def newest_good(run_directory: str | Path) -> Path | None:
    """The newest checkpoint that verifies; damaged ones are named in the log and passed over."""
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


def _leftovers(root: Path) -> Iterator[tuple[Path, int, str]]:
    for path in sorted(root.iterdir()):
        match = _LEFTOVER.match(path.name)
        if match and (path.is_dir() or path.is_symlink()):
            yield path, int(match.group(1)), match.group(2)


def rotate(
    run_directory: str | Path,
    limit: int | None,
    *pinned: str | Path | None,
    keep_every: int | None = None,
) -> list[Path]:
    """Delete the oldest checkpoints beyond ``limit``; returns them.

    Never those ``pinned`` (the one just written, the best), nor those at multiples of ``keep_every``, which do not
    count towards the limit. What carries no manifest is not ours to delete.
    """
    if limit is None or limit <= 0:
        return []
    found = [path for path in list_checkpoints(run_directory) if not keep_every or step_of(path) % keep_every]
    kept = {Path(path).resolve() for path in pinned if path is not None}
    removable = [path for path in found if path.resolve() not in kept]
    surplus = removable[: max(0, len(found) - limit)]
    for path in surplus:
        delete_folder(path)
    return surplus
