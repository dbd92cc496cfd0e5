"""An AcceleratorModule as a ``trainwright.Module``: every call passed on in ACCMT's words."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trainwright.compat.accmt.callbacks import CallbackEvents
from trainwright.compat.accmt.hyperparameters import HyperParameters
from trainwright.compat.accmt.metrics import Metric
from trainwright.compat.accmt.modules import AcceleratorModule, is_extended, registered_models
from trainwright.compat.accmt.status import ONLY_SET
from trainwright.compat.accmt.tools import build_optimizer, build_schedule
from trainwright.config.warnings import TrainwrightWarning
from trainwright.core.module import StepPlan
from trainwright.engines.torch.module import Module
from trainwright.engines.torch.targets import count_rows


class AcceleratedModule(Module):
    """Trains an :class:`AcceleratorModule`; its model is ``self.model``, so checkpoints hold that under its names.

    Args:
        module: The user's.
        hps: Optimizer and schedule, where the module makes none itself.
        status: The live status, for steps that take it.
        metrics: By validation set; None is every set.
        events: Whoever listens to events within a step.
        clip: Longest gradient, for an optimizer that needs a closure and so is stepped here.
        validation_batch: Called with each validation loss as it comes.
        test_step: The method that measures in tests; by default ``test_step``, or where there is none that of
            validation.
    """

    #: Learning rate and weight decay stand in the arguments as they are in the hyperparameters.
    follows_arguments = True

    def __init__(
        self,
        module: AcceleratorModule,
        hps: HyperParameters,
        *,
        status: dict[str, Any],
        metrics: dict[Any, list[Metric]],
        events: CallbackEvents,
        clip: float = 0.0,
        validation_batch: Callable[[Tensor, int], None] | None = None,
        test_step: str | None = None,
    ) -> None:
        super().__init__()
        self.model = module.model
        for name, _, _ in registered_models(module):
            self.add_module(f"registered_{name}", getattr(module, name))
        self.users, self.hps, self.metrics = module, hps, metrics
        self.automatic_optimization = not is_extended(module) and hps.optim is not torch.optim.LBFGS
        self._status, self._events, self._clip = status, events, clip
        self._validation_batch = validation_batch
        #: The validation set that is being evaluated, how many batches it has, and how many have come.
        self.validation_set = ONLY_SET
        self.validation_batches: int | None = None
        self.validation_batch_number = 0
        #: By name, numbers of validation steps that no metric asked for.
        self.unasked: dict[str, list[Any]] = {}
        self._left_out: set[str] = set()
        shared = type(module).step is not AcceleratorModule.step and not is_extended(module)
        self._train = _call_of(module, "step" if shared else "training_step")
        self._validate = _call_of(module, "step" if shared else "validation_step")
        has_own = test_step is not None and test_step != "test_step"
        if has_own and not callable(getattr(module, test_step or "", None)):
            raise ValueError(f"{type(module).__name__} has no method {test_step!r} to evaluate by.")
        has_own = (has_own and test_step != "validation_step") or type(
            module
        ).test_step is not AcceleratorModule.test_step
        by_validation = test_step == "validation_step" or not has_own
        self._test = self._validate if by_validation else _call_of(module, test_step or "test_step")

    # ---- steps

    def training_step(self, batch: Any) -> Any:
        if not self.automatic_optimization and not is_extended(self.users):
            return self._closure_step(batch)
        self._events.tell("on_before_training_step", batch)
        loss = _checked(self._train(batch, ONLY_SET, self._status), self.users, is_extended(self.users))
        self._events.tell("on_after_training_step")
        if loss is not None and self.automatic_optimization:
            self._events.tell("on_before_backward", loss)
        return loss

    def _closure_step(self, batch: object) -> Any:
        """A step of an optimizer that computes the loss as often as it wants to."""
        (optimizer,) = self.optimizers()
        first: list[Tensor] = []

        def closure() -> Tensor:
            optimizer.zero_grad()
            with torch.enable_grad():
                loss = _checked(self._train(batch, ONLY_SET, self._status), self.users, False)
                assert loss is not None
                self.backward(loss)
            if self._clip:
                nn.utils.clip_grad_norm_([p for p in self.model.parameters() if p.requires_grad], self._clip)
            first.append(loss.detach())
            return loss

        optimizer.step(closure)
        for schedule in self.schedulers():
            schedule.step()
        return first[0]

    def validation_step(self, batch: Any) -> Any:
        return self._measured(self._validate, batch)

    def test_step(self, batch: object) -> Any:
        return self._measured(self._test, batch)

    def _measured(self, step: Callable[..., Any], batch: object) -> Any:
        self.validation_batch_number += 1
        self._events.tell("on_before_validation_step", batch)
        found = step(batch, self.validation_set, self._status)
        self._events.tell("on_after_validation_step")
        if not isinstance(found, Mapping):
            found = {} if found is None else {"loss": found}
        loss = found.get("loss")
        if loss is not None and not isinstance(loss, Tensor):
            if isinstance(loss, bool) or not isinstance(loss, (int, float)):
                raise ValueError(
                    f"{type(self.users).__name__}'s validation step returned a {type(loss).__name__} as the loss; it "
                    "must be a scalar tensor, alone or as 'loss' in a dict."
                )
            loss = torch.tensor(float(loss))
        if not self.is_idle:
            self._keep_for_metrics({name: value for name, value in found.items() if name != "loss"}, batch)
        if isinstance(loss, Tensor) and self._validation_batch is not None and not self.is_idle:
            self._validation_batch(loss.detach().mean(), 1)
        return {} if loss is None else {"loss": loss}

    def _keep_for_metrics(self, found: Mapping[str, Any], batch: object) -> None:
        known = {
            name: metric
            for metric in self.metrics_of(self.validation_set)
            for name in (metric.main_metric, metric.name)
        }
        for name, value in found.items():
            if name in known:
                known[name].add_batch(*(value if isinstance(value, (tuple, list)) else (value,)))
            elif _is_one_number(value):
                number = value.detach() if isinstance(value, Tensor) else value
                self.unasked.setdefault(name, []).append((number, self._weight_of(batch)))
            elif name not in self._left_out:
                self._left_out.add(name)
                warnings.warn(
                    f"validation_step returned {name!r}, and there is no Metric of that name: give metrics=[...] to "
                    f"the Trainer{_names_of(known)}, or return a single number, whose mean is logged. It is left out.",
                    TrainwrightWarning,
                    stacklevel=2,
                )

    def _weight_of(self, batch: object) -> Any:
        """What a batch counts in a mean: as much as in that of the loss."""
        targets = self.count_targets(batch)
        return count_rows(batch) if targets is None else targets

    def metrics_of(self, key: Any) -> list[Metric]:
        """Metrics for a validation set."""
        return [*self.metrics.get(None, []), *self.metrics.get(str(key), [])]

    def after_backward(self, loss: Tensor) -> None:
        self._events.tell("on_after_backward")

    def count_targets(self, batch: Any) -> Any:
        own = getattr(self.users, "count_targets", None)
        return own(batch) if callable(own) else super().count_targets(batch)

    # ---- optimizers

    def configure_optimizers(self, plan: StepPlan) -> Any:
        users = self.users
        optimizer = users.get_optimizer()
        if optimizer is None:
            optimizer = build_optimizer(self.hps, self.model)
        schedule = users.get_scheduler(optimizer, plan.steps_per_epoch, plan.epochs)
        if schedule is None:
            schedule = build_schedule(self.hps, optimizer, plan)
        elif self.hps.step_scheduler_per_epoch:
            schedule = {"scheduler": schedule, "interval": "epoch"}
        if not self.automatic_optimization and isinstance(schedule, dict):
            # Stepped by hand, whatever it counts.
            schedule = schedule["scheduler"]
        further = [getattr(users, name) for _, name, _ in registered_models(users) if name is not None]
        schedules = [getattr(users, name) for _, _, name in registered_models(users) if name is not None]
        return [optimizer, *further], [*([] if schedule is None else [schedule]), *schedules]

    def on_train_begin(self, *args: Any, **_: Any) -> None:
        self.take_tools()

    def take_tools(self) -> None:
        """Once training has optimizers: give the module those it steps, or may look at."""
        users, optimizers, schedules = self.users, self.optimizers(), self.schedulers()
        users.optimizer = optimizers[0]
        names = [name for _, name, _ in registered_models(users) if name is not None]
        for name, optimizer in zip(names, optimizers[1:], strict=True):
            setattr(users, name, optimizer)
        own = len(schedules) - sum(name is not None for _, _, name in registered_models(users))
        users.scheduler = schedules[0] if own else None


def _call_of(module: AcceleratorModule, name: str) -> Callable[[Any, str, dict[str, Any]], Any]:
    """The step ``name`` of ``module``, called as its signature wants: (batch), (batch, status) or (key, batch)."""
    step = getattr(module, name)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = [parameter for parameter in inspect.signature(step).parameters.values() if parameter.kind in kinds]
    required = [parameter.name for parameter in taken if parameter.default is parameter.empty]
    names = [parameter.name for parameter in taken]
    if len(required) > 2:
        raise ValueError(
            f"{type(module).__name__}.{name} takes {', '.join(required)}; it may take (batch), "
            "(batch, status_dict) or, in validation, (key, batch)."
        )
    if len(names) < 2 or (len(required) == 1 and not names[1].startswith("status")):
        return lambda batch, key, status: step(batch)
    if name == "training_step" or "batch" in names[0] or names[1].startswith("status"):
        return lambda batch, key, status: step(batch, status)
    return lambda batch, key, status: step(key, batch)


def _checked(found: object, module: AcceleratorModule, may_be_none: bool) -> Tensor | None:
    """The loss that a training step returned."""
    loss = found.get("loss") if isinstance(found, Mapping) else found
    if loss is None and may_be_none:
        return None
    if not isinstance(loss, Tensor):
        raise ValueError(
            f"{type(module).__name__}'s training step returned {type(found).__name__}; it must return the loss, "
            "a scalar tensor."
        )
    return loss


def _is_one_number(value: object) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1 and not value.is_complex()
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _names_of(known: Mapping[str, Any]) -> str:
    return f" (it has {', '.join(sorted(known))})" if known else ""
