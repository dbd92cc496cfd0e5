"""Where a run's numbers go: the protocol that trackers implement."""

from __future__ import annotations

from typing import Any, Protocol


class Tracker(Protocol):
    """Receives a run's configuration and scalars. One small file each in ``trainwright/trackers``."""

    def start(self, config: dict[str, Any], facts: dict[str, Any]) -> None:
        """Open the run: ``config`` is what the user set, ``facts`` what ``env.json`` says."""
        ...

    def log(self, values: dict[str, float], step: int) -> None: ...

    def finish(self, status: str) -> None:
        """``status`` is ``"done"`` or ``"failed"``."""
        ...
