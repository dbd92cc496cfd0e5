"""``config.yaml`` of a run directory or checkpoint: the arguments that it was written with."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import yaml

FILE = "config.yaml"
_LARGEST = 4 * 2**20


def stored_arguments(folder: Path) -> dict[str, Any] | None:
    """The arguments by name; None where there is no such file, or it is something else."""
    try:
        descriptor = os.open(folder / FILE, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        text = file.read(_LARGEST)
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError):
        return None
    return found if isinstance(found, dict) else None
