"""Where a run's numbers go: the protocol that trackers implement."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker learns when a run starts.

    >>> run = TrackedRun(folder=Path("runs/first"), config={"learning_rate": 0.1}, tags=("baseline",))
    >>> run.project, run.earlier_id
    ('trainwright', None)
    """

    #: The run directory.
    folder: Path
    #: What the user set; secrets are masked.
    config: dict[str, Any] = field(default_factory=dict)
    #: What ``env.json`` says: versions, hardware, git commit.
    facts: dict[str, Any] = field(default_factory=dict)
    #: ``run_name``.
    name: str | None = None
    project: str = "trainwright"
    tags: tuple[str, ...] = ()
    #: The id that this tracker gave the run, where it goes on from a checkpoint.
    earlier_id: str | None = None
    #: Steps done before: what a tracker already holds of later ones came from a process that was stopped.
    step: int = 0


class Histogram(NamedTuple):
    """Counts of numbers in bins of equal width between ``low`` and ``high``.

    >>> Histogram(0.0, 1.0, [3, 1]).edges()
    [0.0, 0.5, 1.0]
    """

    low: float
    high: float
    counts: list[int]

    def edges(self) -> list[float]:
        """Where bins begin, and where the last one ends."""
        width = (self.high - self.low) / len(self.counts)
        return [self.low + width * place for place in range(len(self.counts))] + [self.high]


class Tracker(Protocol):
    """Receives a run's configuration, scalars and files. One small file each in ``trainwright/trackers``.

    All methods are called from one thread that belongs to the tracker, one after the other, so they may wait for a
    server. What raises is tried again later. ``log_artifact`` and ``log_image`` may be missing.
    """

    def start(self, run: TrackedRun) -> str | None:
        """Open the run, and return the id under which it can be continued, if there is one.

        Import the package here. Raise ``ValueError`` for what the user must correct: it ends the run before its first
        step; any other error means that the service cannot be reached now.
        """
        ...

    def log(self, values: dict[str, float], step: int) -> None:
        """Numbers of one moment, named as in ``metrics.jsonl``: ``loss``, ``eval_loss``, ..."""
        ...

    def log_artifact(self, path: Path, name: str | None = None) -> None:
        """A file or a folder."""
        ...

    def log_image(self, name: str, image: Any, step: int) -> None:
        """``image`` is the path of a picture, or an array of bytes: height x width, or height x width x colours."""
        ...

    def finish(self, status: str) -> None:
        """``status`` is ``"done"``, ``"failed"`` or ``"stopped"`` (by a signal, ``max_hours`` or Ctrl-C)."""
        ...


def scalars(values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among ``values``, NaN and infinity included.

    >>> scalars({"loss": 0.5, "note": "text", "steps": 3})
    {'loss': 0.5, 'steps': 3}
    """
    found: dict[str, float] = {}
    for name, value in values.items():
        if hasattr(value, "item") and getattr(value, "size", 1) == 1:
            # numpy's scalars are no floats to every package.
            value = value.item()
        if isinstance(value, (int, float)):
            found[name] = value
    return found


def finite(values: Mapping[str, float]) -> dict[str, float]:
    """Without NaN and infinity, for services that cannot store them."""
    return {name: value for name, value in values.items() if math.isfinite(value)}


class ShowsMore(Tracker, Protocol):
    """A tracker that shows more than numbers, pictures and files. Each of these methods may be missing."""

    def log_histogram(self, name: str, histogram: Histogram, step: int) -> None:
        """How the numbers of a weight or a gradient are spread (``log_histograms``)."""
        ...

    def log_text(self, name: str, text: str, step: int) -> None:
        """Text, such as what a model writes (``SamplePredictions``)."""
        ...
