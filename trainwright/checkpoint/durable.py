"""Files and folders that are on disk once a call returns: written, hashed, and forced out of the caches.

Everything a checkpoint writes goes through the few ``os`` calls in this file, so that a test can make each of them the
last one (``tests/faults``).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

Chunk = bytes | memoryview

_PIECE = 16 * 2**20
#: Below this a second thread costs more than it brings.
_HASH_ASIDE = 2 * 2**20


class FileFacts(NamedTuple):
    """What the manifest keeps of a file."""

    size: int
    sha256: str


def write_file(path: Path, chunks: Sequence[Chunk]) -> FileFacts:
    """Write ``chunks``, hashing them on the side, and wait until they are on disk."""
    views = [memoryview(chunk).cast("B") for chunk in chunks]
    size = sum(len(view) for view in views)
    hashing = _Hashing(views)
    hashing.start(aside=size >= _HASH_ASIDE)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0), 0o666)
    try:
        for view in views:
            _write_all(descriptor, view)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return FileFacts(size, hashing.digest())


def _write_all(descriptor: int, view: memoryview) -> None:
    start = 0
    while start < len(view):
        start += os.write(descriptor, view[start : start + _PIECE])


class _Hashing:
    """SHA-256 of chunks in memory, while another thread writes them: hashlib lets go of the interpreter."""

    def __init__(self, views: Iterable[memoryview]) -> None:
        self._views = views
        self._sum = hashlib.sha256()
        self._thread: threading.Thread | None = None

    def start(self, *, aside: bool) -> None:
        if not aside:
            self._run()
            return
        self._thread = threading.Thread(target=self._run, name="trainwright-hash", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for view in self._views:
            self._sum.update(view)

    def digest(self) -> str:
        if self._thread is not None:
            self._thread.join()
        return self._sum.hexdigest()


def sync_file(path: Path) -> FileFacts:
    """Force a file that somebody else wrote to disk; returns its size and hash."""
    descriptor = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return facts_of(path)


def facts_of(path: Path) -> FileFacts:
    """Size and hash of a file as it is on disk."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return FileFacts(file.tell(), digest.hexdigest())


def sync_folder(folder: Path) -> None:
    """Force the names in ``folder`` to disk; a system without that operation (Windows) does it by itself."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(staging: Path, target: Path) -> None:
    """Give a finished folder its name: one rename, so it is there whole or not at all.

    With several processes exactly one of them calls this, after all have written; the others wait for the name.
    """
    sync_folder(staging)
    aside = aside_of(target)
    if target.exists():
        # The same step saved again. Killed between the two renames, the next start puts the old one back.
        discard(aside)
        os.rename(target, aside)
    os.rename(staging, target)
    sync_folder(target.parent)
    discard(aside)


def staging_of(target: Path) -> Path:
    """Where ``target`` is written: beside it, so on the same filesystem, where a rename is one operation."""
    return target.with_name(f".{target.name}.writing")


def aside_of(target: Path) -> Path:
    """Where an older ``target`` waits while it is replaced."""
    return target.with_name(f".{target.name}.replaced")


def doomed_of(target: Path) -> Path:
    """What ``target`` is called while it is deleted: half of it must not look like a checkpoint."""
    return target.with_name(f".{target.name}.deleting")


def delete_folder(folder: Path) -> None:
    """Rename, then delete; killed in between, the next start finishes it."""
    doomed = doomed_of(folder)
    discard(doomed)
    os.rename(folder, doomed)
    discard(doomed)


def discard(folder: Path) -> None:
    """Remove a folder of ours if it is there; a link is removed, never followed."""
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder, ignore_errors=True)


def write_text(path: Path, text: str) -> FileFacts:
    return write_file(path, [text.encode("utf-8")])
