"""Batches that are there only so that processes stay in step."""

from __future__ import annotations

from typing import Any, NamedTuple


class Filler(NamedTuple):
    """A batch for a process that has no samples of its own where others still have: it is run, and has no weight."""

    batch: Any
