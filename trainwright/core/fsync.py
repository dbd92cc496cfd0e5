"""Force files and folders out of the system's caches, so that they outlive a crash of the machine."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

logger = logging.getLogger("trainwright")

#: Files that are forced to disk at the same time: a slow disk takes as long for all of them as for one.
_FORCED_AT_ONCE = 16
#: What fsync answers where a filesystem (FUSE, some network drives) has no such operation.
_CANNOT_FORCE = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
#: Files are forced side by side: without it, several would say so before the first is done.
_SAYING = threading.Lock()


def fsync_file(descriptor: int) -> None:
    """Force an open file to disk; a filesystem that has no such operation is named once, and is no error."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_FORCE:
            raise
        with _SAYING:
            _say_that_nothing_is_forced(os.strerror(error.errno or 0))


@functools.cache
def _say_that_nothing_is_forced(reason: str) -> None:
    logger.warning(
        "This filesystem cannot force files to disk (fsync: %s): checkpoints survive a crash of the process, but those "
        "of the last seconds may not survive a crash of the machine.",
        reason,
    )


def sync_folder(folder: Path) -> None:
    """Force the names in ``folder`` to disk; a system without that operation (Windows) does it by itself."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fsync_file(descriptor)
    finally:
        os.close(descriptor)


def force_to_disk(paths: Iterable[Path], besides: Iterable[Path] = ()) -> None:
    """Force files and folders out of the caches, all at the same time; those ``besides`` need not be there."""
    waiting = [partial(_force_path, path) for path in paths] + [partial(_force_if_there, path) for path in besides]
    with ThreadPoolExecutor(min(_FORCED_AT_ONCE, len(waiting)) or 1, thread_name_prefix="trainwright-force") as pool:
        for done in [pool.submit(force) for force in waiting]:
            done.result()


def force_folder(folder: Path, besides: Iterable[Path] = ()) -> None:
    """Force everything in ``folder``, the folder itself, and the files ``besides`` that are there, to disk."""
    force_to_disk([folder, *folder.rglob("*")], besides)


def _force_if_there(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if path.is_file():
            _force_path(path)


def _force_path(path: Path) -> None:
    if path.is_dir():
        sync_folder(path)
        return
    # Only Windows wants to write what it flushes; elsewhere a file may be read-only.
    descriptor = os.open(path, (os.O_RDWR if os.name == "nt" else os.O_RDONLY) | getattr(os, "O_BINARY", 0))
    try:
        fsync_file(descriptor)
    finally:
        os.close(descriptor)
