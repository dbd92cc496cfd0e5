"""``dataloader_num_workers="auto"``: how many processes load data, by a rule and not by a stopwatch.

Batches do not depend on the number (what samples draw is seeded by their index), so two machines may differ in it.
"""

from __future__ import annotations

import os
from typing import Any

from trainwright.data.in_memory import is_in_memory
from trainwright.data.iterables import is_iterable

#: More than this rarely makes data come faster, and each holds a copy of what the dataset keeps in Python objects.
_MOST = 8


def auto_workers(dataset: Any) -> int:
    """The number of workers for ``dataset``, in this process.

    None for samples that are there already, and for streams, of which every worker would read all unless the dataset
    shares itself out. Otherwise this process's share of the cores, one of which trains; at most eight.

    >>> auto_workers([1, 2, 3])
    0
    """
    if dataset is None or isinstance(dataset, (list, tuple, dict)) or is_iterable(dataset) or is_in_memory(dataset):
        return 0
    return max(0, min(_cores() // _processes_here() - 1, _MOST))


def _cores() -> int:
    """Cores that this process may use: a scheduler may have given it a part of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processes_here() -> int:
    """Training processes on this machine, as launchers say."""
    return max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1))
