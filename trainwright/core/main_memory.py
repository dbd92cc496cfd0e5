"""How much main memory there is, is left, and is taken by this process."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

_OF_THE_MACHINE = Path("/proc/meminfo")
#: Where a container's limit stands (cgroup version 2), and what it has used.
_LIMIT, _USED = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")


def available_memory() -> int | None:
    """Bytes that could be used without pushing anything out; None where the system does not say."""
    found: list[int] = []
    with suppress(OSError, ValueError, IndexError):
        for line in _OF_THE_MACHINE.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    # "max" where there is no limit: no number, and no matter.
    with suppress(OSError, ValueError):
        found.append(int(_LIMIT.read_text(encoding="ascii")) - int(_USED.read_text(encoding="ascii")))
    return min(found, default=None)


def process_memory() -> int:
    """Bytes of main memory that this process takes; where the system does not say, the most so far, or 0."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        pass
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def machine_memory() -> int:
    """Bytes of main memory that there are, for this container where it has a limit; 0 where nobody says."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return 0
    try:
        # "max" means none.
        return min(total, int(_LIMIT.read_text(encoding="ascii")))
    except (OSError, ValueError):
        return total
