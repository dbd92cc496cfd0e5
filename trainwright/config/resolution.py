"""What construction made of the arguments, kept so that a copy can start from what the user said.

``dataclasses.replace`` hands every field of the old object to a new one. Without a memory the new object could not tell
a derived ``eval_steps=500`` from one the user chose, nor the v4 view of a dropped name from a fresh use of it.
"""

from __future__ import annotations

from typing import Any

from trainwright.config.fields import AllFields
from trainwright.config.removal import RULES


class Resolution:
    """The link from finished arguments to what they were before defaults were derived."""

    def __init__(
        self, args: AllFields, derived: dict[str, tuple[Any, Any]], working_directory: str | None = None
    ) -> None:
        self._args = args
        self._derived = derived
        #: Where the arguments were made; a relative ``output_dir`` is meant from there.
        self.working_directory = working_directory

    def undo_in(self, copy: object) -> set[str]:
        """Put back in ``copy`` what was given, wherever it still holds what had been derived from it.

        Returns the dropped names that only repeat what the old object showed for them.
        """
        for name, (given, made) in self._derived.items():
            if getattr(copy, name) == made:
                setattr(copy, name, given)
        return {name for name in RULES if copy.__dict__.get(name) == getattr(self._args, name)}


def snapshot(args: AllFields) -> dict[str, Any]:
    """The values of our fields except dropped names and the bookkeeping itself."""
    names = (name for name in AllFields.__dataclass_fields__ if name not in RULES and name != "_resolution")
    return {name: getattr(args, name) for name in names}
