"""A record lock on a file: gone with its process, however that ends, and not handed on to processes forked from it.

The system drops it when *any* descriptor of the file is closed in the process, for instance by a callback that copies
the folder: whoever needs it takes it again now and then. The file holds the token of whoever took the lock last.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has other locks
    fcntl = None  # type: ignore[assignment]

_HELD = (errno.EACCES, errno.EAGAIN)


class LockFile:
    """A file that one process at a time can lock; where the system has no such locks, everybody can.

    Args:
        path: The file; it is made, and stays.
        token: What is left in it.
    """

    def __init__(self, path: Path, token: str) -> None:
        self.path = path
        self._token = token
        self._descriptor: int | None = None

    def open(self) -> None:
        """Open the lock file; ``OSError`` where it cannot be locked."""
        if fcntl is None:
            return
        os.close(self._opened(os.O_RDWR | os.O_CREAT))
        # Kept open for reading only: a file that is open for writing keeps a disk from being made read-only.
        self._descriptor = self._opened(os.O_RDONLY)

    def _opened(self, mode: int) -> int:
        flags = mode | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        descriptor = os.open(self.path, flags, 0o666)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "it is not a regular file", str(self.path))
        return descriptor

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def is_where_it_was(self) -> bool:
        """Return False when the lock file was removed, or the folder moved: others would open another one."""
        if self._descriptor is None:
            return fcntl is None
        mine = os.fstat(self._descriptor)
        try:
            there = os.stat(self.path, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)

    def take(self) -> bool:
        """Take the lock; False when another process has it. Where there are no locks nobody has.

        Exclusive for a moment, in which the token is left, and shared from then on, which a file that is open for
        reading can be. Whoever came between the two finds the other's token, and has to try again.
        """
        if fcntl is None or self._descriptor is None:
            return True
        try:
            if not self.is_where_it_was():
                # Somebody has removed it: others will meet at the new one.
                self.close()
                self.open()
            writer = self._opened(os.O_RDWR)
        except OSError:
            return True
        try:
            fcntl.lockf(writer, fcntl.LOCK_EX | fcntl.LOCK_NB)
            was_signed = self._write_token(writer)
        except OSError as error:
            return error.errno not in _HELD
        finally:
            os.close(writer)
        return self.share() and (not was_signed or self.is_signed())

    def share(self) -> bool:
        """Keep others from taking the lock; False when one is taking it at this moment."""
        if fcntl is None or self._descriptor is None:
            return True
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno not in _HELD
        return True

    def sign(self) -> None:
        """Leave the token in the lock file, for whoever had it before and wakes up late; this drops the lock."""
        if self._descriptor is None:
            return
        with contextlib.suppress(OSError):
            writer = self._opened(os.O_RDWR)
            try:
                self._write_token(writer)
            finally:
                os.close(writer)

    def _write_token(self, writer: int) -> bool:
        try:
            os.pwrite(writer, self._token.encode(), 0)
        except OSError:
            # A full disk: then nothing can be told by it.
            return False
        return True

    def is_signed(self) -> bool:
        """Return True when this training was the last to take it."""
        return self.signed() == self._token

    def signed(self) -> str:
        """The token of whoever took the folder last; read through the descriptor that is open anyway."""
        if self._descriptor is None:
            return ""
        try:
            return os.pread(self._descriptor, len(self._token), 0).decode("ascii", errors="replace")
        except OSError:
            return ""
