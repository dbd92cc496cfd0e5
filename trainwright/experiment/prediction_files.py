"""Rows of predictions as files: JSON lines, CSV that a spreadsheet may open, Parquet."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from trainwright.config.errors import ConfigError
from trainwright.config.extras import install, is_installed
from trainwright.core.files import replacing, writing_there
from trainwright.experiment.predictions import flat

#: Endings that mean something else than the lines of JSON that any other ending gets.
_OTHER_TABLES = (".tsv", ".xls", ".xlsx", ".ods", ".feather", ".arrow", ".pq")
#: Where a spreadsheet would see the start of a formula: at the start of a cell or, if it takes semicolons or tabs for
#: separators, after one of these or a line break within the text.
_FORMULA = re.compile("(^|[;\t\r\n])([\\s\"']*)(?=[=+\\-@\uff1d\uff0b\uff0d\uff20])")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)


def refuse_output(path: Path) -> None:
    """Before any work: endings that are not written, packages that are missing, places that cannot be written."""
    kind = path.suffix.lower()
    if kind in _OTHER_TABLES:
        raise ConfigError(
            f"command line: --output {path}: predictions are written as .jsonl, .csv or .parquet, not as {kind}."
        )
    if kind == ".parquet" and not is_installed("pyarrow"):
        raise ConfigError(
            f"command line: --output {path} is written by pyarrow, which comes with the package datasets: "
            f"{install('datasets')}, or write .csv or .jsonl."
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise PermissionError(0, "no permission")
    except OSError as error:
        raise ConfigError(f"command line: --output {path} cannot be written: {error.strerror}.") from None


def write_rows(path: Path, rows: list[dict[str, Any]], *, is_ours: bool) -> None:
    """Write all rows, or nothing; by the ending of ``path``.

    ``is_ours``: a file in a run's folder, which may be anybody's, so a link in its place is replaced. What the user
    named is written where a link leads; a pipe or a device is written as it is.
    """
    kind = path.suffix.lower()
    with _place(path, is_ours) as file:
        if kind == ".csv":
            file.write(csv_text(rows).encode())
        elif kind == ".parquet":
            _write_parquet(file, rows)
        else:
            file.writelines((json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n").encode() for row in rows)


@contextmanager
def _place(path: Path, is_ours: bool) -> Iterator[BinaryIO]:
    if is_ours:
        with replacing(path) as file:
            yield file
    else:
        with writing_there(path) as file:
            yield file


def csv_text(rows: Iterable[dict[str, Any]]) -> str:
    """Rows as CSV (RFC 4180, all text in quotes), in which no text is a formula for a spreadsheet."""
    table = [flat(row) for row in rows]
    names = list(dict.fromkeys(name for row in table for name in row))
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\r\n")
    writer.writerow([harmless(name) for name in names])
    writer.writerows([_cell(row.get(name)) for name in names] for row in table)
    return text.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (dict, list)):
        return harmless(json.dumps(value, ensure_ascii=False))
    return value if isinstance(value, (int, float)) else "" if value is None else harmless(str(value))


def harmless(text: str) -> str:
    """Text that no spreadsheet takes for a formula: with an apostrophe before ``=``, ``+``, ``-`` and ``@``.

    >>> harmless("=HYPERLINK(1)"), harmless("-5.2"), harmless("a - b"), harmless("x;=1+1")
    ("'=HYPERLINK(1)", '-5.2', 'a - b', "x;'=1+1")
    """
    text = text.replace("\0", "")
    return text if _NUMBER.fullmatch(text) else _FORMULA.sub(r"\1\2'", text)


def _write_parquet(file: BinaryIO, rows: list[dict[str, Any]]) -> None:
    import pyarrow
    import pyarrow.parquet

    table = [flat(row) for row in rows]
    names = list(dict.fromkeys(name for row in table for name in row))
    columns = {}
    for name in names:
        values = [row.get(name) for row in table]
        try:
            columns[name] = pyarrow.array(values)
        except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, OverflowError):
            # A column of Parquet has one type.
            columns[name] = pyarrow.array([None if value is None else str(value) for value in values])
    pyarrow.parquet.write_table(pyarrow.table(columns), file)
