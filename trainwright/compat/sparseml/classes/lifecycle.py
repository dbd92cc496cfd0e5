"""SparseML's life cycle of a modifier for PyTorch: what a class of one's own overrides, and when it is called."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from trainwright.compat.sparseml.classes.bases import BaseModifier, BaseScheduled, BaseUpdate
from trainwright.compat.sparseml.classes.properties import ModifierProp
from trainwright.compat.sparseml.classes.texts import PYTORCH_FRAMEWORK
from trainwright.compat.sparseml.loggers import LoggerManager
from trainwright.compat.sparseml.sparsification.types import SparsificationTypes


class Modifier(BaseModifier):
    """First ``initialize``, last ``finalize``; in each step ``update``, ``loss_update``, and what is around it."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._loggers: LoggerManager | None = None

    @staticmethod
    def load_list(yaml_str: str) -> Any:
        """The modifiers of a recipe: a list, or by stage where it has stages."""
        return BaseModifier.load_framework_list(yaml_str, PYTORCH_FRAMEWORK)

    @staticmethod
    def load_obj(yaml_str: str) -> Any:
        """The one modifier that ``yaml_str`` describes."""
        return BaseModifier.load_framework_obj(yaml_str, PYTORCH_FRAMEWORK)

    @ModifierProp(serializable=False)
    def loggers_initialized(self) -> bool:
        """Whether it knows where to log."""
        return self._loggers is not None

    @ModifierProp(serializable=False)
    def loggers(self) -> Any:
        """Where it logs."""
        return [] if self._loggers is None else self._loggers

    def initialize_loggers(self, loggers: Any) -> None:
        """Log there from now on: a LoggerManager, a list of loggers or None."""
        self._loggers = loggers if isinstance(loggers, LoggerManager) else LoggerManager(list(loggers or []))

    def initialize(self, module: nn.Module, epoch: float = 0, loggers: Any = None, **kwargs: Any) -> None:
        """Get to know the model."""
        self._initialized = True
        self.initialize_loggers(loggers)

    def finalize(self, module: nn.Module | None = None, reset_loggers: bool = True, **kwargs: Any) -> None:
        """The training is over: let go of the model."""
        self._require_initialized()
        self._initialized = False
        if reset_loggers:
            self._loggers = None

    def apply(
        self, module: nn.Module, epoch: float = math.inf, loggers: Any = None, finalize: bool = True, **kwargs: Any
    ) -> None:
        """Do all of it at once, without a training."""
        self.initialize(module, epoch, loggers=loggers, **kwargs)
        if finalize:
            self.finalize(module, **kwargs)

    def apply_structure(
        self, module: nn.Module, epoch: float = 0.0, loggers: Any = None, finalize: bool = False, **kwargs: Any
    ) -> None:
        """The same where it makes another model of it; otherwise nothing."""
        if SparsificationTypes.structured in self.sparsification_types:
            self.apply(module, epoch, loggers, finalize, **kwargs)

    def update(self, module: nn.Module, optimizer: Any, epoch: float, steps_per_epoch: float) -> None:
        """It is time to act."""
        self._require_use()

    def log_update(self, module: nn.Module, optimizer: Any, epoch: float, steps_per_epoch: float) -> None:
        """It is time to log."""
        self._require_use()
        if self._loggers is None:
            raise RuntimeError(f"{type(self).__name__} has no loggers: call initialize_loggers() first.")

    def loss_update(
        self, loss: Any, module: nn.Module, optimizer: Any, epoch: float, steps_per_epoch: float, **kwargs: Any
    ) -> Any:
        """The loss as it should be, before ``backward``."""
        self._require_use()
        return loss

    def optimizer_pre_step(self, module: nn.Module, optimizer: Any, epoch: float, steps_per_epoch: float) -> None:
        """Gradients are there, the optimizer is about to step."""
        self._require_use()

    def optimizer_post_step(self, module: nn.Module, optimizer: Any, epoch: float, steps_per_epoch: float) -> None:
        """The optimizer has stepped."""
        self._require_use()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint should hold of it."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Take up what :meth:`state_dict` gave."""
        if strict and state_dict:
            raise IndexError(f"{type(self).__name__} has no state, and was given {', '.join(state_dict)}.")

    def _require_initialized(self) -> None:
        if not self._initialized:
            raise RuntimeError(f"{type(self).__name__} does not know its model: call initialize() first.")

    def _require_use(self) -> None:
        self._require_initialized()
        if not self._enabled:
            raise RuntimeError(f"{type(self).__name__} is switched off: set enabled = True.")


class ScheduledModifier(Modifier, BaseScheduled):
    """Acts when it starts and when it ends: ``scheduled_update`` calls ``update`` where ``update_ready`` says so."""

    def __init__(
        self,
        start_epoch: float = -1.0,
        min_start: float = -1.0,
        end_epoch: float = -1.0,
        min_end: float = -1.0,
        end_comparator: int | None = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            start_epoch=start_epoch,
            min_start=min_start,
            end_epoch=end_epoch,
            min_end=min_end,
            end_comparator=end_comparator,
            **kwargs,
        )
        self._started = self._ended = False
        self._is_scheduled = self._logs_now = False
        self._last_log_epoch = -1.0

    @staticmethod
    def log_call(func: Callable[..., Any]) -> Callable[..., Any]:
        """``func`` itself: calls are not logged here; what modifiers say is."""
        return func

    @ModifierProp(serializable=False)
    def started(self) -> bool:
        """Whether its start has come."""
        return self._started

    @ModifierProp(serializable=False)
    def ended(self) -> bool:
        """Whether its end has come."""
        return self._ended

    def go_on(self, *, started: bool, ended: bool) -> None:
        """Stand where a run that is resumed had come to."""
        self._started, self._ended = started, ended

    def start_pending(self, epoch: float, steps_per_epoch: float) -> bool:
        """Whether it should begin now."""
        self._require_initialized()
        has_come = self._start_epoch == -1 or 0 <= self._start_epoch <= epoch
        return self._enabled and has_come and not self._started and not self._ended

    def end_pending(self, epoch: float, steps_per_epoch: float) -> bool:
        """Whether it should end now."""
        self._require_initialized()
        return self._enabled and self._started and not self._ended and 0 <= self._end_epoch <= epoch

    def update_ready(self, epoch: float, steps_per_epoch: float) -> bool:
        """Whether there is something to do."""
        return self.start_pending(epoch, steps_per_epoch) or self.end_pending(epoch, steps_per_epoch)

    def scheduled_update(self, module: nn.Module, optimizer: Any, epoch: float, steps_per_epoch: float) -> None:
        """Call ``update``, and note that it began or ended."""
        self._require_initialized()
        if not self.update_ready(epoch, steps_per_epoch):
            raise RuntimeError(f"{type(self).__name__} has nothing to do at epoch {epoch}: ask update_ready() first.")
        self._is_scheduled = True
        try:
            self.update(module, optimizer, epoch=epoch, steps_per_epoch=steps_per_epoch)
        finally:
            self._is_scheduled = False
        if self.start_pending(epoch, steps_per_epoch):
            self._started = True
        if self.end_pending(epoch, steps_per_epoch):
            self._ended = True

    def update(self, module: nn.Module, optimizer: Any, epoch: float, steps_per_epoch: float) -> None:
        super().update(module, optimizer, epoch, steps_per_epoch)
        if not self._is_scheduled:
            raise RuntimeError("update() is called by scheduled_update(): call that.")

    def scheduled_log_update(
        self, module: nn.Module, optimizer: Optimizer, epoch: float, steps_per_epoch: float
    ) -> None:
        """Call ``log_update`` where the loggers want to hear of it."""
        super().log_update(module, optimizer, epoch, steps_per_epoch)
        assert self._loggers is not None
        if self._loggers and self._loggers.log_ready(epoch, self._last_log_epoch):
            self._last_log_epoch = epoch
            self._logs_now = True
            try:
                self.log_update(module, optimizer, epoch, steps_per_epoch)
            finally:
                self._logs_now = False

    def log_update(self, module: nn.Module, optimizer: Any, epoch: float, steps_per_epoch: float) -> None:
        super().log_update(module, optimizer, epoch, steps_per_epoch)
        if not self._logs_now:
            raise RuntimeError("log_update() is called by scheduled_log_update(): call that.")

    def log_scalar(
        self,
        value: float,
        tag: str | None = None,
        loggers: LoggerManager | None = None,
        epoch: float | None = None,
        steps_per_epoch: float | None = None,
        level: int | None = None,
    ) -> None:
        """Log a number; ``tag`` is by default the name of the class."""
        chosen = self.loggers if loggers is None else loggers
        if chosen:
            step = _step(epoch, steps_per_epoch)
            chosen.log_scalar(tag or type(self).__name__, value, step=step, level=level)

    def log_string(
        self,
        string: str,
        tag: str | None = None,
        loggers: LoggerManager | None = None,
        epoch: float | None = None,
        steps_per_epoch: float | None = None,
        level: int | None = None,
    ) -> None:
        """Log a text."""
        chosen = self.loggers if loggers is None else loggers
        if chosen:
            step = _step(epoch, steps_per_epoch)
            chosen.log_string(tag or type(self).__name__, string, step=step, level=level)


class ScheduledUpdateModifier(ScheduledModifier, BaseUpdate):
    """Acts also in between, every ``update_frequency`` epochs."""

    def __init__(
        self,
        start_epoch: float = -1.0,
        min_start: float = -1.0,
        end_epoch: float = -1.0,
        min_end: float = -1.0,
        end_comparator: int | None = 0,
        update_frequency: float = -1.0,
        min_frequency: float = -1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            start_epoch=start_epoch,
            min_start=min_start,
            end_epoch=end_epoch,
            min_end=min_end,
            end_comparator=end_comparator,
            update_frequency=update_frequency,
            min_frequency=min_frequency,
            **kwargs,
        )
        self._last_update_epoch = -1.0

    def update_ready(self, epoch: float, steps_per_epoch: float) -> bool:
        if super().update_ready(epoch, steps_per_epoch):
            return True
        if not self._enabled or not self._started or self._ended or epoch <= self._start_epoch:
            return False
        last, frequency = self._last_update_epoch, self._update_frequency
        return frequency == -1 or (last >= 0 and epoch >= last + frequency)

    def update(self, module: nn.Module, optimizer: Any, epoch: float, steps_per_epoch: float) -> None:
        self._last_update_epoch = epoch
        super().update(module, optimizer, epoch, steps_per_epoch)


def _step(epoch: float | None, steps_per_epoch: float | None) -> int | None:
    if epoch is None or steps_per_epoch is None or not math.isfinite(epoch):
        return None
    return LoggerManager.epoch_to_step(epoch, steps_per_epoch)
