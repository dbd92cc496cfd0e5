"""The torch engine for a Module: values it logs, hooks in a step, and optimization that it does itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainwright.core.engine import Portion
from trainwright.engines.torch.engine import TorchEngine
from trainwright.engines.torch.joint import JointSchedule
from trainwright.engines.torch.logged import LoggedValues, ModuleMeter
from trainwright.engines.torch.module import Module, module_in


class ModuleEngine(TorchEngine):
    """As :class:`TorchEngine`; is also what the Module reaches by ``self.log`` and the like."""

    values: LoggedValues

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._new_values()

    def _new_values(self) -> None:
        skip = self.meter.skip_nonfinite
        self.values = LoggedValues(skip_nonfinite=skip, gather=self.gather)
        self.meter = ModuleMeter(self.values, skip_nonfinite=skip)

    def attach(self, model: nn.Module, optimizer: Optimizer, scheduler: Any) -> None:
        super().attach(model, optimizer, scheduler)
        self._new_values()
        module = module_in(model)
        assert module is not None
        self.module: Module = module

    def __deepcopy__(self, memo: dict[int, Any]) -> ModuleEngine:
        # A copy of the module, made to evaluate in another precision, belongs to the same run.
        return self

    def __reduce__(self) -> Any:
        # A module that is pickled, to be sent to a data worker say, is not run by anyone there.
        return (_nobody, ())

    # ---- a step

    def mark_boundary(self) -> None:
        self.values.drop()
        super().mark_boundary()

    def forward_backward(self, batch: object, portion: Portion, *, sync: bool) -> Tensor | None:
        with self.values.training(portion.targets):
            loss = super().forward_backward(batch, portion, sync=sync)
            if loss is not None and not _is_nothing(portion.weight):
                self.module.after_backward(loss)
        return loss

    def undo_step(self) -> None:
        super().undo_step()
        self.values.drop()
        self.module.on_step_redo()

    def record_loss(self, loss: Tensor | None) -> None:
        super().record_loss(loss)
        self.values.commit()

    def read_log(self) -> dict[str, float]:
        return {**super().read_log(), **self.values.read()}

    def plateau_step(self, value: float) -> None:
        if isinstance(self.scheduler, JointSchedule):
            self.scheduler.step_with_metric(value)
        else:
            super().plateau_step(value)

    # ---- what the Module calls

    def log(self, name: str, value: object, weight: object = None) -> None:
        self.values.log(name, value, weight)

    def optimizers(self) -> list[Any]:
        return getattr(self._in_training().optimizer, "optimizers", [self.optimizer])

    def schedulers(self) -> list[Any]:
        scheduler = self._in_training().scheduler
        if isinstance(scheduler, JointSchedule):
            return [entry.scheduler for entry in scheduler.entries]
        return [] if scheduler is None else [scheduler]

    def _in_training(self) -> ModuleEngine:
        if not hasattr(self, "module"):
            raise ValueError("The optimizers are made when training begins; there are none yet.")
        return self


class ManualEngine(ModuleEngine):
    """``training_step`` computes gradients and steps its optimizers; the engine keeps out of it."""

    def forward_backward(self, batch: object, portion: Portion, *, sync: bool) -> Tensor | None:
        with self.values.training(portion.targets):
            return self._training_step(batch, portion)

    def backward(self, loss: Tensor) -> None:
        with self._outside_autocast():
            loss.backward()

    def optimizers(self) -> list[Any]:
        return [SteppedByHand(optimizer, self) for optimizer in super().optimizers()]

    def finish_gradients(self, loss: Tensor | None, *, norm_wanted: bool) -> Tensor | None:
        if self.is_alone:
            return loss
        own = torch.zeros((), device=self.device) if loss is None else loss.float()
        return self.backend.sum(own) / self.backend.world_size

    def apply_update(self) -> None:
        self._step_lr = self.learning_rate()

    def clear_gradients(self) -> None:
        """Gradients are the module's business."""

    def read_log(self) -> dict[str, float]:
        had_loss = not (isinstance(self.meter, ModuleMeter) and self.meter.is_empty)
        logs = super().read_log()
        if not had_loss:
            del logs["loss"]
        return logs

    def plateau_step(self, value: float) -> None:
        """Schedules are the module's business."""

    def step_by_hand(self, optimizer: Optimizer, closure: Callable[[], Any] | None) -> Any:
        """Step one optimizer while nobody copies the weights."""
        self._link.update_begins()
        if not self.is_alone:
            self._average_gradients(optimizer)
        self._link.wait_for_copy()
        with self.update_lock, self._outside_autocast():
            return optimizer.step() if closure is None else optimizer.step(closure)

    def _average_gradients(self, optimizer: Optimizer) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.backend.reduce_gradients(parameters)
        gradients = [p.grad for p in parameters if p.grad is not None]
        if gradients:
            torch._foreach_div_(gradients, float(self.backend.world_size))

    def _outside_autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The whole of ``training_step`` runs under autocast, which is meant for forward passes."""
        if self.precision.dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, enabled=False)


class SteppedByHand:
    """An optimizer as ``training_step`` gets it: ``step`` waits for a checkpoint that is being copied."""

    def __init__(self, optimizer: Any, engine: ManualEngine) -> None:
        self._optimizer, self._engine = optimizer, engine

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        return self._engine.step_by_hand(self._optimizer, closure)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)


def _nobody() -> None:
    return None


def _is_nothing(weight: object) -> bool:
    """Whether a micro-batch has no target, so that no backward pass was made."""
    return isinstance(weight, float) and weight == 0.0
