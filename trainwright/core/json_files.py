"""JSON from files that anybody may have changed: read within bounds, and refused with a reason."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

#: A manifest of 100,000 files has half of this.
LARGEST = 32 * 2**20


def read_json(path: Path, largest: int = LARGEST) -> Any:
    """The contents of a JSON file.

    Raises ``ValueError`` for anything but JSON of at most ``largest`` bytes in a regular file (also for a pipe or a
    device, without waiting for it), and ``OSError`` where the system refuses.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "deep.json"
    >>> _ = path.write_text("[" * 100_000)
    >>> read_json(path)
    Traceback (most recent call last):
    ValueError: it is nested too deeply
    """
    text = _read(path, largest)
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_text(path: Path, largest: int = LARGEST) -> str:
    """The contents of a text file, within the same bounds; what is not UTF-8 in it is replaced."""
    return _read(path, largest).decode("utf-8", "replace")


def _read(path: Path, largest: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError("it is not a regular file")
    with os.fdopen(descriptor, "rb") as file:
        text = file.read(largest + 1)
    if len(text) > largest:
        raise ValueError(f"it is larger than {largest} bytes")
    return text
