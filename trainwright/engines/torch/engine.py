"""The torch engine: gradients, updates and evaluation outputs of one device."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from trainwright.core.backend import Backend
from trainwright.core.engine import Everything, Portion, RunLink, StepOverrides, UpdateHooks
from trainwright.engines.torch.backends import SingleProcess
from trainwright.engines.torch.boundary import Boundary
from trainwright.engines.torch.clipping import clipping_of
from trainwright.engines.torch.exchange import TorchExchange
from trainwright.engines.torch.memory import release_memory
from trainwright.engines.torch.meter import LossMeter
from trainwright.engines.torch.modes import Modes
from trainwright.engines.torch.nonfinite import GradientCheck, divisor_for, is_bad, skips_on_device
from trainwright.engines.torch.one_group import clear_gradients_of, step_as_one
from trainwright.engines.torch.optim import not_held
from trainwright.engines.torch.precision import Precision
from trainwright.engines.torch.schedules import needs_metric
from trainwright.engines.torch.step_times import StepTimes, Untimed, sum_told
from trainwright.engines.torch.strategies.base import Strategy, dense_part, silenced
from trainwright.engines.torch.targets import unwrap
from trainwright.randomness.own_generators import OwnGenerators


class TorchEngine(TorchExchange, Modes):
    """Implements ``core.engine.Engine`` for a ``torch.nn.Module``.

    ``training_step(batch, portion)`` runs forward and backward (through :meth:`backward`) and returns weight x loss;
    ``count_targets(batch)`` says what a batch's mean loss is taken over. Both come from the front door.
    """

    def __init__(
        self,
        *,
        device: torch.device,
        precision: Precision,
        max_grad_norm: float,
        skip_nonfinite_logs: bool,
        training_step: Callable[[Any, Portion], Tensor | None],
        count_targets: Callable[[Any], Any],
        backend: Backend | None = None,
        set_grads_to_none: bool = True,
        strategy: Strategy | None = None,
    ) -> None:
        super().__init__(device, backend or SingleProcess(), strategy or Strategy())
        self._zeroing = {} if set_grads_to_none else {"set_to_none": False}
        self.precision = precision
        #: Whether the backend has something to do with gradients.
        self._reduces = not self.is_alone or type(self.backend) is not SingleProcess
        self.max_grad_norm = max_grad_norm
        #: What a batch's mean loss is taken over, as the front door says.
        self.count_targets = count_targets
        self.meter = LossMeter(skip_nonfinite=skip_nonfinite_logs)
        self._training_step = training_step
        self._grad_norm: Tensor | float | None = None
        self._scaler: Any = None
        self._step_lr: float | None = None
        #: Whether the pass that is under way is the last of its step.
        self.is_last_pass = True
        #: Whether the backward pass of the present micro-batch sums gradients over processes.
        self._sums_now = False
        #: Whether the last step was not finite, and so was not applied: a bool, or 0.0 or 1.0 on the device.
        self.was_bad: bool | Tensor = False
        #: Held while weights change; whoever copies them from another thread takes it.
        self.update_lock = threading.Lock()
        self._hooks = UpdateHooks()
        self._overrides = StepOverrides()
        self._link = RunLink()
        #: Parameters besides the model's that the optimizer trains.
        self.extra_parameters: list[nn.Parameter] = []
        #: How long each of several processes works by itself in a step.
        self._own_time = Untimed()
        #: Generators that the model, and what else takes part in a step, keep for themselves.
        self.own_generators = OwnGenerators()
        #: Whether the kernel that updates the weights clips gradients; and what it divides them by.
        self.clips_in_update = False
        self._divisor: Tensor | None = None
        Modes.__init__(self)

    #: What this engine does that not every engine does, by the names in training/engine_choice.py.
    supports: Any = Everything()

    def attach(self, model: nn.Module, optimizer: Any, scheduler: Any) -> None:
        """Take the model as it will be called, and what updates it."""
        self.optimizer = optimizer
        self.follow_schedule(scheduler)
        self.look_at_parameters(model)
        # A second train() of the same Trainer is a run of its own.
        self.meter = LossMeter(skip_nonfinite=self.meter.skip_nonfinite)
        self._grad_norm, self._step_lr, self.was_bad = None, None, False
        # The kernel takes plain tensors or sharded ones, not both.
        alone = not (self.weights.is_sharded or self.weights.updates_by_itself)
        self._skips_on_device = skips_on_device(optimizer) and alone
        rank, world_size = self.backend.rank, self.backend.world_size
        self._own_time = Untimed() if self.is_alone else StepTimes(rank, world_size, self.device)

    def train_also(self, parameters: list[nn.Parameter]) -> None:
        self.extra_parameters = parameters

    def begin_run(self, link: RunLink) -> None:
        self._link = link
        self.boundary.keeps_random = link.undoes_steps
        # Where the run went back to a checkpoint, what was bad is undone.
        self.was_bad = False

    def set_update_hooks(self, hooks: UpdateHooks) -> None:
        self._hooks = hooks

    def set_step_overrides(self, overrides: StepOverrides) -> None:
        self._overrides = overrides

    def follow_schedule(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self._steps_with_metric = needs_metric(scheduler)
        # Of several optimizers that run as one a schedule may move only one.
        self._scheduled = getattr(scheduler, "optimizer", self.optimizer)

    def look_at_parameters(self, model: nn.Module, known: set[nn.Parameter] | None = None) -> None:
        """Take the model as it will be called; again where some of its parameters were replaced, ``known`` among them.

        Those that are trained count, or those in ``known``: some may be frozen only for a while.
        """
        self.model = model
        # In the model's order, not the optimizer's: a norm's last bit depends on the order of summation.
        trained = [p for p in model.parameters() if (p.requires_grad if known is None else p in known)]
        self.parameters = trained + self.extra_parameters
        self._clip, self._clipped = clipping_of(unwrap(model), self.parameters, self.weights.clip)
        self._cleared_by_us = [] if self.weights.updates_by_itself else not_held(self.optimizer, trained)
        self._gradient_check = GradientCheck(self.parameters)
        # By the names under which weights are stored: a checkpoint puts buffers of the last boundary into their place.
        self.own_generators.look_again()
        self.boundary = Boundary(
            unwrap(model), self.own_generators, looks_at_parameters=not self.weights.empties_parameters
        )
        self.boundary.keeps_random = self._link.undoes_steps

    @contextmanager
    def changing_weights(self) -> Iterator[None]:
        self._link.wait_for_copy()
        with self.update_lock:
            yield

    # ---- one optimizer step, in the order the loop calls it

    def first_within(self, context: Callable[[], AbstractContextManager[None]]) -> None:
        """Make the next pass over a batch within ``context()``."""
        usual = self._training_step

        def with_context(batch: Any, portion: Portion) -> Tensor | None:
            self._training_step = usual
            with context():
                return usual(batch, portion)

        self._training_step = with_context

    def mark_boundary(self) -> None:
        self.boundary.mark()
        self._own_time.start()

    def forward_backward(self, batch: Any, portion: Portion, *, sync: bool) -> Tensor | None:
        self.is_last_pass = sync
        self._sums_now = sync and self.weights.sums_in_backward
        if self.boundary.is_looking:
            self.boundary.look()
        with self.weights.micro_batch(sync=sync):
            return self._training_step(batch, portion)

    def backward(self, loss: Tensor) -> None:
        """Gradients of ``loss``, scaled where fp16 needs it."""
        if self._sums_now:
            self._own_time.pause()
        if self.weights.gradient_factor != 1.0:
            loss = loss * self.weights.gradient_factor
        if self.precision.scaler is not None:
            loss = self.precision.scaler.scale(loss)
        self.weights.backward(loss)

    def backward_of_nothing(self, loss: Tensor) -> None:
        """Take part in the exchange of gradients with zeros, where ``loss`` is over no target at all."""
        if self.weights.sums_in_backward and loss.requires_grad:
            with silenced(loss):
                self.weights.backward(loss)

    def undo_step(self) -> None:
        self.weights.recover()
        self.clear_gradients()
        self.boundary.roll_back()
        release_memory(self.device)

    def sum_counts(self, count: Any) -> Any:
        if self.is_alone:
            return count
        self._own_time.pause()
        # Flags and times ride on the one exchange that comes before every step anyway.
        total, heard = sum_told(self.backend, count, self._link.tell(), self._own_time)
        self._link.hear(heard)
        if not self.weights.runs_in_step:
            self._own_time.resume()
        return total

    def step_times(self) -> list[float]:
        return self._own_time.read()

    def finish_gradients(self, loss: Tensor | None, *, norm_wanted: bool) -> Tensor | None:
        if self.boundary.is_looking:
            self._find_what_the_model_writes()
        if self._reduces:
            loss = self._reduced(loss)
        self._scaler = self.precision.scaler
        if self._scaler is not None and all(p.grad is None for p in self.parameters):
            # A step without a target: the scaler refuses what has no gradients.
            self._scaler = None
        if self._scaler is not None:
            self._scaler.unscale_(self.optimizer)
        for shape in self._hooks.shape_gradients:
            shape()
        norm: Tensor | None = None
        if self.weights.updates_by_itself:
            self._grad_norm, self.was_bad = None, is_bad(loss, 0.0)
            return loss
        if self._overrides.clip is not None:
            # The norm that it returns may be anything: whether the step is finite is found out from the gradients.
            self._grad_norm = self._overrides.clip()
            norm = self.gradient_norm() if self.weights.is_sharded else None
        else:
            if self.max_grad_norm > 0 and self.clips_in_update:
                norm = self.gradient_norm()
                self._divisor = divisor_for(norm, self.max_grad_norm)
            elif self.max_grad_norm > 0:
                norm = self._clip(self._clipped, self.max_grad_norm)
            elif norm_wanted or self.weights.is_sharded:
                norm = self.gradient_norm()
            self._grad_norm = norm
        if self._scaler is not None:
            # Infinite gradients are the scaler's business: it looks for the largest scale that works.
            self.was_bad = is_bad(loss, 0.0)
        elif norm is not None:
            self.was_bad = is_bad(loss, norm)
        else:
            gradients = [p.grad for p in self.parameters if p.grad is not None]
            self.was_bad = self._gradient_check.is_bad(loss, gradients)
        return loss

    def why_not_clip_in_update(self) -> str | None:
        """Why gradients have to be clipped before the update, or None."""
        if not self._skips_on_device or self.device.type != "cuda":
            return "only torch's fused optimizers on a GPU clip by themselves"
        if self.precision.scaler is not None:
            return "fp16's scaler looks at the gradients first"
        if self._overrides.clip is not None or self._hooks.shape_gradients or self._hooks.before_update:
            return "somebody changes gradients before the update"
        return None if self._clip == self.weights.clip else "parts of the model are clipped apart"

    def clip_gradients(self) -> Tensor:
        return self._clip(self._clipped, self.max_grad_norm)

    def gradient_norm(self) -> Tensor:
        return self.weights.norm([dense_part(p.grad) for p in self.parameters if p.grad is not None])

    def _reduced(self, loss: Tensor | None) -> Tensor | None:
        """Gradients and loss of the step over all processes: each judges the step by the same numbers."""
        self._own_time.pause()
        self.weights.reduce(self.backend, self.parameters, self.extra_parameters)
        if loss is None and self.weights.sums_in_backward:
            self.weights.drop_gradients(self.parameters)
        if self.is_alone:
            return loss
        # BatchNorm's statistics, which each process took from its own samples.
        self.backend.share(self.boundary.changing())
        return self.backend.sum(torch.zeros((), device=self.device) if loss is None else loss.float())

    def _find_what_the_model_writes(self) -> None:
        """In the first steps: parameters and buffers that a forward pass changes unseen must be kept at boundaries."""
        written = self.boundary.written()
        if not self.is_alone:
            # Who keeps what must be the same everywhere: it is also shared out.
            written = sorted({name for names in self.backend.gather(written) for name in names})
        self.boundary.protect(written)

    def apply_update(self) -> None:
        self._link.wait_for_copy()
        with self.update_lock:
            for change in self._hooks.before_update:
                change()
            applied = self._update() if self._scaler is None else self._update_scaled(self._scaler)
            for change in self._hooks.after_update:
                change()
            self._step_lr = self.learning_rate()
            if applied and self.scheduler is not None and not self._steps_with_metric:
                self._advance_schedule()

    def _update(self) -> bool:
        """Step the optimizer unless the step is bad. The schedule moves on either way: the step was taken from it."""
        bad = self.was_bad
        if bad is not False and isinstance(bad, Tensor) and not self._skips_on_device:
            # The one place where such an optimizer waits for the device.
            bad = self.was_bad = bool(bad)
        if bad is not False and isinstance(bad, Tensor):
            self.optimizer.found_inf, self.optimizer.grad_scale = bad, self._divisor
            step_as_one(self.optimizer)
            self.optimizer.found_inf = self.optimizer.grad_scale = self._divisor = None
            self.boundary.restore_buffers(where=bad)
        elif bad:
            self.weights.recover()
            self.boundary.restore_buffers()
        elif (norm := self.weights.update(self.optimizer)) is not None:
            self._grad_norm, self.was_bad = norm, not math.isfinite(norm)
            if self.was_bad:
                self.boundary.restore_buffers()
        return True

    def _update_scaled(self, scaler: Any) -> bool:
        """The same with fp16's scaler, which skips overflows by itself; then the schedule waits too, as in HF."""
        self.was_bad = bool(self.was_bad)
        before = scaler.get_scale()
        if not self.was_bad:
            scaler.step(self.optimizer)
        scaler.update()
        overflowed = scaler.get_scale() < before
        if self.was_bad:
            self.boundary.restore_buffers()
        return not overflowed

    def _advance_schedule(self) -> None:
        """Step the schedule; a rate that a callback set holds until the schedule's own value changes."""
        groups = self._scheduled.param_groups
        scheduled = getattr(self.scheduler, "_last_lr", None)
        held = [group["lr"] for group in groups]
        self.scheduler.step()
        if scheduled is None or held == scheduled:
            return
        for group, rate, before in zip(groups, held, scheduled, strict=True):
            if rate != before and group["lr"] == before:
                group["lr"] = rate

    def clear_gradients(self) -> None:
        clear_gradients_of(self.optimizer, self._zeroing)
        for parameter in self._cleared_by_us:
            parameter.grad = None

    #: Whether another thread may copy the weights while a step is under way, up to its update.
    may_copy_aside = True

    #: Whether the model's tensors are behind between steps, until :meth:`show_weights` is called.
    hides_weights = False

    def show_weights(self) -> None:
        """Before somebody looks at the model between steps: its weights as they are now."""

    def reread(self) -> None:
        """After weights or optimizer state were read from a checkpoint."""

    def evaluated(self, model: nn.Module) -> nn.Module:
        """``model`` as it is called in an evaluation."""
        return model

    # ---- what the log says

    def record_loss(self, loss: Tensor | None) -> None:
        if loss is not None:
            self.meter.add(loss)

    def read_log(self) -> dict[str, float]:
        logs = {"loss": self.meter.read()}
        if self._grad_norm is not None:
            logs["grad_norm"] = float(self._grad_norm)
        logs["learning_rate"] = float(self.learning_rate() if self._step_lr is None else self._step_lr)
        return logs

    def last_step(self) -> Callable[[], dict[str, float | None]]:
        """What the next log says of the last step, for a checkpoint; calling the answer waits for the device."""
        norm, rate = self._grad_norm, self._step_lr
        # A compiled optimizer's rate is written in place.
        rate = rate.clone() if isinstance(rate, Tensor) else rate
        return lambda: {
            "grad_norm": None if norm is None else float(norm),
            "learning_rate": None if rate is None else float(rate),
        }

    def restore_last_step(self, saved: dict[str, float | None]) -> None:
        self._grad_norm, self._step_lr = saved["grad_norm"], saved["learning_rate"]

    def learning_rate(self) -> float:
        """The first group's rate, as a float or, for fused and compiled optimizers, a scalar tensor."""
        if self._overrides.learning_rate is not None:
            return self._overrides.learning_rate()
        return self.optimizer.param_groups[0]["lr"]

    def plateau_step(self, value: float) -> None:
        if self._steps_with_metric:
            self.scheduler.step(value)
