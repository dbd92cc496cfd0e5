"""What each of several processes says, in a file of its own: ``<run>/logs/rank-00000.log``."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from trainwright.config.arguments import TrainingArguments
from trainwright.config.secrets import redacted
from trainwright.core.callback import TrainerCallback
from trainwright.core.state import TrainerControl, TrainerState

FOLDER = "logs"
logger = logging.getLogger("trainwright")


class _Redacted(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return redacted(super().format(record))


class RankLogCallback(TrainerCallback):
    """Writes what the logger "trainwright" says while a training runs; warnings always, the rest by ``log_level``."""

    _is_internal = True

    _leaves_model_alone = True

    def __init__(self, folder: Path, rank: int, level: int) -> None:
        self._path = folder / FOLDER / f"rank-{rank:05d}.log"
        self._level = min(level, logging.WARNING)
        self._handler: logging.Handler | None = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._close()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handler = logging.FileHandler(self._path, encoding="utf-8")
        except OSError as error:
            logger.warning("%s could not be written (%s); training goes on.", self._path, error.strerror)
            return
        handler.setLevel(self._level)
        handler.setFormatter(_Redacted("%(asctime)s %(levelname)s %(message)s"))
        self._handler = handler
        logger.addHandler(handler)
        at = f", from step {state.global_step}" if state.global_step else ""
        handler.handle(
            logger.makeRecord(
                logger.name,
                logging.INFO,
                __file__,
                0,
                "Process %d of %d begins%s.",
                (args.process_index, args.world_size, at),
                None,
            )
        )

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        self._close()

    def on_train_failed(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        error = kwargs["error"]
        if self._handler is not None:
            record = logger.makeRecord(
                logger.name, logging.ERROR, __file__, 0, "Ended by %s: %s", (type(error).__name__, error), None
            )
            self._handler.handle(record)
        self._close()

    def _close(self) -> None:
        if self._handler is not None:
            logger.removeHandler(self._handler)
            self._handler.close()
            self._handler = None
