"""Files of one JSON object a line, which anybody may have changed: read within bounds, whatever is in them."""

from __future__ import annotations

import gc
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trainwright.core.files import open_regular

#: A million logged steps are half of it.
LARGEST = 512 * 2**20
Entry = dict[str, Any]


def read_lines(path: Path, largest: int = LARGEST) -> list[Entry]:
    """The objects in a file, in order; of a larger one those at its end. Empty where it cannot be read.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "metrics.jsonl"
    >>> _ = path.write_text('{"step": 1}\\nnonsense\\n[2]\\n{"step": 3}\\n')
    >>> read_lines(path)
    [{'step': 1}, {'step': 3}]
    """
    return _objects(_tail(path, largest))


def last_lines(path: Path, size: int = 4096) -> list[Entry]:
    """The objects in the last ``size`` bytes: quick, however long a run was."""
    return _objects(_tail(path, size))


def _tail(path: Path, size: int) -> bytes:
    try:
        descriptor = open_regular(path)
        with os.fdopen(descriptor, "rb") as file:
            length = os.fstat(descriptor).st_size
            if length > size:
                file.seek(length - size)
                file.readline()
            return file.read(size)
    except OSError:
        return b""


def _objects(text: bytes) -> list[Entry]:
    # A line that was cut off could go on in the next one.
    lines = [line for line in text.splitlines() if line.startswith(b"{") and line.rstrip().endswith(b"}")]
    collects = gc.isenabled()
    # Hundreds of thousands of new dicts have the collector look through all of them again and again.
    gc.disable()
    try:
        # All at once is several times quicker than one by one.
        found = json.loads(b"[" + b",".join(lines) + b"]")
    except (ValueError, RecursionError):
        found = [one for line in lines if (one := _object(line)) is not None]
    finally:
        if collects:
            gc.enable()
    return [one for one in found if isinstance(one, dict)]


def _object(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def column(lines: Iterable[Mapping[str, Any]], name: str) -> np.ndarray:
    """The numbers called ``name``, one for each line; NaN where there is none.

    >>> column([{"loss": 1.5}, {}, {"loss": 2}], "loss").tolist()
    [1.5, nan, 2.0]
    """
    values = (line.get(name) for line in lines)
    return np.array([value if type(value) is float else _or_nan(value) for value in values], dtype=np.float64)


def _or_nan(value: object) -> float:
    found = number(value)
    return math.nan if found is None else found


def number(value: object) -> float | None:
    """A number of a log; the texts that stand for NaN and infinity in it, too. None for anything else.

    >>> number(3), number("nan"), number(True), number("three")
    (3.0, nan, None, None)
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    return float(value) if value in ("nan", "inf", "-inf", "NaN", "Infinity", "-Infinity") else None
