"""The manifest: what a finished checkpoint consists of, written last. Without it a folder is not a checkpoint."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from trainwright.checkpoint.durable import FileFacts, facts_of, write_text
from trainwright.version import __version__

NAME = "manifest.json"
FORMAT = 1
_SAFE_PART = re.compile(r"[A-Za-z0-9._ -]+")


class DamagedCheckpoint(ValueError):
    """A checkpoint whose files are not what its manifest says."""

    def __init__(self, folder: Path, reasons: list[str]) -> None:
        self.folder, self.reasons = folder, reasons
        super().__init__(f"{folder} is damaged: {'; '.join(reasons)}.")


def write_manifest(folder: Path, files: dict[str, FileFacts], step: int) -> None:
    """Seal ``folder``: from now on any change of these files shows."""
    contents = {
        "format": FORMAT,
        "trainwright": __version__,
        "step": step,
        "files": {name: facts._asdict() for name, facts in sorted(files.items())},
    }
    contents["checksum"] = _checksum(contents)
    write_text(folder / NAME, json.dumps(contents, indent=2) + "\n")


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of ``folder``; raises ``DamagedCheckpoint`` if it is missing, cut short or altered."""
    try:
        contents = json.loads((folder / NAME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DamagedCheckpoint(folder, [f"it has no {NAME}"]) from None
    except (OSError, ValueError) as error:
        raise DamagedCheckpoint(folder, [f"{NAME} cannot be read ({error})"]) from None
    if not isinstance(contents, dict) or contents.get("checksum") != _checksum(contents):
        raise DamagedCheckpoint(folder, [f"{NAME} was altered"])
    if contents["format"] != FORMAT:
        raise ValueError(
            f"{folder} has checkpoint format {contents['format']}, this version reads {FORMAT}: "
            f"use trainwright {contents['trainwright']} or newer."
        )
    return contents


def problems_of(folder: Path) -> list[str]:
    """What is wrong with a checkpoint, each as a short sentence; empty for a good one. Reads every byte of it."""
    try:
        files = read_manifest(folder)["files"]
    except DamagedCheckpoint as error:
        return error.reasons
    except ValueError as error:
        return [str(error)]
    return [reason for name, facts in files.items() if (reason := _problem(folder, name, facts)) is not None]


def verify(folder: Path) -> None:
    """Raise ``DamagedCheckpoint`` unless every file is what the manifest says."""
    reasons = problems_of(folder)
    if reasons:
        raise DamagedCheckpoint(folder, reasons)


def has_manifest(folder: Path) -> bool:
    return (folder / NAME).is_file()


def _problem(folder: Path, name: str, facts: dict[str, Any]) -> str | None:
    if not all(_SAFE_PART.fullmatch(part) and part not in (".", "..") for part in name.split("/")):
        return f"{NAME} lists {name!r}, which is not a file name of ours"
    try:
        size = (folder / name).stat().st_size
        if size != facts["size"]:
            return f"{name} has {size} bytes instead of {facts['size']}"
        if facts_of(folder / name).sha256 != facts["sha256"]:
            return f"{name} has other contents than were written (its hash differs)"
    except FileNotFoundError:
        return f"{name} is missing"
    except OSError as error:
        return f"{name} cannot be read ({error.strerror})"
    return None


def _checksum(contents: dict[str, Any]) -> str:
    rest = {key: value for key, value in contents.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
