"""Files for the tracker, which is there once a training runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainwright.core.callback import TrainerCallback
from trainwright.core.state import TrainerControl, TrainerState


class Artifacts(TrainerCallback):
    """Keeps what ``log_artifact`` was given before ``fit``, and hands it over as soon as trackers listen."""

    def __init__(self) -> None:
        self._waiting: list[Path] = []

    def hand_over(self, path: Path) -> None:
        """Give a file to the trackers; the Trainer of a run sets it."""
        raise ValueError("There is no training whose tracker could take it.")

    def add(self, path: Path, native: Any) -> None:
        """Hand ``path`` over now where a training runs or has run, and otherwise when one begins."""
        if not path.exists():
            raise ValueError(f"log_artifact: there is no file or folder {path}.")
        if native is None or not native.state.global_step:
            # Absolute: somebody's code may change the working directory.
            self._waiting.append(path.absolute())
        else:
            self.hand_over(path)

    def on_epoch_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        waiting, self._waiting = self._waiting, []
        for path in waiting:
            self.hand_over(path)
