"""Rows of a text file: comma- or tab-separated, or JSON lines."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

_SEPARATORS = {"tsv": "\t", "csv": ","}


def read_rows(path: str, file_format: str, header: int | None = 0) -> list[dict[Any, Any]]:
    """Each row by the names of its columns, or by their numbers where there is no ``header``."""
    if file_format == "json":
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line.strip()]
    if file_format not in _SEPARATORS:
        raise ValueError(
            f"file_format={file_format!r}: there are {', '.join(_SEPARATORS)} and json (one object a line)."
        )
    with Path(path).open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.reader(file, delimiter=_SEPARATORS[file_format]) if row]
    if header is None:
        return [dict(enumerate(row)) for row in rows]
    names = rows[header]
    return [dict(zip(names, row, strict=False)) for row in rows[header + 1 :]]


def column(row: dict[Any, Any], name: Any) -> Any:
    """A row's value; an error that says which columns there are."""
    if name not in row:
        raise ValueError(f"There is no column {name!r}; there are: {', '.join(map(str, row))}.")
    return row[name]
