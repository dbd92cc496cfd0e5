"""Files and folders of checkpoints that are on disk once a call returns: written, hashed, forced out of the caches.

Everything a checkpoint writes goes through the few ``os`` calls here and in ``core/fsync.py``, so that a test can make
each of them the last one (``tests/faults``).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import shutil
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

from trainwright.core.files import draft_of
from trainwright.core.fsync import fsync_file, sync_folder

Chunk = bytes | memoryview

_PIECE = 16 * 2**20
#: Below this a second thread costs more than it brings.
_HASH_ASIDE = 2 * 2**20
_BINARY = getattr(os, "O_BINARY", 0)
#: Of Linux: paths count from the working directory; two names are exchanged.
_HERE, _EXCHANGE = -100, 2


class FileFacts(NamedTuple):
    """What the manifest keeps of a file."""

    size: int
    sha256: str


def write_file(path: Path, chunks: Sequence[Chunk], *, force: bool = True) -> FileFacts:
    """Write ``chunks``, hashing them on the side, and wait until they are on disk.

    With ``force=False`` they may still be in a cache: ``force_to_disk`` comes later, for many files together.
    """
    views = [memoryview(chunk).cast("B") for chunk in chunks]
    size = sum(len(view) for view in views)
    hashing = _Hashing(views)
    hashing.start(aside=size >= _HASH_ASIDE)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _BINARY, 0o666)
    try:
        for view in views:
            _write_all(descriptor, view)
        if force:
            fsync_file(descriptor)
    finally:
        os.close(descriptor)
    return FileFacts(size, hashing.digest())


def write_text(path: Path, text: str, *, force: bool = True) -> FileFacts:
    return write_file(path, [text.encode("utf-8")], force=force)


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


# ---- reading


def open_regular(path: Path) -> BufferedReader:
    """Open a file to read it; ``OSError`` for a pipe, a device or a folder in its place, without waiting for it."""
    # O_NONBLOCK: opening a pipe would otherwise wait for somebody who writes into it.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _BINARY)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def facts_of(path: Path) -> FileFacts:
    """Size and hash of a file as it is on disk."""
    with open_regular(path) as file:
        digest = hashlib.file_digest(file, "sha256")
        return FileFacts(file.tell(), digest.hexdigest())


# ---- folders


def publish(staging: Path, target: Path, rescue: Callable[[Path], None] = lambda replaced: None) -> None:
    """Give a finished folder, which is on disk, its name: in one moment, so it is there whole or not at all.

    An older folder of that name goes in the same moment; where the system cannot exchange names (other than Linux, some
    network disks) it is away for an instant before. A file of that name is never touched.

    ``rescue`` is called with the older folder of that name, if there is one, before it is deleted. With several
    processes exactly one of them calls this, after all have written; the others wait for the name.
    """
    aside = aside_of(target)
    if target.exists() and not target.is_dir():
        raise FileExistsError(
            errno.EEXIST, "a file is there, which is not ours: move it, or choose another folder", str(target)
        )
    if target.exists():
        # The same step saved again. Under the name of the older one, so that it counts as such if we are killed here.
        discard(aside)
        os.rename(staging, aside)
        if not exchange(aside, target):
            # Killed between the last two renames, the next start puts the old one back.
            os.rename(aside, staging)
            os.rename(target, aside)
            os.rename(staging, target)
    else:
        os.rename(staging, target)
    sync_folder(target.parent)
    if aside.is_dir():
        rescue(aside)
    discard(aside)


def exchange(one: Path, other: Path) -> bool:
    """Let two folders take each other's name in one moment; False where the system or the disk cannot."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        rename: Any = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    return rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0


def move_entries(folder: Path, target: Path) -> None:
    """Move everything in ``folder`` into ``target``, which is on the same disk, and delete the folder."""
    for entry in list(folder.iterdir()):
        os.rename(entry, target / entry.name)
    folder.rmdir()


def rename_to_first_free(path: Path, ending: str) -> Path:
    """Rename ``path`` to its name with ``ending`` and the first number that is free; returns where it is now."""
    number = 1
    while (free := path.with_name(f"{path.name}{ending}{number}")).exists():
        number += 1
    os.rename(path, free)
    return free


def staging_of(target: Path) -> Path:
    """Where the folder ``target`` is filled; the next start clears what a killed run left there."""
    return draft_of(target)


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
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        # A pipe of that name would be waited for.
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            _make_writable(folder)
            shutil.rmtree(folder, ignore_errors=True)


def _make_writable(folder: Path) -> None:
    """Files cannot be deleted from folders that are read-only, as those copied from a cache may be."""
    with contextlib.suppress(OSError):
        folder.chmod(0o700)
        for root, folders, _ in os.walk(folder):
            for path in (Path(root, name) for name in folders):
                if not path.is_symlink():
                    path.chmod(0o700)
