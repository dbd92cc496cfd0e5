"""A file of one JSON object a line in the run directory, each with its ``step``; written by callbacks."""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import Any

from trainwright.config.secrets import redacted_values
from trainwright.core.files import append_text, open_regular, replace_text
from trainwright.core.json_values import plain_values

logger = logging.getLogger("trainwright")

#: Bytes; what comes beyond is left out, and that is said once.
MOST = 64 * 2**20


class StepLines:
    """Lines that a run adds to ``path``; they go where its log goes when it starts anew or goes back.

    >>> import tempfile
    >>> lines = StepLines(Path(tempfile.mkdtemp()) / "samples.jsonl")
    >>> for step in (1, 2):
    ...     lines.add({"step": step})
    >>> lines.begin(1)
    >>> lines.path.read_text()
    '{"step": 1}\\n'
    """

    def __init__(self, path: Path, most: int = MOST) -> None:
        self.path, self.most = path, most
        self._was_told = False
        #: The newest step that was added.
        self._newest = 0

    def begin(self, step: int) -> None:
        """Drop lines of later steps than ``step``, and all of them at 0: another run wrote those."""
        try:
            if not step:
                self.path.unlink(missing_ok=True)
            elif self.path.is_file():
                with os.fdopen(open_regular(self.path), "rb") as file:
                    lines = file.read(self.most + 1).splitlines()
                kept = [line for line in lines if _step_of(line) <= step]
                if len(kept) < len(lines):
                    replace_text(self.path, "".join(f"{line.decode('utf-8', 'replace')}\n" for line in kept))
        except OSError as error:
            self._tell(f"{self.path.name} could not be read: {error.strerror}")

    def add(self, *entries: dict[str, Any]) -> None:
        """Write ``entries``, all of one step; a full disk does not end a training.

        After a rewind a step comes again: the lines from there on belong to a course that was given up.
        """
        step = max((one for entry in entries if type(one := entry.get("step")) is int), default=self._newest)
        if step < self._newest:
            self.begin(step - 1)
        self._newest = step
        text = "".join(f"{_text_of(entry)}\n" for entry in entries)
        try:
            if self.path.is_file() and self.path.stat().st_size + len(text) > self.most:
                self._tell(f"{self.path.name} has reached {self.most // 2**20} MiB: nothing more is added to it")
                return
            self.path.parent.mkdir(parents=True, exist_ok=True)
            append_text(self.path, text)
        except OSError as error:
            self._tell(f"{self.path.name} could not be written ({error.strerror}); training goes on")

    def _tell(self, what: str) -> None:
        if not self._was_told:
            self._was_told = True
            logger.warning("%s.", what)


def _text_of(entry: dict[str, Any]) -> str:
    return json.dumps(redacted_values(plain_values(entry, nonfinite_as_text=True), certain=True))


def _step_of(line: bytes) -> float:
    """The step of a line; one that was cut short, or says none, goes."""
    try:
        step = json.loads(line)["step"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return float("inf")
    return step if isinstance(step, int) else float("inf")


def now() -> float:
    """Seconds since 1970, as lines carry them."""
    return round(time.time(), 3)
