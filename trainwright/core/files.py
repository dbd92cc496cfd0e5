"""Whole files, written beside their place and renamed into it: the old one or the new one is there at any moment.

The folder may be anybody's: a link in a file's place is replaced, never written through.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from trainwright.core.fsync import fsync_file, sync_folder


@contextlib.contextmanager
def replacing(path: Path, *, forced: bool = False, by_several: bool = False) -> Iterator[BinaryIO]:
    """A file to write into, which takes the place of ``path`` once the block ends without an error.

    With ``forced`` it is on disk before it takes the place, and its name after that. With ``by_several`` the draft
    carries the process id: others may write the same file at the same time.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "weights.bin"
    >>> with replacing(path) as file:
    ...     _ = file.write(b"half")
    ...     path.exists()
    False
    >>> path.read_bytes()
    b'half'
    """
    draft = draft_of(path, by_several=by_several)
    draft.unlink(missing_ok=True)
    try:
        with draft.open("xb") as file:
            yield file
            if forced:
                file.flush()
                fsync_file(file.fileno())
        os.replace(draft, path)
    except BaseException:
        # Nobody would come for it.
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    if forced:
        sync_folder(path.parent)


def replace_text(path: Path, text: str, *, forced: bool = False, by_several: bool = False) -> None:
    """Write a whole text file; see :func:`replacing`.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / "config.yaml").symlink_to(folder / "elsewhere")
    >>> replace_text(folder / "config.yaml", "seed: 1")
    >>> (folder / "elsewhere").exists(), (folder / "config.yaml").is_symlink()
    (False, False)
    """
    with replacing(path, forced=forced, by_several=by_several) as file:
        file.write(text.encode("utf-8"))


def draft_of(path: Path, *, by_several: bool = False) -> Path:
    """Where ``path`` is written: beside it, so on the same filesystem, where a rename is one operation."""
    writer = f".{os.getpid()}" if by_several else ""
    return path.with_name(f".{path.name}{writer}.writing")


def append_text(path: Path, text: str) -> None:
    """Add to the end of a file. ``OSError`` for a link, a pipe or a device, without waiting for it."""
    with os.fdopen(open_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "a", encoding="utf-8") as file:
        file.write(text)


@contextlib.contextmanager
def writing_there(path: Path) -> Iterator[BinaryIO]:
    """Write where a user has pointed: whole or not at all into a file, also one behind a link; a device stays one."""
    try:
        place = path.resolve()
    except RuntimeError as error:
        # What links in a circle raise before Python 3.13.
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from error
    if str(path.absolute()).startswith("/dev/") or (place.exists() and not place.is_file()):
        # Of a stream that goes into a file, what is there already stays.
        with path.open("ab") as file:
            yield file
        return
    with replacing(place) as file:
        if place.exists() and hasattr(os, "fchmod"):
            os.fchmod(file.fileno(), stat.S_IMODE(place.stat().st_mode))
        yield file


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a file that is no pipe or device and, to be written, no link; ``OSError`` for those, without waiting."""
    safely = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    if flags != os.O_RDONLY:
        safely |= getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(path, flags | safely, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return descriptor
