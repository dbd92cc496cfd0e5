"""A real terminal for tests: a child process behind a pty, and the screen that a person would see."""

from __future__ import annotations

import codecs
import errno
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from dataclasses import dataclass, field
from pathlib import Path

import pyte


@dataclass
class Seen:
    """What a terminal showed."""

    #: The screen after each piece of output, without what is empty at its foot.
    screens: list[list[str]] = field(default_factory=list)
    #: The same with colours, where they were asked for.
    styled: list[list[list[pyte.screens.Char]]] = field(default_factory=list)
    code: int = 0
    screen: pyte.HistoryScreen | None = None

    @property
    def last(self) -> list[str]:
        return self.screens[-1]

    @property
    def all_lines(self) -> list[str]:
        """Everything that scrolled away, and the last screen."""
        assert self.screen is not None
        gone = ["".join(row[x].data for x in range(self.screen.columns)) for row in self.screen.history.top]
        return [line.rstrip() for line in gone] + self.last


def watch(
    script: Path, *words: str, columns: int = 80, lines: int = 24, within: float = 90.0, styled: bool = False
) -> Seen:
    """Run a Python script in a terminal of this size until it ends."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    child = subprocess.Popen(
        [sys.executable, str(script), *words],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**without_size(), "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"},
        start_new_session=True,
    )
    os.close(follower)
    seen = Seen(screen=pyte.HistoryScreen(columns, lines, history=5000))
    stream, decode = pyte.Stream(seen.screen), codecs.getincrementaldecoder("utf-8")("replace").decode
    until = time.monotonic() + within
    try:
        while (left := until - time.monotonic()) > 0 and (text := _read(leader, left)):
            stream.feed(decode(text))
            assert seen.screen is not None
            shown = [line.rstrip() for line in seen.screen.display]
            while shown and not shown[-1]:
                shown.pop()
            seen.screens.append(shown)
            if styled:
                buffer = seen.screen.buffer
                seen.styled.append([[buffer[y][x] for x in range(columns)] for y in range(lines)])
        seen.code = child.wait(max(until - time.monotonic(), 1))
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
        os.close(leader)
    return seen


def without_size() -> dict[str, str]:
    """The environment, without what says how large a terminal is and what it can do."""
    names = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
    return {name: value for name, value in os.environ.items() if name not in names}


def _read(leader: int, within: float) -> bytes:
    ready, _, _ = select.select([leader], [], [], within)
    if not ready:
        return b""
    try:
        return os.read(leader, 65536)
    except OSError as error:
        if error.errno == errno.EIO:
            # The child has closed its side.
            return b""
        raise
