"""Build what updates the weights: optimizer and learning-rate schedule."""

from __future__ import annotations

import logging
import warnings
from typing import Any

from torch import nn

from trainwright.config.warnings import TrainwrightWarning
from trainwright.core.module import StepPlan
from trainwright.engines.torch.configured_optimizers import configured, note_unused_arguments
from trainwright.engines.torch.joint import join_optimizers, join_schedules
from trainwright.engines.torch.module import Module
from trainwright.engines.torch.optim import build_optimizer, optimizer_class_and_kwargs
from trainwright.engines.torch.schedules import build_scheduler, needs_metric
from trainwright.engines.torch.targets import unwrap
from trainwright.training.hooks import is_overridden
from trainwright.training.modules import forget_configured
from trainwright.training.setup import Setup

logger = logging.getLogger("trainwright")


def create_optimizer_and_scheduler(setup: Setup, num_training_steps: int) -> None:
    """Optimizer and learning-rate schedule, by a Module or by the arguments."""
    setup.total_steps = num_training_steps
    if setup.module is not None:
        configure_by_module(setup, setup.module, setup.step_plan or StepPlan(num_training_steps, num_training_steps, 1))
    if setup.configured_by_module:
        return
    setup.hooks().create_optimizer()
    setup.hooks().create_scheduler(num_training_steps=num_training_steps)


def configure_by_module(setup: Setup, module: Module, plan: StepPlan) -> None:
    """Optimizers and schedules of the Module's own, where it makes any."""
    forget_configured(setup)
    chosen = configured(module, plan)
    if chosen is None:
        return
    note_unused_arguments(setup.args, module)
    by_metric = any(entry.interval == "metric" for entry in chosen.schedules)
    if by_metric and module.automatic_optimization and setup.args.metric_for_best_model is None:
        raise ValueError(
            "A learning-rate schedule of configure_optimizers follows a metric: name it in metric_for_best_model, "
            "and set eval_strategy."
        )
    if chosen.schedules and setup.phases is not None:
        raise ValueError("Each phase makes its own schedule: let configure_optimizers return an optimizer alone.")
    setup.optimizer = join_optimizers(chosen.optimizers)
    setup.lr_scheduler = join_schedules(chosen.schedules)
    setup.own_optimizer = setup.own_scheduler = False
    setup.configured_by_module = True


def create_optimizer(setup: Setup, model: nn.Module | None = None) -> Any:
    """Build the optimizer unless the user gave one; returns it."""
    if setup.optimizer is None:
        chosen = setup.optimizer_cls_and_kwargs
        if chosen is None:
            chosen = chosen_optimizer(setup)
        groups = None if setup.module is None else setup.module.parameter_groups(setup.given_args)
        if groups is not None:
            chosen = (chosen[0], {**chosen[1], "params": groups})
        names = setup.hooks().get_decay_parameter_names(model or setup.model)
        setup.optimizer = build_optimizer(model or setup.model, setup.args, chosen, decay_names=names)
    # Those that a recipe trains besides the model's.
    known = {id(p) for group in setup.optimizer.param_groups for p in group["params"]}
    extra = [p for p in setup.engine.extra_parameters if id(p) not in known]
    if extra:
        setup.optimizer.add_param_group({"params": extra})
    return setup.optimizer


def create_scheduler(setup: Setup, num_training_steps: int, optimizer: Any = None) -> Any:
    """Build the learning-rate schedule unless the user gave one; a recipe that sets the rate needs a constant one."""
    if setup.phases is not None:
        if not setup.own_scheduler and not setup.configured_by_module:
            raise ValueError("Each phase makes its own schedule: give optimizers=(optimizer, None) with phases=.")
        # Each makes its own, of these arguments where it says nothing else.
        setup.lr_scheduler = build_scheduler(
            "constant", optimizer or setup.optimizer, warmup_steps=0, total_steps=num_training_steps
        )
    elif any(m.sets_learning_rate for m in setup.modifiers):
        kind = getattr(setup.args.lr_scheduler_type, "value", setup.args.lr_scheduler_type)
        warnings.warn(
            f"The recipe sets the learning rate: lr_scheduler_type={kind!r} and warm-up do not act.",
            TrainwrightWarning,
            stacklevel=2,
        )
        setup.lr_scheduler = build_scheduler(
            "constant", optimizer or setup.optimizer, warmup_steps=0, total_steps=num_training_steps, kwargs={}
        )
    if setup.lr_scheduler is None:
        setup.lr_scheduler = setup.engine.weights.make_schedule(optimizer or setup.optimizer, num_training_steps)
    if setup.lr_scheduler is None:
        options = setup.args.lr_scheduler_kwargs
        assert not isinstance(options, str)
        warmup_steps = setup.args.get_warmup_steps(num_training_steps)
        _warn_of_warmup_without_end(setup, warmup_steps, num_training_steps)
        setup.lr_scheduler = build_scheduler(
            setup.args.lr_scheduler_type,
            optimizer or setup.optimizer,
            warmup_steps=warmup_steps,
            total_steps=num_training_steps,
            kwargs=options,
        )
        evaluates = setup.args.eval_strategy != "no" and setup.args.metric_for_best_model is not None
        if needs_metric(setup.lr_scheduler) and not evaluates:
            raise ValueError(
                f"lr_scheduler_type={str(setup.args.lr_scheduler_type)!r} follows a metric: name it in "
                "metric_for_best_model, and set eval_strategy."
            )
    return setup.lr_scheduler


def _warn_of_warmup_without_end(setup: Setup, warmup_steps: int, total_steps: int) -> None:
    if warmup_steps > total_steps and not setup.args.fast_dev_run:
        logger.warning(
            "warmup_steps=%d, and the training has %d: the learning rate never reaches learning_rate. Give fewer, or "
            "a share such as warmup_steps=0.1.",
            warmup_steps,
            total_steps,
        )


def chosen_optimizer(setup: Setup) -> tuple[Any, dict[str, Any]]:
    if is_overridden(setup.hooks(), "get_optimizer_cls_and_kwargs"):
        return setup.hooks().get_optimizer_cls_and_kwargs(setup.given_args, setup.model)
    return optimizer_class_and_kwargs(setup.args, setup.model, setup.total_steps)


def get_num_trainable_parameters(setup: Setup) -> int:
    """Number of parameters that are trained."""
    return sum(p.numel() for p in setup.model.parameters() if p.requires_grad)


def get_learning_rates(setup: Setup) -> list[float]:
    """Learning rate of each parameter group."""
    return [float(group["lr"]) for group in built_optimizer(setup).param_groups]


def get_optimizer_group(setup: Setup, param: object = None) -> Any:
    """The group that holds ``param``, or all groups' parameters."""
    groups = built_optimizer(setup).param_groups
    if param is None:
        return [group["params"] for group in groups]
    return next((group for group in groups if any(p is param for p in group["params"])), None)


def built_optimizer(setup: Setup) -> Any:
    if setup.optimizer is None:
        raise ValueError("There is no optimizer yet: call trainer.create_optimizer() or trainer.train() first.")
    return setup.optimizer


def optimizer_parameter_names(setup: Setup) -> list[str]:
    """Name of each parameter in the order in which the optimizer numbers them."""
    names = {id(p): name for name, p in unwrap(setup.model).named_parameters()}
    groups = setup.optimizer.param_groups
    parameters = [p for group in groups for p in group["params"]]
    found = [names.get(id(p), f"unnamed.{index}") for index, p in enumerate(parameters)]
    # A parameter that two optimizers of a Module share has a state in each.
    first = {name: index for index, name in reversed(list(enumerate(found)))}
    return [name if first[name] == index else f"{name}#{index}" for index, name in enumerate(found)]
