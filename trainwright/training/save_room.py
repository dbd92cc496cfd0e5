"""After a run's first step: make the room that its first checkpoint will need."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from trainwright.checkpoint.save_room import SMALLEST
from trainwright.config.arguments import TrainingArguments
from trainwright.config.intervals import SAVE, cadence
from trainwright.core.callback import TrainerCallback
from trainwright.core.state import TrainerControl, TrainerState
from trainwright.training.setup import Setup

logger = logging.getLogger("trainwright")


def wants_room_for_saves(setup: Setup) -> bool:
    """Whether this process is going to write checkpoints of a model on the CPU that is large enough to matter."""
    engine, args = setup.engine, setup.args
    if not args.should_save or setup.writers is not None or not cadence(args, SAVE) or setup.model is None:
        return False
    if engine.device.type != "cpu" or engine.hides_weights or engine.weights.layout.gathered_to_save:
        return False
    return 3 * sum(parameter.nbytes for parameter in setup.model.parameters()) >= SMALLEST


class SaveRoomCallback(TrainerCallback):
    """Calls ``prepare`` once the optimizer has its state, which is after the first step of this process."""

    _is_internal = True
    _leaves_model_alone = True

    def __init__(self, prepare: Callable[[], None]) -> None:
        self._prepare: Callable[[], None] | None = prepare

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        prepare, self._prepare = self._prepare, None
        if prepare is None or control.should_save:
            return
        try:
            prepare()
        except Exception as error:
            # Model and optimizer are asked for their state, and their code is not ours: the save itself will say.
            logger.debug("No room was made for the first checkpoint: %s: %s", type(error).__name__, error)
