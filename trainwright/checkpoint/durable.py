"""Files and folders that are on disk once a call returns: written, hashed, and forced out of the caches.

Everything a checkpoint writes goes through the few ``os`` calls in this file, so that a test can make each of them the
last one (``tests/faults``).
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import logging
import os
import shutil
import stat
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

logger = logging.getLogger("trainwright")

Chunk = bytes | memoryview

_PIECE = 16 * 2**20
#: Below this a second thread costs more than it brings.
_HASH_ASIDE = 2 * 2**20
#: Files that are forced to disk at the same time: a slow disk takes as long for all of them as for one.
_FORCED_AT_ONCE = 16
#: What fsync answers where a filesystem (FUSE, some network drives) has no such operation.
_CANNOT_FORCE = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
_BINARY = getattr(os, "O_BINARY", 0)


class FileFacts(NamedTuple):
    """What the manifest keeps of a file."""

    size: int
    sha256: str


def write_file(path: Path, chunks: Sequence[Chunk], *, force: bool = True) -> FileFacts:
    """Write ``chunks``, hashing them on the side, and wait until they are on disk.

    With ``force=False`` they may still be in a cache: :func:`force_to_disk` comes later, for many files together.
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
            _force(descriptor)
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


# ---- forcing to disk


def force_to_disk(paths: Iterable[Path]) -> None:
    """Force files and folders out of the caches, all at the same time."""
    waiting = list(paths)
    with ThreadPoolExecutor(min(_FORCED_AT_ONCE, len(waiting)) or 1, thread_name_prefix="trainwright-force") as pool:
        for done in [pool.submit(_force_path, path) for path in waiting]:
            done.result()


def force_folder(folder: Path) -> None:
    """Force everything in ``folder``, and the folder itself, to disk."""
    force_to_disk([folder, *folder.rglob("*")])


def sync_folder(folder: Path) -> None:
    """Force the names in ``folder`` to disk; a system without that operation (Windows) does it by itself."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _force(descriptor)
    finally:
        os.close(descriptor)


def _force_path(path: Path) -> None:
    if path.is_dir():
        sync_folder(path)
        return
    # Only Windows wants to write what it flushes; elsewhere a file may be read-only.
    descriptor = os.open(path, (os.O_RDWR if os.name == "nt" else os.O_RDONLY) | _BINARY)
    try:
        _force(descriptor)
    finally:
        os.close(descriptor)


def _force(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_FORCE:
            raise
        with _SAYING:
            _say_that_nothing_is_forced(os.strerror(error.errno or 0))


#: Files are forced side by side: without it, several would say so before the first is done.
_SAYING = threading.Lock()


@functools.cache
def _say_that_nothing_is_forced(reason: str) -> None:
    logger.warning(
        "This filesystem cannot force files to disk (fsync: %s): checkpoints survive a crash of the process, but those "
        "of the last seconds may not survive a crash of the machine.",
        reason,
    )


# ---- folders


def publish(staging: Path, target: Path) -> None:
    """Give a finished folder, which is on disk, its name: one rename, so it is there whole or not at all.

    With several processes exactly one of them calls this, after all have written; the others wait for the name.
    """
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
