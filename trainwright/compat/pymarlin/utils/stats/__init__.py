"""Statistics; ``global_stats`` are those of the Trainer that was made last in this thread or task.

Before there is one they are collected all the same, for writers that are named with ``global_stats.rebuild``.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from trainwright.compat.pymarlin.utils.stats.basic_stats import BasicStats, StatInitArguments

__all__ = ["BasicStats", "StatInitArguments", "global_stats", "use_stats"]

_present: ContextVar[BasicStats | None] = ContextVar("present_stats", default=None)


class _PresentStats:
    """Stands for the present Trainer's statistics, so that ``from ... import global_stats`` may come first."""

    def __getattr__(self, name: str) -> Any:
        stats = _present.get()
        if stats is None:
            stats = BasicStats(StatInitArguments())
            use_stats(stats)
        return getattr(stats, name)


#: PyMarlin's one object for everybody. Here each Trainer has its own; this is the present one's.
global_stats: Any = _PresentStats()


def use_stats(stats: BasicStats) -> None:
    """Let ``global_stats`` stand for ``stats`` in this thread."""
    _present.set(stats)
