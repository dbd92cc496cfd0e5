"""PyMarlin's loop over batches, for those who call a backend themselves or replace a part of it.

A Trainer uses it only for a backend that defines one of ``PARTS_OF_A_LOOP``; what happens inside an epoch is then not
saved or resumed, as with any loop of one's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from trainwright.compat.pymarlin.core.module_interface import Stage
from trainwright.compat.pymarlin.core.outputs import OutputCollector
from trainwright.compat.pymarlin.utils.stats import global_stats
from trainwright.engines.torch.targets import TargetCounter, count_rows

#: What a subclass may replace one by one.
PARTS_OF_A_LOOP = (
    "train_dl",
    "validate_dl",
    "_forward_backward",
    "_forward",
    "_backward",
    "process_global_step",
    "_clip_gradients",
    "optimize",
)


class BatchLoop:
    """One epoch of training, or one pass of validation, over the batches of a loader."""

    #: Set by ``init``.
    args: Any
    model: Any
    name: str
    global_step_completed: int
    batches_completed: int
    #: Micro-batches whose gradients wait for the next optimizer step.
    _waiting = 0
    #: What the present micro-batch's loss counts in its step; None: as much as every other.
    _share: float | None = None
    global_step_this_epoch = 0
    _loss_scaler: torch.amp.GradScaler | None = None

    @property
    def stats(self) -> Any:
        return global_stats

    def train_dl(self, dataloader: Iterable[Any], callback: Any) -> Any:
        """Train on the batches, an optimizer step every ``gradient_accumulation`` of them and one at the end."""
        of_epoch, of_step = OutputCollector(), OutputCollector()
        self.global_step_this_epoch = self._waiting = 0
        most = self.args.max_train_steps_per_epoch
        batches = iter(dataloader)
        while self.global_step_this_epoch != most and (
            window := list(islice(batches, self.args.gradient_accumulation))
        ):
            for batch, share in zip(window, self._shares(window), strict=True):
                self._share = share
                outputs = self._forward_backward(callback, batch)
                of_epoch.collect(outputs)
                of_step.collect(outputs)
                self.batches_completed += 1
                self._waiting += 1
            self._end_step(of_step, callback)
        self._share = None
        return of_epoch.all_outputs

    def _shares(self, window: Sequence[Any]) -> list[float]:
        """What each micro-batch of a step has of the step's targets, as in the Trainer's own loop."""
        own = getattr(self.model, "count_targets", None)
        count = own if callable(own) else TargetCounter(self.model) if isinstance(self.model, nn.Module) else count_rows
        counted: list[Any] = [count(batch) for batch in window]
        if not all(isinstance(found, (int, float, Tensor)) for found in counted):
            return [1 / len(window)] * len(window)
        total = max(sum(float(found) for found in counted), 1.0)
        return [float(found) / total for found in counted]

    def _end_step(self, collector: OutputCollector, callback: Any) -> None:
        self.process_global_step(collector, callback)
        self._waiting = 0

    def _forward_backward(self, callback: Any, batch: Any) -> Any:
        outputs = self._forward(batch, Stage.TRAIN, self.global_step_completed + 1)
        outputs = [outputs] if isinstance(outputs, Tensor) else outputs
        loss = outputs[0] * (1 / self.args.gradient_accumulation if self._share is None else self._share)
        self._backward(loss)
        callback.on_end_backward(self.global_step_completed, loss)
        return outputs

    def _forward(self, batch: Any, stage: Stage, global_step: int) -> Any:
        with self._precision():
            return self.model.forward(stage=stage, batch=batch, device=self.args.device, global_step=global_step)

    def _backward(self, loss: Tensor) -> None:
        self.scaler.scale(loss).backward()

    def process_global_step(self, global_step_collector: OutputCollector, callback: Any) -> None:
        """Clip, let the optimizers step, and tell the callbacks."""
        outputs = global_step_collector.all_outputs
        global_step_collector.reset()
        self._clip_gradients()
        self.optimize(self.args.optimizers, self.args.schedulers)
        self.global_step_completed += 1
        self.global_step_this_epoch += 1
        if self.global_step_completed % self.stats.args.log_steps == 0:
            self.stats.update("loss", outputs[0].float().mean().item(), frequent=True)
        callback.on_end_train_step(self.global_step_completed, *outputs)
        self.stats.log_stats(self.global_step_completed)

    def _clip_gradients(self) -> None:
        for optimizer in self.args.optimizers:
            self.scaler.unscale_(optimizer)
        if self.args.clip_grads:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.args.max_grad_norm)

    def optimize(self, optimizers: Iterable[Any], schedulers: Iterable[Any] | None) -> None:
        """A step of every optimizer, then of every scheduler."""
        for optimizer in optimizers:
            self.scaler.step(optimizer)
            optimizer.zero_grad()
        self.scaler.update()
        for scheduler in schedulers or ():
            scheduler.step()

    def validate_dl(self, dataloader: Iterable[Any]) -> Any:
        """Collect what the validation step returns."""
        collector = OutputCollector()
        with torch.no_grad():
            for batch in islice(dataloader, self.args.max_val_steps_per_epoch):
                collector.collect(self._forward(batch, Stage.VAL, self.global_step_completed))
        return collector.all_outputs

    # ---- precision, as the backend's name says

    @property
    def _low_precision(self) -> torch.dtype | None:
        """What autocast uses; "amp" is float16, as in PyMarlin, where there is a GPU."""
        on_gpu = torch.device(self.args.device).type == "cuda"
        amp = torch.float16 if on_gpu else None
        return {"amp": amp, "bf16": torch.bfloat16, "fp16": torch.float16}.get(self.name.partition("-")[2])

    def _precision(self) -> AbstractContextManager[Any]:
        dtype = self._low_precision
        return torch.autocast(torch.device(self.args.device).type, dtype=dtype, enabled=dtype is not None)

    @property
    def scaler(self) -> torch.amp.GradScaler:
        """Scales losses where float16 would lose them; elsewhere it does nothing."""
        if self._loss_scaler is None:
            device = torch.device(self.args.device).type
            self._loss_scaler = torch.amp.GradScaler(device, 4096.0, enabled=self._low_precision == torch.float16)
        return self._loss_scaler
