"""The optimizer and the schedule that hyperparameters describe, for a training of known length."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from trainwright.compat.accmt.hyperparameters import FactorSchedule, HyperParameters
from trainwright.core.module import StepPlan
from trainwright.engines.torch.optim_own import Adafactor

#: Adagrad has the argument too, and no such kernel.
_FUSED_ON_CUDA = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)


def build_optimizer(hps: HyperParameters, model: nn.Module) -> Any:
    """The optimizer over the parameters that are trained."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise ValueError("self.model has no parameter that is trained: unfreeze some of it.")
    options = dict(hps.optim_kwargs)
    if hps.optim is Adafactor:
        options = _adafactor_options(options)
    on_cuda = all(parameter.is_cuda for parameter in parameters)
    if hps.optim in _FUSED_ON_CUDA and on_cuda and not {"fused", "foreach", "differentiable"} & set(options):
        options["fused"] = True
    betas = options.get("betas")
    if isinstance(betas, list):
        options["betas"] = tuple(betas)
    with _named_in_errors(f"optimizer {getattr(hps.optim, '__name__', hps.optim)}"):
        return hps.optim(parameters, **options)


def _adafactor_options(options: dict[str, Any]) -> dict[str, Any]:
    """transformers' names for ours."""
    if options.pop("relative_step", False) or options.pop("warmup_init", False) or options.get("lr") is None:
        raise ValueError(
            "optimizer Adafactor: steps relative to the step number are not offered here: give an lr, and leave "
            "relative_step and warmup_init out (or build transformers' Adafactor in get_optimizer)."
        )
    eps = options.pop("eps", None)
    if eps is not None:
        options["eps1"], options["eps2"] = eps
    return {"scale_parameter": True, **options}


def build_schedule(hps: HyperParameters, optimizer: Optimizer, plan: StepPlan) -> Any:
    """The schedule in a form ``configure_optimizers`` may return; None where the learning rate is constant."""
    if hps.scheduler is None:
        return None
    total = plan.epochs if hps.step_scheduler_per_epoch else plan.max_steps
    if isinstance(hps.scheduler, FactorSchedule):
        schedule = _counted(hps.scheduler, dict(hps.scheduler_kwargs), optimizer, total)
    else:
        schedule = _of_torch(hps, optimizer, total, plan)
    return {"scheduler": schedule, "interval": "epoch" if hps.step_scheduler_per_epoch else "step"}


def _counted(builder: FactorSchedule, options: dict[str, Any], optimizer: Optimizer, total: int) -> Any:
    total = int(options.pop("num_training_steps", total))
    ratio = options.pop("warmup_ratio", None)
    warmup = options.pop("num_warmup_steps", None)
    if ratio is not None and warmup is not None:
        raise ValueError("scheduler: warmup_ratio and num_warmup_steps say the same thing twice: keep one.")
    return builder(optimizer, num_warmup_steps=_warmup_steps(warmup, ratio, total), num_training_steps=total, **options)


def _warmup_steps(steps: object, ratio: object, total: int) -> int:
    """Warm-up in steps; a fraction is a share of all steps, whichever name it came under."""
    if steps is not None and isinstance(steps, float) and 0 < steps < 1:
        ratio, steps = steps, None
    if ratio is not None:
        if not isinstance(ratio, (int, float)) or not 0 <= ratio <= 1:
            raise ValueError(f"scheduler: warmup_ratio={ratio!r} must lie between 0 and 1.")
        return int(total * ratio)
    if steps is None:
        return 0
    if not isinstance(steps, (int, float)) or steps < 0 or steps != int(steps):
        raise ValueError(
            f"scheduler: num_warmup_steps={steps!r} must be a number of steps, or a share between 0 and 1."
        )
    return int(steps)


def _of_torch(hps: HyperParameters, optimizer: Optimizer, total: int, plan: StepPlan) -> Any:
    """A schedule class, given the length of the training where its signature asks for it."""
    options, build = dict(hps.scheduler_kwargs), hps.scheduler
    assert build is not None
    known = inspect.signature(build).parameters
    length = {"epochs", "steps_per_epoch"} & set(options)
    if "total_steps" in known and "total_steps" not in options:
        if length and length != {"epochs", "steps_per_epoch"}:
            options |= {"epochs": plan.epochs, "steps_per_epoch": plan.steps_per_epoch} | options
        elif not length:
            options["total_steps"] = total
    for name, value in (("T_max", total), ("num_training_steps", total)):
        if name in known and name not in options:
            options[name] = value
    if "cycle_momentum" in known and "cycle_momentum" not in options:
        # torch refuses to cycle a momentum that an optimizer does not have.
        has_momentum = any(name in optimizer.defaults for name in ("momentum", "betas"))
        options["cycle_momentum"] = has_momentum
    with _named_in_errors(f"scheduler {getattr(build, '__name__', build)}"):
        return build(optimizer, **options)


@contextmanager
def _named_in_errors(what: str) -> Iterator[None]:
    """torch says what is wrong with a value, and not whose it is."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise ValueError(f"{what}: {error}") from error
