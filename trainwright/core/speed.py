"""How fast a training goes, as measured between two logs. A clock's numbers: no part of the log or of a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Speed:
    """What was measured since the log before; None where it is not known.

    ``state.speed`` in ``on_log`` is one of these.
    """

    #: Of training alone: evaluations and saves in between are left out.
    steps_per_second: float
    samples_per_second: float | None = None
    tokens_per_second: float | None = None
    flops_per_second: float | None = None
    #: Share of what this GPU can do at most; None where that is not known.
    mfu: float | None = None
    #: Share of the time that training waited for data, 0 to 1.
    data_wait: float | None = None
    #: Bytes: of a GPU the most since the log before, of a CPU training those of the process now.
    memory: int | None = None
    #: Bytes that there are.
    memory_total: int | None = None
