"""Which run a checkpoint belongs to: a random id, in every manifest and in ``run.json`` of the run directory.

Several runs may have written into one folder, and step numbers say nothing about whose a checkpoint is.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from pathlib import Path
from typing import NamedTuple

from trainwright.core.files import replace_text
from trainwright.core.json_files import read_json

FILE = "run.json"
#: No clock says more seconds; NaN is not less either.
_FAR = 2.0**53
_ID = re.compile(r"[0-9a-f]{8}")


class RunIdentity(NamedTuple):
    """A run, from its first step through all its resumes."""

    id: str
    #: When it was started, in seconds since 1970.
    began: float

    @classmethod
    def new(cls) -> RunIdentity:
        """The identity of a run that starts now."""
        # Not from a seeded generator: two runs with the same seed are two runs.
        return cls(secrets.token_hex(4), round(time.time(), 3))

    @classmethod
    def read(cls, stored: object) -> RunIdentity | None:
        """An identity from JSON; None for anything else.

        >>> RunIdentity.read({"id": "0123abcd", "began": 1.5})
        RunIdentity(id='0123abcd', began=1.5)
        >>> RunIdentity.read({"id": "../..", "began": 1.5}) is None
        True
        """
        if not isinstance(stored, dict):
            return None
        name, began = stored.get("id"), stored.get("began")
        if not isinstance(name, str) or _ID.fullmatch(name) is None:
            return None
        if isinstance(began, bool) or not isinstance(began, (int, float)) or not -_FAR < began < _FAR:
            return None
        return cls(name, float(began))


class Owner(NamedTuple):
    """Whose a run directory is."""

    run: RunIdentity
    #: Whether checkpoints that name no run are its own: it was resumed from one that an older release wrote.
    owns_unnamed: bool = False

    def wrote(self, writer: RunIdentity | None) -> bool:
        """Return True if a checkpoint that ``writer`` wrote belongs to this run."""
        return self.owns_unnamed if writer is None else writer.id == self.run.id


def read_owner(run_directory: Path) -> Owner | None:
    """The run that a folder belongs to, by its ``run.json``; None where that is missing or says nothing."""
    try:
        stored = read_json(run_directory / FILE)
    except (OSError, ValueError):
        return None
    run = RunIdentity.read(stored)
    return None if run is None else Owner(run, stored.get("owns_unnamed") is True)


def write_owner(run_directory: Path, owner: Owner) -> None:
    """Say whose folder this is; the old word or the new one is there at any moment."""
    text = json.dumps({**owner.run._asdict(), "owns_unnamed": owner.owns_unnamed})
    replace_text(run_directory / FILE, text + "\n")
