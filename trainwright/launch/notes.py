"""What the processes of a launch leave for their launcher: who they are, and that they were asked to stop.

torchrun takes every exit code but 0 for a failure and starts the group again. A run that was asked to stop (a signal,
``max_hours``) must not be: its processes leave a note and end with 0, and the launcher ends with the code in the note.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainwright.core.files import replace_text

#: Names the folder of the notes, for the processes of a launch.
VARIABLE = "TRAINWRIGHT_LAUNCH_NOTES"
INTERRUPTED, PREEMPTED = 130, 75


class Notes:
    """A folder that belongs to one launch on one machine.

    >>> import tempfile
    >>> notes = Notes(tempfile.mkdtemp())
    >>> notes.stop_code() is None                # nobody has been asked to stop
    True
    >>> notes.leave_stopped(0, 75, "max_hours=4")
    >>> notes.stop_code()
    75
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    @staticmethod
    def of_this_launch(environment: Mapping[str, str] = os.environ) -> Notes | None:
        """Those of the launch that started this process, if trainwright did."""
        folder = environment.get(VARIABLE)
        return Notes(folder) if folder and Path(folder).is_dir() else None

    def leave_process(self, rank: int) -> None:
        """This process is ``rank``; an earlier attempt's note is replaced."""
        self._write(f"process-{rank}.json", {"pid": os.getpid()})

    def processes(self) -> list[int]:
        """Process ids, as far as they have begun."""
        return [note["pid"] for path in sorted(self.folder.glob("process-*.json")) if (note := _read(path))]

    def leave_asked(self, number: int) -> None:
        """The launcher was sent a signal."""
        self._write("asked.json", {"signal": number})

    def asked(self) -> int | None:
        """The signal that the launcher was sent."""
        note = _read(self.folder / "asked.json")
        return note["signal"] if note else None

    def leave_stopped(self, rank: int, code: int, reason: str) -> None:
        """This process ended because it was asked to."""
        self._write(f"stopped-{rank}.json", {"code": code, "reason": reason})

    def stop_code(self) -> int | None:
        """The exit code of a launch whose processes were stopped; None where none was."""
        found = [note["code"] for path in sorted(self.folder.glob("stopped-*.json")) if (note := _read(path))]
        return found[0] if found else None

    def _write(self, name: str, content: dict[str, Any]) -> None:
        # A process of an earlier attempt may still be leaving the same one.
        replace_text(self.folder / name, json.dumps(content), by_several=True)


def code_of(number: int) -> int:
    """The exit code of a run that a signal stopped.

    >>> code_of(signal.SIGTERM), code_of(signal.SIGINT)
    (75, 130)
    """
    return INTERRUPTED if number == signal.SIGINT else PREEMPTED


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
