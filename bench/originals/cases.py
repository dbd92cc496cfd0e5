"""What is run of an original project, and what is changed in the copy that is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Change:
    """A replacement in one file of the copy, beyond the import line, and how the table tells it."""

    old: str
    new: str
    said: str
    #: The file that is changed; by default the one that is run.
    file: str = ""


@dataclass(frozen=True)
class Case:
    """One file of the original: a script (``command``) or a file of tests (no command: pytest runs it)."""

    file: str
    #: Arguments after ``python``; {copy} is the copied repository, {data} the folder that ``prepare`` filled.
    command: tuple[str, ...] = ()
    #: Where it runs, relative to the repository.
    folder: str = "."
    changes: tuple[Change, ...] = ()
    note: str = ""
    #: Tests of the file that do not pass -> why; a pattern of pytest's -k is not needed, the plain name is.
    failing: Mapping[str, str] = field(default_factory=dict)
    #: Why the whole file is not run; it is listed all the same.
    refused: str = ""


@dataclass(frozen=True)
class Door:
    """One original project."""

    name: str
    #: The page whose table is written.
    page: str
    #: Regular expression -> replacement, in every Python file of the copy: the import line that a user changes.
    imports: tuple[tuple[str, str], ...]
    cases: tuple[Case, ...]
    #: Makes tiny data and models in a folder, and changes nothing else; returns environment variables.
    prepare: Callable[[Path, Path], Mapping[str, str]] = lambda copy, data: {}
    #: Folders that need not be copied.
    unneeded: tuple[str, ...] = ()
