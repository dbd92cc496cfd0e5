"""A file of one's choosing with everything a tracker is told: one JSON object a line."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

from trainwright.core.files import replace_text
from trainwright.core.tracker import Histogram, TrackedRun
from trainwright.trackers.naming import tagged
from trainwright.trackers.pictures import file_name, picture_bytes


class JsonlTracker:
    """Lines have an ``event``: ``start``, ``log``, ``artifact``, ``image``, ``histogram``, ``text`` or
    ``finish``.

    ``file`` is ``<run directory>/tracker.jsonl`` unless given. ``metrics.jsonl`` in the run directory is written in any
    case, also without this.
    """

    def __init__(self, *, file: str | Path | None = None) -> None:
        self.file = None if file is None else Path(file)
        self._path = Path()

    def start(self, run: TrackedRun) -> None:
        self._path = self.file or run.folder / "tracker.jsonl"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._keep_until(run.step)
        about = {"name": run.name, "project": run.project, "tags": list(run.tags), "step": run.step}
        self._write("start", **about, config=run.config, facts=run.facts)

    def log(self, values: dict[str, float], step: int) -> None:
        self._write("log", step=step, values=tagged(values))

    def log_artifact(self, path: Path, name: str | None = None) -> None:
        self._write("artifact", name=name or path.name, path=str(path))

    def log_image(self, name: str, image: object, step: int) -> None:
        folder = self._path.with_name(f"{self._path.stem}_images")
        folder.mkdir(exist_ok=True)
        file = folder / file_name(name, step)
        file.write_bytes(picture_bytes(image))
        self._write("image", name=name, step=step, path=str(file))

    def log_histogram(self, name: str, histogram: Histogram, step: int) -> None:
        self._write("histogram", name=name, step=step, **histogram._asdict())

    def log_text(self, name: str, text: str, step: int) -> None:
        self._write("text", name=name, step=step, text=text)

    def finish(self, status: str) -> None:
        self._write("finish", status=status)

    def _keep_until(self, step: int) -> None:
        """A new run begins with an empty file, one that goes on with what was logged up to its checkpoint."""
        if self._path.exists() and not self._path.is_file():
            # A pipe or a device: it is written to, never replaced.
            return
        kept = []
        if step and self._path.is_file():
            lines = self._path.read_text(encoding="utf-8").splitlines()
            kept = [line for line in lines if _step_of(line) <= step]
        replace_text(self._path, "".join(f"{line}\n" for line in kept))

    def _write(self, event: str, **content: object) -> None:
        line = json.dumps(_strict({"event": event, "time": round(time.time(), 3), **content}), default=str)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def _strict(value: object) -> Any:
    """NaN and infinity as text: bare ``NaN`` is not JSON."""
    if isinstance(value, dict):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _step_of(line: str) -> float:
    """The step of a line; one without a step stays, one that was cut short when the run was killed goes."""
    try:
        return json.loads(line).get("step", 0)
    except (ValueError, AttributeError):
        return math.inf
