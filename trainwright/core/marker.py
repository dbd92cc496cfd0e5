"""``preempted.json`` in a run directory: the training there was asked to stop, and waits to be started again."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

from trainwright.config.secrets import redacted
from trainwright.core.files import replace_text

FILE = "preempted.json"
logger = logging.getLogger("trainwright")


def mark_preempted(folder: str | Path, *, reason: str, step: int, checkpoint: str | None, code: int) -> None:
    """Leave the marker for schedulers and people; a disk that refuses it must not change how the run ends.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> mark_preempted(folder, reason="SIGTERM", step=40, checkpoint="checkpoint-40", code=75)
    >>> json.loads((Path(folder) / FILE).read_text())["checkpoint"]
    'checkpoint-40'
    >>> clear_marker(folder)
    """
    content = {
        "reason": redacted(reason),
        "step": step,
        "checkpoint": checkpoint,
        "code": code,
        "time": round(time.time(), 3),
    }
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        replace_text(Path(folder) / FILE, json.dumps(content, indent=2) + "\n")
    except OSError as error:
        logger.warning("%s could not be written: %s.", FILE, error)


def clear_marker(folder: str | Path) -> None:
    """A training begins in ``folder``: what was said about the last one no longer holds."""
    try:
        (Path(folder) / FILE).unlink(missing_ok=True)
    except OSError as error:
        logger.warning("%s could not be removed: %s.", FILE, error)
