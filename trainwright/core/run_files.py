"""Files of a run directory, which anybody may have filled: a link in their place is replaced, never written through."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Write a whole file; the old one or the new one is there at any moment.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / "config.yaml").symlink_to(folder / "elsewhere")
    >>> replace_text(folder / "config.yaml", "seed: 1")
    >>> (folder / "elsewhere").exists(), (folder / "config.yaml").is_symlink()
    (False, False)
    """
    draft = path.with_name(f".{path.name}.writing")
    draft.unlink(missing_ok=True)
    with draft.open("x", encoding="utf-8") as file:
        file.write(text)
    os.replace(draft, path)


def append_text(path: Path, text: str) -> None:
    """Add to the end of a file. ``OSError`` for a link, a pipe or a device, without waiting for it."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(path, flags, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    with os.fdopen(descriptor, "a", encoding="utf-8") as file:
        file.write(text)
