"""SparseML's loggers: where a loop of one's own sends the numbers of modifiers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

LOGGING_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}


class BaseLogger:
    """Takes numbers and texts by name; the answer is whether it wrote them."""

    def __init__(self, name: str, enabled: bool = True) -> None:
        self.name, self.enabled = name, enabled

    def log_hyperparams(self, params: Mapping[str, Any], level: int | None = None) -> bool:
        """Settings of the run."""
        return False

    def log_scalar(
        self, tag: str, value: float, step: int | None = None, wall_time: float | None = None, level: int | None = None
    ) -> bool:
        """One number."""
        return False

    def log_scalars(
        self,
        tag: str,
        values: Mapping[str, float],
        step: int | None = None,
        wall_time: float | None = None,
        level: int | None = None,
    ) -> bool:
        """Several numbers under one name."""
        written = [self.log_scalar(f"{tag}/{name}", value, step, wall_time, level) for name, value in values.items()]
        return bool(written) and all(written)

    def log_string(
        self, tag: str, string: str, step: int | None = None, wall_time: float | None = None, level: int | None = None
    ) -> bool:
        """One text."""
        return False

    def save(self, file_path: str, **kwargs: Any) -> bool:
        """Keep a file with the run."""
        return False


class LambdaLogger(BaseLogger):
    """Calls ``lambda_func(tag=, value=, values=, step=, wall_time=, level=)``, which may answer False."""

    def __init__(self, lambda_func: Callable[..., Any], name: str = "lambda", enabled: bool = True) -> None:
        super().__init__(name, enabled)
        self.lambda_func = lambda_func

    def _call(self, tag: str, value: Any, values: Any, step: Any, wall_time: Any, level: Any) -> bool:
        if not self.enabled:
            return False
        answer = self.lambda_func(tag=tag, value=value, values=values, step=step, wall_time=wall_time, level=level)
        return True if answer is None else bool(answer)

    def log_hyperparams(self, params: Mapping[str, Any], level: int | None = None) -> bool:
        return self._call("hyperparams", None, dict(params), None, None, level)

    def log_scalar(
        self, tag: str, value: float, step: int | None = None, wall_time: float | None = None, level: int | None = None
    ) -> bool:
        return self._call(tag, value, None, step, wall_time, level)

    def log_scalars(
        self,
        tag: str,
        values: Mapping[str, float],
        step: int | None = None,
        wall_time: float | None = None,
        level: int | None = None,
    ) -> bool:
        return self._call(tag, None, dict(values), step, wall_time, level)


class PythonLogger(BaseLogger):
    """Writes lines to a logger of Python's; by default "sparseml", at level INFO."""

    def __init__(
        self,
        logger: logging.Logger | None = None,
        log_level: int | None = None,
        name: str = "python",
        enabled: bool = True,
    ) -> None:
        super().__init__(name, enabled)
        self.logger = logger or logging.getLogger("sparseml")
        self._level = logging.INFO if log_level is None else log_level

    def _write(self, level: int | None, text: str, *values: object) -> bool:
        if self.enabled:
            self.logger.log(self._level if level is None else level, text, *values)
        return self.enabled

    def log_hyperparams(self, params: Mapping[str, Any], level: int | None = None) -> bool:
        return self._write(level, "%s", dict(params))

    def log_scalar(
        self, tag: str, value: float, step: int | None = None, wall_time: float | None = None, level: int | None = None
    ) -> bool:
        return self._write(level, "%s step %s: %s", tag, step, value)

    def log_string(
        self, tag: str, string: str, step: int | None = None, wall_time: float | None = None, level: int | None = None
    ) -> bool:
        return self._write(level, "%s step %s: %s", tag, step, string)


class TensorBoardLogger(BaseLogger):
    """Writes event files to ``log_path`` (by default ``./tensorboard``) with the first number, or to ``writer``."""

    def __init__(
        self,
        log_path: str | Path | None = None,
        writer: Any = None,
        name: str = "tensorboard",
        enabled: bool = True,
    ) -> None:
        super().__init__(name, enabled)
        if writer is not None and log_path is not None:
            raise ValueError("Pass log_path= or writer=, not both.")
        self._writer, self._path = writer, Path(log_path or "tensorboard")

    @property
    def writer(self) -> Any:
        """torch's SummaryWriter."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._path))
        return self._writer

    def log_scalar(
        self, tag: str, value: float, step: int | None = None, wall_time: float | None = None, level: int | None = None
    ) -> bool:
        if self.enabled:
            self.writer.add_scalar(tag, value, step, wall_time)
        return self.enabled


class WANDBLogger(BaseLogger):
    """Writes to Weights & Biases; ``init_kwargs`` begin a run there, where none has begun."""

    def __init__(self, init_kwargs: dict[str, Any] | None = None, name: str = "wandb", enabled: bool = True) -> None:
        super().__init__(name, enabled)
        import wandb

        self.wandb = wandb
        if wandb.run is None or init_kwargs:
            wandb.init(**(init_kwargs or {}))

    def log_scalar(
        self, tag: str, value: float, step: int | None = None, wall_time: float | None = None, level: int | None = None
    ) -> bool:
        if self.enabled:
            self.wandb.log({tag: value}, step=step)
        return self.enabled


class LoggerManager:
    """Several loggers as one, asked every ``log_frequency`` epochs: a number, None for each time.

    >>> seen = []
    >>> manager = LoggerManager([LambdaLogger(lambda **said: seen.append((said["tag"], said["value"])))])
    >>> manager.log_scalar("sparsity", 0.5)
    >>> seen, manager.log_ready(0.05, last_log_epoch=0.0), manager.log_ready(0.1, last_log_epoch=0.0)
    ([('sparsity', 0.5)], False, True)
    """

    def __init__(
        self,
        loggers: list[BaseLogger] | None = None,
        log_frequency: float | None = 0.1,
        log_python: bool = True,
        name: str = "manager",
    ) -> None:
        self.loggers = list(loggers or [])
        self.log_frequency, self.name = log_frequency, name
        self._takes_python = log_python

    def __len__(self) -> int:
        return len(self.loggers)

    def __iter__(self) -> Iterator[BaseLogger]:
        return iter(self.loggers)

    def add_logger(self, logger: BaseLogger) -> None:
        """One more."""
        self.loggers.append(logger)

    def log_ready(self, epoch: float | None, last_log_epoch: float | None) -> bool:
        """Whether enough of an epoch has passed."""
        if not self.log_frequency or epoch is None or last_log_epoch is None or last_log_epoch < 0:
            return True
        return epoch == last_log_epoch or epoch >= last_log_epoch + self.log_frequency

    @staticmethod
    def epoch_to_step(epoch: float, steps_per_epoch: float) -> int:
        """The same moment in steps."""
        return round(epoch * steps_per_epoch)

    def _chosen(self, types: str | list[str]) -> list[BaseLogger]:
        named = None if types == "__ALL__" else [types] if isinstance(types, str) else types
        chosen = [logger for logger in self.loggers if named is None or logger.name in named]
        return [logger for logger in chosen if self._takes_python or not isinstance(logger, PythonLogger)]

    def log_scalar(
        self,
        tag: str,
        value: float,
        step: int | None = None,
        wall_time: float | None = None,
        log_types: str | list[str] = "__ALL__",
        level: int | None = None,
    ) -> None:
        """One number, to all or to those called ``log_types``."""
        for logger in self._chosen(log_types):
            logger.log_scalar(tag, value, step=step, wall_time=wall_time, level=level)

    def log_scalars(
        self,
        tag: str,
        values: Mapping[str, float],
        step: int | None = None,
        wall_time: float | None = None,
        log_types: str | list[str] = "__ALL__",
        level: int | None = None,
    ) -> None:
        """Several numbers under one name."""
        for logger in self._chosen(log_types):
            logger.log_scalars(tag, values, step=step, wall_time=wall_time, level=level)

    def log_string(
        self,
        tag: str,
        string: str,
        step: int | None = None,
        wall_time: float | None = None,
        log_types: str | list[str] = "__ALL__",
        level: int | None = None,
    ) -> None:
        """One text."""
        for logger in self._chosen(log_types):
            logger.log_string(tag, string, step=step, wall_time=wall_time, level=level)

    def log_hyperparams(self, params: Mapping[str, Any], log_types: str | list[str] = "__ALL__") -> None:
        """Settings of the run."""
        for logger in self._chosen(log_types):
            logger.log_hyperparams(params)

    def save(self, file_path: str, **kwargs: Any) -> None:
        """Keep a file with the run, where a logger can."""
        for logger in self.loggers:
            logger.save(file_path, **kwargs)
