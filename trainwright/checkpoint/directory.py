"""Checkpoint folders of a run: which there are, which is newest, which may go."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

PREFIX = "checkpoint"
_NAME = re.compile(rf"^{PREFIX}-(\d+)$")


def checkpoint_path(run_directory: str | Path, step: int) -> Path:
    return Path(run_directory) / f"{PREFIX}-{step}"


def list_checkpoints(run_directory: str | Path) -> list[Path]:
    """Checkpoints of a run, oldest step first; a folder counts only once its ``trainer_state.json`` is there."""
    root = Path(run_directory)
    if not root.is_dir():
        return []
    found = [(int(m.group(1)), p) for p in root.iterdir() if (m := _NAME.match(p.name)) and p.is_dir()]
    return [path for _, path in sorted(found) if (path / "trainer_state.json").is_file()]


def get_last_checkpoint(folder: str | Path) -> str | None:
    """Path of the newest checkpoint in ``folder``, or None.

    >>> get_last_checkpoint("no-such-run") is None
    True
    """
    found = list_checkpoints(folder)
    return str(found[-1]) if found else None


def write_whole(target: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` fill a folder beside ``target`` and rename it into place: whole, or not there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = target.with_name(f".{target.name}.writing")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    try:
        write(staging)
        if target.exists():
            # The same step saved again (a resumed run): move the old one aside so that the name is never missing long.
            old = target.with_name(f".{target.name}.replaced")
            shutil.rmtree(old, ignore_errors=True)
            os.replace(target, old)
            os.replace(staging, target)
            shutil.rmtree(old)
        else:
            os.replace(staging, target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def rotate(run_directory: str | Path, limit: int | None, *keep: str | Path | None) -> list[Path]:
    """Delete the oldest checkpoints beyond ``limit``, never those in ``keep``; returns them.

    ``keep`` names the one just written, since the highest step may be left over from another run in the same place.
    """
    if limit is None or limit <= 0:
        return []
    found = list_checkpoints(run_directory)
    pinned = {Path(path).resolve() for path in keep if path is not None}
    removable = [path for path in found if path.resolve() not in pinned]
    surplus = removable[: max(0, len(found) - limit)]
    for path in surplus:
        shutil.rmtree(path)
    return surplus
