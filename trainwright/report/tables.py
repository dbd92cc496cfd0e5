"""Tables of one's own in a run's report: ``tables.json``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from trainwright.core.files import replace_text
from trainwright.core.json_files import read_json
from trainwright.report.words import shortened

FILE = "tables.json"
_LARGEST = 2**20
_MOST_TABLES, _MOST_ROWS, _MOST_COLUMNS = 20, 200, 12


def add_table(folder: str | Path, title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Put a table into the report of the run in ``folder``; one of the same title is replaced.

    The next report has it: at the end of the training, or by ``trainwright report``.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> add_table(folder, "Against last year's", ("", "this", "last year's"), [("accuracy", 0.93, 0.91)])
    >>> read_tables(Path(folder))
    [("Against last year's", ['', 'this', "last year's"], [['accuracy', '0.93', '0.91']])]
    """
    if any(len(row) != len(head) for row in rows):
        raise ValueError(f"Each row of the table {title!r} needs {len(head)} values, as its head has.")
    kept = [one for one in read_tables(Path(folder)) if one[0] != title]
    tables = [*kept, (title, list(head), [[str(value) for value in row] for row in rows])][-_MOST_TABLES:]
    named = [{"title": title, "head": head, "rows": rows} for title, head, rows in tables]
    replace_text(Path(folder) / FILE, json.dumps({"tables": named}, indent=2) + "\n")


def read_tables(folder: Path) -> list[tuple[str, list[str], list[list[str]]]]:
    """Title, head and rows of each table; what has another form is left out."""
    try:
        found = read_json(folder / FILE, _LARGEST)
    except (OSError, ValueError):
        return []
    tables = found.get("tables") if isinstance(found, dict) else None
    return [table for one in tables[:_MOST_TABLES] if (table := _table(one))] if isinstance(tables, list) else []


def _table(value: object) -> tuple[str, list[str], list[list[str]]] | None:
    if not isinstance(value, dict):
        return None
    head, rows = value.get("head"), value.get("rows")
    if not isinstance(head, list) or not isinstance(rows, list) or not 0 < len(head) <= _MOST_COLUMNS:
        return None
    fitting = [row for row in rows[:_MOST_ROWS] if isinstance(row, list) and len(row) == len(head)]
    words = [[shortened(str(each)) for each in row] for row in fitting]
    return shortened(str(value.get("title")), 200), [shortened(str(each), 80) for each in head], words
