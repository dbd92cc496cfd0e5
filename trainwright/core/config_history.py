"""``config.history.jsonl``: every setting that was changed while a run went on, one JSON object a line.

The run directory has the whole of it, each checkpoint what had been changed by then.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, NamedTuple

from trainwright.core.files import replace_text
from trainwright.core.json_files import read_text

FILE = "config.history.jsonl"
#: What makes two entries the same change; when and by which command it was made may differ after a kill.
_SAME = ("step", "what", "from", "to", "run")
_NEEDED = {"step", "what", "from", "to"}
_LARGEST = 16 * 2**20
logger = logging.getLogger("trainwright")


class Change(NamedTuple):
    """A setting that is not what it was in the checkpoint."""

    what: str
    before: Any
    after: Any
    effect: str

    @property
    def both_values(self) -> str:
        """For a refusal.

        >>> Change("seed", 1, 2, "another experiment").both_values
        'seed was 1 and is 2 now'
        """
        # Whole: two long paths may differ at their ends.
        return f"{self.what} was {_whole(self.before)} and is {_whole(self.after)} now"

    @property
    def words(self) -> str:
        """For what is applied: the new value, and the old one."""
        return f"{self.what} {_short(self.after)} (was {_short(self.before)})"

    def at(self, step: int, when: float, command: list[str]) -> dict[str, Any]:
        """The entry in the history: made at ``step``."""
        return {
            "step": step,
            "what": self.what,
            "from": self.before,
            "to": self.after,
            "effect": self.effect,
            "when": when,
            "command": command,
        }


def _whole(value: object) -> str:
    return "not set" if value is None else repr(value)


def _short(value: object) -> str:
    text = _whole(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def read_history(folder: Path) -> list[dict[str, Any]]:
    """The entries in a run directory or a checkpoint; lines that are none are left out."""
    try:
        text = read_text(folder / FILE, _LARGEST)
    except (OSError, ValueError):
        return []
    return [entry for line in text.splitlines() if (entry := _entry(line)) is not None]


def _entry(line: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) and set(entry) >= _NEEDED else None


def with_changes(
    before: list[dict[str, Any]], written: list[dict[str, Any]], new: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The history of a run that goes on: ``before`` its checkpoint, and what is ``new``.

    What a killed attempt has ``written`` already keeps its time.

    >>> first = Change("learning_rate", 0.1, 0.01, "course").at(40, 1.0, ["train"])
    >>> again = Change("learning_rate", 0.1, 0.01, "course").at(40, 9.0, ["train"])
    >>> [entry["when"] for entry in with_changes([], [first], [again])]
    [1.0]
    """
    known = {_key(entry): entry for entry in written}
    return [*before, *(known.get(_key(entry), entry) for entry in new)]


def _key(entry: dict[str, Any]) -> str:
    return json.dumps([entry.get(name) for name in _SAME], sort_keys=True)


def history_text(entries: list[dict[str, Any]]) -> str:
    """The contents of the file."""
    return "".join(json.dumps(entry, default=str) + "\n" for entry in entries)


def write_history(folder: Path, entries: list[dict[str, Any]]) -> None:
    """Bring the file of a run directory up to date; none where nothing was changed."""
    path = folder / FILE
    if entries and read_history(folder) != entries:
        replace_text(path, history_text(entries))
    elif not entries and path.is_file():
        path.unlink()
