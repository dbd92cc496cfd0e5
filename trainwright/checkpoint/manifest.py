"""The manifest: what a finished checkpoint consists of, written last. Without it a folder is not a checkpoint.

Only the files that it lists belong to the checkpoint; whatever else lies in the folder is never read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainwright.checkpoint.durable import FileFacts, facts_of, write_text
from trainwright.checkpoint.identity import RunIdentity
from trainwright.checkpoint.state_shape import state_problems
from trainwright.core.json_files import read_json
from trainwright.version import __version__

NAME = "manifest.json"
FORMAT = 1
_SHA256 = re.compile(r"[0-9a-f]{64}")


class DamagedCheckpoint(ValueError):
    """A checkpoint whose files are not what its manifest says."""

    def __init__(self, folder: Path, reasons: list[str]) -> None:
        self.folder, self.reasons = folder, reasons
        super().__init__(f"{folder} is damaged: {'; '.join(reasons)}.")


def is_listable(name: str) -> bool:
    """Return True for a name that a manifest may list: a path below the folder, in characters that files can have.

    Writer and reader share this rule, so that what is written can be read.

    >>> [is_listable(name) for name in ("lora+v1/adapter.bin", "größe.json", "../secret", "/etc/passwd", "a\\\\b")]
    [True, True, False, False, False]
    """
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        # Bytes that are no UTF-8, as file names on Linux may have: JSON cannot hold them.
        return False
    parts = name.split("/")
    # A backslash or a drive is a way out of the folder on Windows.
    has_way_out = "\\" in name or (os.name == "nt" and ":" in name)
    return not has_way_out and "\0" not in name and not any(part in ("", ".", "..") for part in parts)


def write_manifest(
    folder: Path, files: Mapping[str, FileFacts], step: int, run: RunIdentity | None = None, *, force: bool = True
) -> None:
    """Seal ``folder``: from now on any change of these files shows."""
    if unreadable := [name for name in files if not is_listable(name)]:
        raise ValueError(f"A checkpoint cannot hold a file named {unreadable[0]!r}: rename it.")
    contents: dict[str, Any] = {
        "format": FORMAT,
        "trainwright": __version__,
        "step": step,
        "files": {name: facts._asdict() for name, facts in sorted(files.items())},
    }
    if run is not None:
        contents["run"] = run._asdict()
    contents["checksum"] = _checksum(contents)
    write_text(folder / NAME, json.dumps(contents, indent=2) + "\n", force=force)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of ``folder``; raises ``DamagedCheckpoint`` if it is missing, cut short or altered."""
    try:
        contents = read_json(folder / NAME)
    except FileNotFoundError:
        raise DamagedCheckpoint(folder, [f"it has no {NAME}"]) from None
    except (OSError, ValueError) as error:
        raise DamagedCheckpoint(folder, [f"{NAME} cannot be read ({error})"]) from None
    if not isinstance(contents, dict) or contents.get("checksum") != _checksum(contents):
        raise DamagedCheckpoint(folder, [f"{NAME} was altered"])
    if contents.get("format") != FORMAT and isinstance(contents.get("format"), int):
        raise ValueError(
            f"{folder} has checkpoint format {contents['format']}, this version reads {FORMAT}: "
            f"use trainwright {contents.get('trainwright')} or newer."
        )
    if reason := _misshapen(contents):
        raise DamagedCheckpoint(folder, [f"{NAME} {reason}"])
    return contents


def _misshapen(contents: dict[str, Any]) -> str | None:
    """Name what is wrong with a manifest whose sum is right: anybody can compute a sum."""
    files, step = contents.get("files"), contents.get("step")
    if contents.get("format") != FORMAT or type(step) is not int or not isinstance(files, dict):
        return "has no format, step or files"
    for name, facts in files.items():
        if not is_listable(name) or name == NAME:
            return f"lists {name!r}, which is not a file name of ours"
        sound = isinstance(facts, dict) and type(facts.get("size")) is int and isinstance(facts.get("sha256"), str)
        if not sound or facts["size"] < 0 or not _SHA256.fullmatch(facts["sha256"]):
            return f"says nothing that makes sense of {name!r}"
    if "run" in contents and RunIdentity.read(contents["run"]) is None:
        return "names a run in a way that makes no sense"
    return None


def run_of(folder: Path) -> RunIdentity | None:
    """The run that wrote a checkpoint; None where its manifest does not say, or cannot be read."""
    try:
        return RunIdentity.read(read_manifest(folder).get("run"))
    except ValueError:
        return None


def holds(folder: Path, name: str) -> bool:
    """Return True if ``name`` is a file of the checkpoint ``folder``; of a plain folder, if there is such a file."""
    if has_manifest(folder):
        return name in read_manifest(folder)["files"]
    return (folder / name).is_file()


def files_of(folder: Path) -> list[str]:
    """The names of the files that make up the checkpoint ``folder``; of a plain folder, of all files in it."""
    if has_manifest(folder):
        return sorted(read_manifest(folder)["files"])
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@contextlib.contextmanager
def only_listed(folder: Path) -> Iterator[Path]:
    """A folder with nothing but the files of the checkpoint ``folder``, for libraries that look around in it."""
    if not has_manifest(folder):
        yield folder
        return
    names = files_of(folder)
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
    if there == {NAME, *names}:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="trainwright-") as place:
        for name in names:
            target = Path(place, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to((folder / name).resolve())
        yield Path(place)


def problems_of(folder: Path, *, hashes: bool = True) -> list[str]:
    """List what is wrong with a checkpoint, each as a short sentence; empty for a good one.

    Reads every byte of it; without ``hashes`` only names and sizes are compared.
    """
    try:
        files = read_manifest(folder)["files"]
    except DamagedCheckpoint as error:
        return error.reasons
    except ValueError as error:
        return [str(error)]
    found = (_problem(folder, name, facts, hashes=hashes) for name, facts in files.items())
    damage = [reason for reason in found if reason is not None]
    return damage or state_problems(folder, files)


def verify(folder: Path) -> None:
    """Raise ``DamagedCheckpoint`` unless every file is what the manifest says."""
    reasons = problems_of(folder)
    if reasons:
        raise DamagedCheckpoint(folder, reasons)


def has_manifest(folder: Path) -> bool:
    """Return True for a folder that says it is a checkpoint, be it a good one or not."""
    return os.path.lexists(folder / NAME)


def _problem(folder: Path, name: str, facts: dict[str, Any], *, hashes: bool) -> str | None:
    path = folder / name
    try:
        size = path.stat().st_size
        if size != facts["size"]:
            return f"{name} has {size} bytes instead of {facts['size']}"
        if not path.is_file():
            return f"{name} is not a regular file"
        if hashes and facts_of(path).sha256 != facts["sha256"]:
            return f"{name} has other contents than were written (its hash differs)"
    except FileNotFoundError:
        return f"{name} is missing"
    except OSError as error:
        return f"{name} cannot be read ({error.strerror})"
    return None


def _checksum(contents: dict[str, Any]) -> str:
    rest = {key: value for key, value in contents.items() if key != "checksum"}
    try:
        return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
    except RecursionError:
        return "nested too deeply to be one of ours"
