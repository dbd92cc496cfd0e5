"""What happened to a run besides its numbers: one JSON object a line in ``events.jsonl``, and a line in the log."""

from __future__ import annotations

import json
import logging
import threading
import time
from pathlib import Path
from typing import Any

from trainwright.config.secrets import redacted_values
from trainwright.core.files import append_text

logger = logging.getLogger("trainwright")

FILE = "events.jsonl"


class RunEvents:
    """Appends events to the run directory; never raises, since the disk may be what the event is about.

    >>> events = RunEvents()                      # without a directory events are kept and logged only
    >>> events.record("saved", "checkpoint-5 is on disk", step=5, level=logging.DEBUG)
    >>> [event["kind"] for event in events.recorded]
    ['saved']
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = None if folder is None else Path(folder)
        #: Events of this process, oldest first.
        self.recorded: list[dict[str, Any]] = []
        #: What should be on disk and is not, each with the reason; whoever saves it after all takes it out.
        self.unsaved: dict[str, str] = {}
        self._lock = threading.Lock()

    def record(
        self, kind: str, message: str, *, step: int | None = None, level: int = logging.WARNING, **facts: object
    ) -> None:
        """Note an event; callable from any thread."""
        event = redacted_values(
            {"time": round(time.time(), 3), "kind": kind, "step": step, "message": message, **facts}
        )
        logger.log(level, "%s", event["message"])
        with self._lock:
            self.recorded.append(event)
            self._append(event)

    def _append(self, event: dict[str, Any]) -> None:
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            append_text(self.folder / FILE, json.dumps(event, default=str) + "\n")
        except OSError as error:
            logger.debug("events.jsonl could not be written: %s", error)
