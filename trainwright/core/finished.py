"""``finished.json`` in a run directory: the training there came to its end, and where that was."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from pathlib import Path
from typing import Any, NamedTuple

from trainwright.config.secrets import redacted
from trainwright.core.files import replace_text
from trainwright.core.json_files import read_json

FILE = "finished.json"
logger = logging.getLogger("trainwright")


class Finished(NamedTuple):
    """How a training ended."""

    step: int
    max_steps: int
    #: Why it ended before ``max_steps``, and the class of the callback that ended it, if it did.
    reason: str | None = None
    by: str | None = None
    #: Whether the finished model was written too, where that is for the one who trains to do (``trainwright train``).
    has_model: bool = False

    @property
    def words(self) -> str:
        """For people.

        >>> Finished(210, 300, "eval_loss has not improved since step 150").words
        'finished at step 210 of 300: eval_loss has not improved since step 150'
        """
        early = "" if self.reason is None else f": {self.reason}"
        of = f" of {self.max_steps}" if self.step <= self.max_steps else f", and {self.max_steps} were asked for,"
        return f"finished at step {self.step}{of}{early}"


def mark_finished(folder: Path, end: Finished) -> None:
    """Say that the training in ``folder`` is over; a disk that refuses it must not change how the run ends."""
    reason = None if end.reason is None else redacted(end.reason)
    content: dict[str, Any] = {**end._asdict(), "reason": reason, "time": round(time.time(), 3)}
    try:
        replace_text(folder / FILE, json.dumps(content, indent=2) + "\n", forced=True)
    except OSError as error:
        logger.warning("%s could not be written: %s.", FILE, error)


def clear_finished(folder: Path) -> None:
    """Take the word back: the training goes on, or another begins."""
    with contextlib.suppress(OSError):
        (folder / FILE).unlink(missing_ok=True)


def read_finished(folder: Path) -> Finished | None:
    """How the training in ``folder`` ended; None where it did not, or nothing says so."""
    try:
        stored = read_json(folder / FILE, 2**20)
    except (OSError, ValueError):
        return None
    if not isinstance(stored, dict) or not all(type(stored.get(name)) is int for name in ("step", "max_steps")):
        return None
    reason, by = (found if isinstance(found := stored.get(name), str) else None for name in ("reason", "by"))
    return Finished(stored["step"], stored["max_steps"], reason, by, stored.get("has_model") is True)
