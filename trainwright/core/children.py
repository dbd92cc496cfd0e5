"""Processes that this one has started through multiprocessing, such as the workers of data loaders."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

#: Python's own library, and the one that Hugging Face's datasets use in its place.
_LIBRARIES = ("multiprocessing", "multiprocess")
_PR_SET_PDEATHSIG = 1


def kill_children() -> list[int]:
    """Kill those that would be ended when this process ends in good order, which it is about not to do."""
    found = [
        child
        for name in _LIBRARIES
        if (library := sys.modules.get(name)) is not None
        for child in library.active_children()
        if child.daemon and child.pid is not None
    ]
    for child in found:
        with contextlib.suppress(ProcessLookupError, OSError):
            os.kill(child.pid, getattr(signal, "SIGKILL", signal.SIGTERM))
    return [child.pid for child in found]


def end_with_parent(number: int) -> None:
    """Let the kernel send this process a signal when the one that started it is gone, however it went; Linux only.

    The kernel means the thread that started it, so that must be one that stays.
    """
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:
        # It was gone before the kernel was asked.
        os.kill(os.getpid(), number)
