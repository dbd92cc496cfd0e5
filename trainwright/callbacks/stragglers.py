"""Step times of all processes in the training log, so that a slow one is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainwright.config.arguments import TrainingArguments
from trainwright.core.callback import TrainerCallback
from trainwright.core.state import TrainerControl, TrainerState


class StragglersCallback(TrainerCallback):
    """Adds ``step_seconds_min``, ``_mean``, ``_max`` and ``slowest_rank`` to each log of training.

    ``read`` gives the mean seconds per step that each process worked by itself since the last log; ``log_history`` does
    not get them, so that it is the same in every run of the same training.
    """

    _is_internal = True
    _listens_first = True

    _leaves_model_alone = True

    def __init__(self, read: Callable[[], list[float]]) -> None:
        self._read = read

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        logs = kwargs.get("logs")
        if not logs or "loss" not in logs:
            return
        every = self._read()
        if every:
            slowest = max(every)
            logs["step_seconds_min"] = min(every)
            logs["step_seconds_mean"] = sum(every) / len(every)
            logs["step_seconds_max"] = slowest
            logs["slowest_rank"] = every.index(slowest)
