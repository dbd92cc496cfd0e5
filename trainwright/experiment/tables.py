"""Rows from CSV, TSV, JSON and text files, without any package: Python's own readers, columns typed as pandas would.

What the package ``datasets`` reads, where it is installed, has the same rows, types and missing values
(``tests/experiment/test_tables.py`` compares them), so a run may go on with or without it.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainwright.config.errors import ConfigError
from trainwright.config.extras import install

#: What a CSV file may hold where a value is missing; the words are pandas'.
_MISSING = frozenset(
    ("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>")
) | frozenset(("N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"))
_TRUTH = {"true": True, "false": False, "True": True, "False": False, "TRUE": True, "FALSE": False}
_WHOLE = re.compile(r"\s*[+-]?[0-9]+\s*", re.ASCII)
_NUMBER = re.compile(r"\s*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\s*|[+-]?(?:inf|infinity)", re.I)
_LARGEST = 2**63
#: Kinds of files that :func:`read_table` reads.
OWN_READERS = ("csv", "json", "text")
#: Of the readers of ``datasets``, the options that are known here too.
OPTIONS = ("delimiter", "sep", "encoding")
#: What to do about a file in another encoding.
NOT_UTF8 = (
    "it is not in UTF-8. Save it as UTF-8, or name its encoding: data.options={encoding: latin-1} (or cp1252, utf-16)."
)


class Table:
    """Columns by name, all of one length; rows by number. Has what tasks ask of a dataset."""

    def __init__(self, columns: dict[str, list[Any]], numbers: Sequence[int] | None = None) -> None:
        self._columns = columns
        #: Which rows of the file these are, counted from 1.
        self.numbers: Sequence[int] = range(1, len(self) + 1) if numbers is None else numbers

    @property
    def column_names(self) -> list[str]:
        return list(self._columns)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), ()))

    def __getitem__(self, key: str | int) -> Any:
        if isinstance(key, str):
            return self._columns[key]
        if not -len(self) <= key < len(self):
            raise IndexError(f"row {key} of {len(self)}")
        return {name: values[key] for name, values in self._columns.items()}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[index] for index in range(len(self)))

    def select(self, indices: Sequence[int]) -> Table:
        """The rows with these numbers, in this order."""
        columns = {name: [values[index] for index in indices] for name, values in self._columns.items()}
        return Table(columns, [self.numbers[index] for index in indices])

    def remove_columns(self, names: str | Sequence[str]) -> Table:
        gone = {names} if isinstance(names, str) else set(names)
        return Table({name: values for name, values in self._columns.items() if name not in gone}, self.numbers)

    def train_test_split(self, *, test_size: float, seed: int) -> dict[str, Table]:
        """Two parts, the same as those of ``datasets``."""
        order = np.random.default_rng(seed).permutation(len(self)).tolist()
        held_out = math.ceil(test_size * len(self))
        return {"train": self.select(order[held_out:]), "test": self.select(order[:held_out])}

    def map(self, *args: Any, **kwargs: Any) -> Any:
        """Tokenizing is left to the package that tokenizers come with."""
        raise ConfigError(f"Texts are prepared by the package datasets: {install('datasets')}")


def read_table(files: list[str], kind: str, options: dict[str, Any], *, as_written: bool = False) -> Table:
    """The rows of files of one ``kind`` (csv, json or text), one file after the other.

    With ``as_written``, words stay the words of the file: no column is guessed to hold numbers, dates or gaps.
    """
    unknown = [name for name in options if name not in OPTIONS or kind != "csv"]
    if unknown:
        raise ConfigError(f"data.options {unknown[0]} needs the package datasets: {install('datasets')}")
    if kind == "csv":
        delimiter = options.get("delimiter", options.get("sep", ","))
        encoding = options.get("encoding") or "utf-8-sig"
        typed = _kept if as_written else _typed_words
        return _joined(files, [_csv(Path(file), delimiter, encoding) for file in files], typed)
    if kind == "json":
        return _joined(files, [_json(Path(file)) for file in files], _kept if as_written else _typed_values)
    return Table({"text": [line for file in files for line in _lines(Path(file))]})


def _text(path: Path, encoding: str = "utf-8-sig") -> str:
    try:
        return path.read_bytes().decode(encoding)
    except LookupError:
        raise ConfigError(f"data.options: there is no encoding {encoding!r}; write latin-1, cp1252 or utf-8.") from None
    except UnicodeDecodeError as error:
        if encoding != "utf-8-sig":
            raise ConfigError(f"{path} is not in {encoding} (byte {error.start}): name another encoding.") from None
        raise ConfigError(f"{path}: byte {error.start} shows that {NOT_UTF8}") from None


def _lines(path: Path) -> list[str]:
    return _text(path).replace("\r\n", "\n").removesuffix("\n").split("\n")


def _joined(files: list[str], parts: list[dict[str, list[Any]]], typed: Callable[[str, list[Any]], list[Any]]) -> Table:
    names = list(dict.fromkeys(name for part in parts for name in part))
    if any(set(part) != set(names) for part in parts):
        different = next(part for part in parts if set(part) != set(names))
        raise ConfigError(f"The files have different columns: {', '.join(different)} and {', '.join(names)}.")
    where = files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
    columns = {name: typed(f"{where}: {name}", [v for part in parts for v in part[name]]) for name in names}
    if not names or not len(Table(columns)):
        raise ConfigError(f"{where}: it has no rows.")
    return Table(columns)


def _kept(name: str, values: list[Any]) -> list[Any]:
    return values


# ---- CSV


def _csv(path: Path, delimiter: str, encoding: str = "utf-8-sig") -> dict[str, list[str | None]]:
    text = _text(path, encoding)
    if "\0" in text:
        raise ConfigError(f"{path} has zero bytes in it: it is not a text file.")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    rows: list[list[str]] = []
    # Python's own limit is 128 KB a field; it counts for all readers of a process.
    limit = csv.field_size_limit(sys.maxsize)
    try:
        for row in reader:
            if not row:
                continue
            if header is None:
                header = _named(row)
            elif len(row) > len(header):
                raise ConfigError(f"{path}:{reader.line_num}: {len(row)} fields, and the first line has {len(header)}.")
            else:
                rows.append([*row, *[""] * (len(header) - len(row))])
    except csv.Error as error:
        raise ConfigError(f"{path}:{reader.line_num}: {error}.") from None
    finally:
        csv.field_size_limit(limit)
    return {name: [row[place] for row in rows] for place, name in enumerate(header or [])}


def _named(header: list[str]) -> list[str]:
    """Names of columns; one that is missing or comes twice gets another, as pandas gives it."""
    names: list[str] = []
    for place, name in enumerate(header):
        name = name or f"Unnamed: {place}"
        number, once = 0, name
        while name in names:
            number += 1
            name = f"{once}.{number}"
        names.append(name)
    return names


def _is_whole(word: str, least: int, below: int) -> bool:
    return _WHOLE.fullmatch(word) is not None and least <= int(word) < below


def _large(words: list[str]) -> list[Any] | None:
    """A column whose first surprise is a whole number beyond 64 bits, as pandas takes it; None where it has others.

    Together with anything negative or missing, or larger still, they are names, and nothing is taken for missing.
    """
    for word in words:
        if word in _MISSING or word.lstrip().startswith("-"):
            continue
        if not _WHOLE.fullmatch(word):
            return None
        if int(word) >= 2 * _LARGEST:
            return list(words)
    return [int(word) for word in words] if all(_is_whole(word, 0, 2 * _LARGEST) for word in words) else list(words)


def _typed_words(name: str, words: list[str]) -> list[Any]:
    """The words of a column as what all of them are: whole numbers, numbers, yes and no, or words."""
    present = [word for word in words if word not in _MISSING]
    has_gaps = len(present) < len(words)
    if not present:
        return [None] * len(words)
    other = next((word for word in present if not _is_whole(word, -_LARGEST, _LARGEST)), None)
    if other is None:
        # A whole number and a missing one do not go together in a column: all are read as numbers.
        return _read(words, float if has_gaps else int)
    if _WHOLE.fullmatch(other) and (found := _large(words)) is not None:
        return found
    if all(_NUMBER.fullmatch(word) for word in present):
        return _read(words, float)
    return _read(words, _TRUTH.__getitem__ if all(word in _TRUTH for word in present) else str)


def _read(words: list[str], convert: Callable[[str], Any]) -> list[Any]:
    return [None if word in _MISSING else convert(word) for word in words]


# ---- JSON


def _json(path: Path) -> dict[str, list[Any]]:
    rows = _json_rows(path)
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {name: [row.get(name) for row in rows] for name in names}


def _json_rows(path: Path) -> list[dict[str, Any]]:
    text = _text(path)
    if text.lstrip().startswith("["):
        numbered = list(enumerate(_parsed(text, str(path)), 1))
    else:
        # Not splitlines, which also breaks at characters that a JSON text may hold.
        lines = enumerate(text.split("\n"), 1)
        numbered = [(number, _parsed(line, f"{path}:{number}")) for number, line in lines if line.strip()]
    for number, value in numbered:
        if not isinstance(value, dict):
            raise ConfigError(f'{path}:{number}: a row is an object, such as {{"text": "..."}}, not {value!r:.40}.')
    return [value for _, value in numbered]


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: this is not JSON: {error}.") from None


def _typed_values(name: str, values: list[Any]) -> list[Any]:
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return [None if value is None else float(value) for value in values]
    if len(kinds) > 1:
        kind_names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise ConfigError(f"{name}: the column holds values of several kinds ({kind_names}): make them one.")
    return values
