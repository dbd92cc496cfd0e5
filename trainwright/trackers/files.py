"""Copies of artifacts, for trackers that keep files in a folder."""

from __future__ import annotations

import shutil
from pathlib import Path


def copy(path: Path, place: Path) -> None:
    """A file or a folder, over what was there."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.copytree(path, place, dirs_exist_ok=True)
    else:
        shutil.copy2(path, place)
