"""How much main memory is left, for this process and those beside it."""

from __future__ import annotations

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
