"""The two groups of processes that ``alaunch`` starts: one trains, the other evaluates what it is handed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

#: Names of the groups; the launcher leaves ``<name>.ended`` in its folder when one has ended.
TRAINING, EVALUATION = "training", "evaluation"
#: How the launcher tells processes that there are two groups (ACCMT's name), where its folder is, and who trains.
IS_ASYNCHRONOUS, FOLDER, TRAINS = "ACCMT_ASYNC", "ACCMT_ASYNC_FOLDER", "ACCMT_TRAIN_GROUP"
LAUNCHED_BY = "ACCMT_ASYNC_LAUNCHER"


@dataclass(frozen=True)
class Group:
    """The group that this process belongs to."""

    folder: Path
    trains: bool
    launcher: int

    @property
    def launch(self) -> str:
        """A name for this launch that no other has."""
        return self.folder.name

    def is_asked_to_stop(self) -> bool:
        """Whether a signal has come to the launcher, which hands it on: who waits need not wait any longer."""
        return asked_note(self.folder).exists()

    def other_has_ended(self) -> bool:
        """Whether nobody is in the other group any more."""
        other = EVALUATION if self.trains else TRAINING
        return ended_note(self.folder, other).exists() or not _is_alive(self.launcher)


def this_group(environment: Mapping[str, str] = os.environ) -> Group | None:
    """The group of this process; None where the same processes train and evaluate.

    >>> this_group({}) is None
    True
    """
    folder = environment.get(FOLDER)
    if not folder:
        return None
    return Group(Path(folder), environment.get(TRAINS) == "1", int(environment.get(LAUNCHED_BY) or 0))


def ended_note(folder: Path, group: str) -> Path:
    """Where the launcher notes that a group has ended."""
    return folder / f"{group}.ended"


def asked_note(folder: Path) -> Path:
    """Where the launcher notes that a signal has come."""
    return folder / "asked"


def _is_alive(process: int) -> bool:
    if os.name == "nt":
        # There the question would be a command.
        return True
    with suppress(PermissionError):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return False
    return True
