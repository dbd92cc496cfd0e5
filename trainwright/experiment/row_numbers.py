"""Which rows of a file lack a value: data that was split or cut has other numbers than the file."""

from __future__ import annotations

from trainwright.config.loading import Loaded
from trainwright.experiment.sources import columns_of, load_rows
from trainwright.experiment.tasks.base import MissingValues

_MOST = 10


def with_row_numbers(loaded: Loaded, error: MissingValues) -> str:
    """The error's message with the numbers of such rows in each of the experiment's files, counted from 1."""
    parts = [part for part in ("train", "eval") if getattr(loaded.experiment.data, part) is not None]
    found = [text for part in parts if (text := _rows_of(loaded, part, error))]
    where = f" ({'; '.join(found)}; the first row below the header is 1)" if found else ""
    return f"{error.text}{where}: {error.advice}"


def _rows_of(loaded: Loaded, part: str, error: MissingValues) -> str:
    try:
        rows = load_rows(loaded, part)
        values = list(rows[error.column]) if error.column in columns_of(rows) else []
    except Exception:
        # Only the numbers are missing then.
        return ""
    wrong = [number for number, value in enumerate(values, 1) if error.is_wrong(value)]
    if not wrong:
        return ""
    numbers = ", ".join(map(str, wrong[:_MOST])) + (", ..." if len(wrong) > _MOST else "")
    return f"{'rows' if len(wrong) > 1 else 'row'} {numbers} of {getattr(loaded.experiment.data, part)}"
