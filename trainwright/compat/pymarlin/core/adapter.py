"""A PyMarlin module as a ``trainwright.Module``: every call passed on in PyMarlin's words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainwright.compat.pymarlin.core.module_interface import CallbackInterface, ModuleInterface, Stage
from trainwright.compat.pymarlin.core.trainer_backend import OutputCollector, SingleProcess
from trainwright.compat.pymarlin.utils.stats.basic_stats import BasicStats
from trainwright.engines.torch.module import Module


@dataclass
class Progress:
    """Where a run stands, in epochs."""

    #: The last epoch that is finished, with its validation.
    last_epoch: int = -1
    #: Optimizer steps since it was finished.
    steps_since: int = 0
    #: Epochs and steps of an earlier run that left no exact state: those of this loop come on top.
    epochs_before: int = 0
    steps_before: int = 0
    #: The end of an epoch is being saved; any other save is one that nobody planned.
    is_planned_save: bool = False

    def epochs_left(self, epochs: int) -> int:
        """Of ``epochs`` in all, those of this loop."""
        return epochs - self.epochs_before


@dataclass
class Supply:
    """What the adapter asks the door for."""

    train_loader: Callable[[], Any]
    val_loaders: Callable[[], dict[str, Any]]
    tools: Callable[[], tuple[list[Any], list[Any]]]
    #: Whether an epoch of this number is saved.
    is_save_due: Callable[[int], bool]
    #: Whether a step is one batch, cut into as many pieces as it takes.
    runs_in_pieces: bool


class MarlinModule(Module):
    """Trains a :class:`ModuleInterface`; it is ``self.model``, so checkpoints hold its weights under its names."""

    def __init__(
        self, module: ModuleInterface, supply: Supply, progress: Progress, counts: SingleProcess, stats: BasicStats
    ) -> None:
        super().__init__()
        self.model = module
        self._supply, self._progress, self._counts, self._stats = supply, progress, counts, stats
        #: Gives what every process has, in the order of rank.
        self.gather: Callable[[Any], list[Any]] = lambda value: [value]
        #: Collated validation outputs by loader, of the last validation.
        self.validated: dict[str, list[Any]] = {}
        self._step_outputs = OutputCollector(on_device=True)
        self._epoch_outputs, self._val_outputs = OutputCollector(), OutputCollector()
        self._losses: list[Tensor] = []
        self._val_keys: list[str] = []
        self._in_step = self._epoch_is_over = False
        self._wants_step, self._wants_epoch = (
            getattr(type(module), name) is not getattr(CallbackInterface, name)
            for name in ("on_end_train_step", "on_end_train_epoch")
        )

    # ---- steps

    def _call(self, stage: Stage, global_step: int, batch: object) -> Any:
        return self.model(stage=stage, global_step=global_step, batch=batch, device=self.device)

    def training_step(self, batch: Any) -> Tensor:
        outputs = self._call(Stage.TRAIN, self._counts.global_step_completed + 1, batch)
        loss = outputs[0] if isinstance(outputs, (list, tuple)) and outputs else outputs
        if not isinstance(loss, Tensor):
            raise ValueError(
                f"{type(self.model).__name__}.train_step returned {type(outputs).__name__}; it must return the loss, a "
                "tensor, or a tuple that begins with it."
            )
        if self._in_step:
            self._losses.append(loss.detach())
            if self._wants_step or self._wants_epoch:
                self._step_outputs.collect(outputs)
        return loss

    def validation_step(self, batch: Any) -> None:
        outputs = self._call(Stage.VAL, self._counts.global_step_completed, batch)
        if outputs is not None:
            self._val_outputs.collect(outputs)

    def after_backward(self, loss: Tensor) -> None:
        # Outside a step batches are only tried, to see what fits into memory.
        if self._in_step:
            self.model.on_end_backward(self._counts.global_step_completed, loss)

    def on_step_redo(self) -> None:
        self._forget_step()

    def _forget_step(self) -> None:
        self._losses = []
        self._step_outputs.reset()

    def count_targets(self, batch: Any) -> Any:
        own = getattr(self.model, "count_targets", None)
        return own(batch) if callable(own) else super().count_targets(batch)

    def configure_optimizers(self, plan: object) -> Any:
        return self._supply.tools()

    # ---- data

    def train_dataloader(self) -> Any:
        return self._supply.train_loader()

    def val_dataloader(self) -> Any:
        loaders = self._supply.val_loaders()
        self._val_keys = list(loaders)
        return loaders

    # ---- events

    def on_epoch_begin(self, args: object, state: object, control: object, **_: object) -> None:
        self._epoch_is_over, self._progress.is_planned_save = False, False
        epoch = self._progress.last_epoch + 1
        self._stats.update("epoch", epoch, frequent=True)
        self.model.on_begin_train_epoch(self._counts.global_step_completed, epoch)

    def on_step_begin(self, args: object, state: object, control: object, **_: object) -> None:
        self._forget_step()
        self._in_step = True

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._in_step = False
        self._counts.global_step_completed = step = self._progress.steps_before + state.global_step
        self._counts.batches_completed += 1 if self._supply.runs_in_pieces else len(self._losses)
        self._progress.steps_since += 1
        # Read only when somebody will see it: reading waits for the device.
        if self._losses and step % self._stats.args.log_steps == 0:
            self._stats.update("loss", torch.stack([loss.float().mean() for loss in self._losses]).mean().item(), True)
        if self._wants_epoch:
            # Of every process at once: a checkpoint, which one of them writes, then holds the outputs of all.
            self._epoch_outputs.extend(self._from_all_processes(self._step_outputs))
        if self._wants_step:
            self.model.on_end_train_step(step, *self._step_outputs.all_outputs)
        self._forget_step()
        self._stats.log_stats(step)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._epoch_is_over = True
        self._val_outputs.reset()
        if not control.should_evaluate:
            self._finish_epoch(control)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        found = [key for key in self._val_keys if f"eval_{key}_runtime" in kwargs["metrics"]]
        for key in found:
            outputs = self._from_all_processes(self._val_outputs).all_outputs
            self._val_outputs.reset()
            self.validated[key] = outputs
            self.model.on_end_val_epoch(self._counts.global_step_completed, *outputs, key=key)
            if key == self._val_keys[-1]:
                self._stats.log_long_stats(self._counts.global_step_completed)
                if self._epoch_is_over:
                    self._finish_epoch(control)

    def begin_validation(self) -> None:
        """Forget what an interrupted validation left."""
        self.validated = {}
        self._val_outputs.reset()

    def _finish_epoch(self, control: Any) -> None:
        outputs = self._epoch_outputs.all_outputs
        self._epoch_outputs.reset()
        self._epoch_is_over = False
        self.model.on_end_train_epoch(self._counts.global_step_completed, *outputs)
        self._stats.log_long_stats(self._counts.global_step_completed)
        self._progress.last_epoch += 1
        self._progress.steps_since = 0
        control.should_save = control.should_save and self._supply.is_save_due(self._progress.last_epoch)
        self._progress.is_planned_save = True

    def _from_all_processes(self, collector: OutputCollector) -> OutputCollector:
        joined = OutputCollector()
        for outputs in self.gather(collector.get_state()):
            part = OutputCollector()
            part.update_state(outputs)
            joined.extend(part)
        return joined

    # ---- state

    def get_state(self) -> dict[str, Any]:
        return {
            "last_epoch": self._progress.last_epoch,
            "steps_since": self._progress.steps_since,
            "batches_completed": self._counts.batches_completed,
            "epoch_is_over": self._epoch_is_over,
            "epoch_outputs": self._epoch_outputs.get_state(),
        }

    def update_state(self, state: dict[str, Any]) -> None:
        self._progress.last_epoch = state["last_epoch"]
        self._progress.steps_since = state["steps_since"]
        self._counts.batches_completed = state["batches_completed"]
        self._epoch_is_over = state["epoch_is_over"]
        self._epoch_outputs.update_state(state["epoch_outputs"])
