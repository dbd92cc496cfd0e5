"""What ``Module.configure_optimizers`` returned, in one form."""

from __future__ import annotations

import dataclasses
import inspect
import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch.optim import Optimizer

from trainwright.config.arguments import TrainingArguments
from trainwright.core.module import StepPlan
from trainwright.engines.torch.joint import ScheduleEntry, natural_interval
from trainwright.engines.torch.module import Module

logger = logging.getLogger("trainwright")


_FORMS = (
    "None, an optimizer, [optimizers], (optimizer, schedule), ([optimizers], [schedules]) or "
    '{"optimizer": ..., "lr_scheduler": ...}'
)


class Configured(NamedTuple):
    """Optimizers and schedules of a Module, in its order."""

    optimizers: list[Any]
    schedules: list[ScheduleEntry]


def configured(module: Module, plan: StepPlan) -> Configured | None:
    """What the module wants to be optimized with; None where it leaves that to the arguments."""
    takes_plan = bool(inspect.signature(module.configure_optimizers).parameters)
    configure: Any = module.configure_optimizers
    answer = configure(plan) if takes_plan else configure()
    if answer is None:
        return None
    optimizers, schedules = _parts(answer)
    found = _as_list(optimizers)
    if not found or not all(_is_optimizer(optimizer) for optimizer in found):
        kinds = [type(optimizer).__name__ for optimizer in found]
        raise ValueError(f"configure_optimizers returned {kinds or 'no optimizer'}; it may return {_FORMS}.")
    return Configured(found, [_entry(schedule, module) for schedule in _as_list(schedules)])


def _parts(answer: object) -> tuple[Any, Any]:
    if isinstance(answer, Mapping):
        unknown = set(answer) - {"optimizer", "lr_scheduler"}
        if unknown or "optimizer" not in answer:
            raise ValueError(
                f"configure_optimizers returned a dict with the keys {sorted(map(str, answer))}; it takes "
                "'optimizer' and 'lr_scheduler'."
            )
        return answer["optimizer"], answer.get("lr_scheduler")
    if isinstance(answer, tuple) and len(answer) == 2 and not _is_optimizer(answer[1]):
        return answer[0], answer[1]
    return answer, None


def _entry(schedule: object, module: Module) -> ScheduleEntry:
    given: dict[str, Any] = dict(schedule) if isinstance(schedule, Mapping) else {"scheduler": schedule}
    scheduler = given.pop("scheduler", None)
    if not callable(getattr(scheduler, "step", None)):
        raise ValueError(f"configure_optimizers gave {scheduler!r} for a learning-rate schedule, which has no step().")
    natural = natural_interval(scheduler)
    interval = given.pop("interval", natural)
    if given:
        extra = "; the metric is named by metric_for_best_model" if "monitor" in given else ""
        raise ValueError(
            f"A learning-rate schedule of configure_optimizers has the keys {sorted(given)}, which mean nothing here: "
            f'{{"scheduler": ..., "interval": "step" or "epoch"}} is what it takes{extra}.'
        )
    if interval not in ("step", "epoch") and interval != natural:
        raise ValueError(f"interval={interval!r} of a learning-rate schedule must be 'step' or 'epoch'.")
    if natural == "metric" and interval != "metric":
        raise ValueError(
            f"{type(scheduler).__name__} moves with each evaluation, by metric_for_best_model: leave its interval out."
        )
    if not module.automatic_optimization and interval == "epoch":
        raise ValueError(
            "With automatic_optimization=False the module steps its schedules itself: leave interval='epoch' out and "
            "call self.schedulers()[0].step() in on_epoch_end."
        )
    return ScheduleEntry(scheduler, interval)


def _as_list(value: object) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _is_optimizer(value: object) -> bool:
    parts = ("step", "zero_grad", "param_groups", "state_dict")
    return isinstance(value, Optimizer) or all(hasattr(value, name) for name in parts)


#: Arguments that describe the optimizer and the schedule that the Trainer would build.
_DESCRIBING = (
    "learning_rate",
    "weight_decay",
    "optim",
    "optim_args",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "lr_scheduler_type",
    "lr_scheduler_kwargs",
    "warmup_steps",
)


def note_unused_arguments(args: TrainingArguments, module: Module) -> None:
    """Say that the module's own optimizers do not follow the arguments that describe one."""
    if getattr(module, "follows_arguments", False):
        return
    defaults = {field.name: field.default for field in dataclasses.fields(args)}
    given = [name for name in _DESCRIBING if name in defaults and getattr(args, name) != defaults[name]]
    if given:
        logger.info(
            "%s.configure_optimizers builds optimizers and schedules itself: %s of the arguments act only where it "
            "uses them.",
            type(module).__name__,
            ", ".join(given),
        )
