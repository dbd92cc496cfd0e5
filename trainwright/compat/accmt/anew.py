"""``resume=False`` where an earlier run has left checkpoints: they wait aside until the new run is done."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from trainwright.checkpoint.directory import list_checkpoints
from trainwright.checkpoint.durable import discard
from trainwright.core.callback import TrainerCallback
from trainwright.core.state import TrainerControl, TrainerState

logger = logging.getLogger("trainwright")

EARLIER = "earlier"


class SetAside(TrainerCallback):
    """Moves checkpoints of an earlier run into ``earlier``, so that they are not taken for this one's.

    They are deleted when this run has ended well.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._aside = folder, folder / EARLIER

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        found = list_checkpoints(self._folder) if args.should_save and state.global_step == 0 else []
        if not found:
            return
        discard(self._aside)
        self._aside.mkdir()
        for checkpoint in found:
            os.rename(checkpoint, self._aside / checkpoint.name)
        logger.info("resume=False: checkpoints of an earlier run wait in %s until this one is done.", self._aside)

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if args.should_save and list_checkpoints(self._folder):
            discard(self._aside)
