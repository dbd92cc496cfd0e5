"""Files that other code wrote into a checkpoint (tokenizers, adapters, a model's own format), put into its manifest."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from trainwright.checkpoint.durable import FileFacts, discard, facts_of
from trainwright.checkpoint.manifest import NAME as MANIFEST
from trainwright.checkpoint.manifest import is_listable
from trainwright.core.files import replacing

_PIECE = 16 * 2**20


def adopt_files(staging: Path, known: Collection[str]) -> tuple[dict[str, FileFacts], list[str]]:
    """Facts of the files in ``staging`` besides those ``known``, and a sentence for each that was thrown out.

    A link to a file is replaced by what it points to: the checkpoint must stay whole when it is moved. What a
    checkpoint cannot hold (pipes, links to folders, names that could not be read back) is removed and named.
    """
    found: dict[str, FileFacts] = {}
    thrown_out: list[str] = []
    for path in list(_entries(staging)):
        name = path.relative_to(staging).as_posix()
        if name in known or name == MANIFEST:
            continue
        if reason := _unfit(path, name):
            thrown_out.append(f"{name.encode(errors='backslashreplace').decode()} ({reason})")
            discard(path) if path.is_dir() else path.unlink()
            continue
        if path.is_symlink():
            _replace_by_its_target(path)
        found[name] = facts_of(path)
    return found, thrown_out


def _entries(folder: Path) -> Iterator[Path]:
    """Everything in ``folder`` but its sub-folders, which are entered; links are not followed."""
    for root, folders, files in os.walk(folder):
        links = [name for name in folders if Path(root, name).is_symlink()]
        yield from sorted(Path(root, name) for name in [*files, *links])


def _unfit(path: Path, name: str) -> str | None:
    if not is_listable(name):
        return "its name could not be read back"
    if path.is_file():
        return None
    return "it is a link that leads nowhere or to a folder" if path.is_symlink() else "it is not a regular file"


def _replace_by_its_target(link: Path) -> None:
    with link.open("rb") as source, replacing(link) as file:
        shutil.copyfileobj(source, file, _PIECE)
