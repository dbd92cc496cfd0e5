"""Trainer methods that hand files and pictures to trackers."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np

from trainwright.callbacks.tracking import TrackerCallback
from trainwright.trackers.pictures import png
from trainwright.trainer.hub import HubMethods


class ArtifactMethods(HubMethods):
    """``log_artifact`` and ``log_image``: for scripts after ``train()``, and for callbacks that know their Trainer."""

    def log_artifact(self, path: str | Path, name: str | None = None) -> None:
        """Hand a file or a folder to every tracker of ``report_to``, during or after training.

        Trackers read it a moment later, so it should stay as it is.
        """
        found = Path(path)
        if not found.exists():
            raise ValueError(f"log_artifact: there is no file or folder {path}.")
        self._hand_over("log_artifact", found, name)
        self._note("artifact", name or found.name, str(found))

    def log_image(self, name: str, image: Any) -> None:
        """Show a picture in every tracker of ``report_to``: a file, or an array of uint8, height x width [x 3]."""
        if not isinstance(image, (str, Path)):
            # A copy: it is read a moment later. What is no picture is refused now.
            image = np.array(image)
            png(image)
        elif not Path(image).is_file():
            raise ValueError(f"log_image: there is no file {image}.")
        self._hand_over("log_image", name, image, self.state.global_step)
        self._note("image", name, str(image) if isinstance(image, (str, Path)) else None)

    def _hand_over(self, verb: str, *values: Any) -> None:
        if not hasattr(self, "_events"):
            raise ValueError(f"{verb} belongs to a run: call it from a callback during train(), or after it.")
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, TrackerCallback):
                callback.tell(verb, *values)

    def _note(self, kind: str, name: str, path: str | None) -> None:
        if self.is_world_process_zero():
            message, step = f"Logged the {kind} {name}.", self.state.global_step
            self._events.record(kind, message, step=step, level=logging.INFO, name=name, path=path)
