"""Trainer methods that build what updates the weights; each may be overridden."""

from __future__ import annotations

from typing import Any

from torch import nn

from trainwright.core.module import StepPlan
from trainwright.engines.torch.joint import join_optimizers, join_schedules
from trainwright.engines.torch.module import Module
from trainwright.engines.torch.optim import build_optimizer, decay_parameter_names, optimizer_class_and_kwargs
from trainwright.engines.torch.schedules import build_scheduler
from trainwright.trainer.data_methods import DataMethods
from trainwright.trainer.module_optimizers import configured, note_unused_arguments
from trainwright.trainer.signatures import overrides


class OptimizationMethods(DataMethods):
    """Optimizer and schedule of a Trainer."""

    #: Steps of the run that is being prepared; schedule-free optimizers resolve a fractional warm-up with it.
    _total_steps: int | None = None
    #: How long that run is, for a Module's ``configure_optimizers``.
    _step_plan: StepPlan | None = None

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        """Set ``self.optimizer`` and ``self.lr_scheduler``."""
        self._total_steps = num_training_steps
        if self._module is not None:
            self._configure_by_module(
                self._module, self._step_plan or StepPlan(num_training_steps, num_training_steps, 1)
            )
        if self._configured_by_module:
            return
        self.create_optimizer()
        self.create_scheduler(num_training_steps=num_training_steps, optimizer=self.optimizer)

    def _configure_by_module(self, module: Module, plan: StepPlan) -> None:
        """Optimizers and schedules of the Module's own, where it makes any."""
        self._forget_configured()
        chosen = configured(module, plan)
        if chosen is None:
            return
        note_unused_arguments(self.args, module)
        by_metric = any(entry.interval == "metric" for entry in chosen.schedules)
        if by_metric and module.automatic_optimization and self.args.metric_for_best_model is None:
            raise ValueError(
                "A learning-rate schedule of configure_optimizers follows a metric: name it in metric_for_best_model, "
                "and set eval_strategy."
            )
        self.optimizer = join_optimizers(chosen.optimizers)
        self.lr_scheduler = join_schedules(chosen.schedules)
        self._own_optimizer = self._own_scheduler = False
        self._configured_by_module = True

    def create_optimizer(self, model: nn.Module | None = None) -> Any:
        """Build ``self.optimizer`` unless the user gave one; returns it."""
        if self.optimizer is None:
            chosen = self.optimizer_cls_and_kwargs
            if chosen is None:
                chosen = self._chosen_optimizer()
            groups = None if self._module is None else self._module.parameter_groups(self.args)
            if groups is not None:
                chosen = (chosen[0], {**chosen[1], "params": groups})
            names = self.get_decay_parameter_names(model or self.model)
            self.optimizer = build_optimizer(model or self.model, self.args, chosen, decay_names=names)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Build ``self.lr_scheduler`` unless the user gave one; returns it."""
        if self.lr_scheduler is None:
            self.lr_scheduler = self.strategy.make_schedule(optimizer or self.optimizer, num_training_steps)
        if self.lr_scheduler is None:
            self.lr_scheduler = build_scheduler(
                self.args.lr_scheduler_type,
                optimizer or self.optimizer,
                warmup_steps=self.args.get_warmup_steps(num_training_steps),
                total_steps=num_training_steps,
                kwargs=self.args.lr_scheduler_kwargs,
            )
        return self.lr_scheduler

    def _chosen_optimizer(self) -> tuple[Any, dict[str, Any]]:
        if overrides(self, OptimizationMethods, "get_optimizer_cls_and_kwargs"):
            return self.get_optimizer_cls_and_kwargs(self.args, self.model)
        return optimizer_class_and_kwargs(self.args, self.model, self._total_steps)

    @staticmethod
    def get_optimizer_cls_and_kwargs(args: Any, model: nn.Module | None = None) -> tuple[Any, dict[str, Any]]:
        """The optimizer class that ``args.optim`` names, and its arguments."""
        return optimizer_class_and_kwargs(args, model)

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Parameters that weight decay applies to: all but biases and norms."""
        return decay_parameter_names(model)

    def get_num_trainable_parameters(self) -> int:
        """Number of parameters that are trained."""
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)

    def get_learning_rates(self) -> list[float]:
        """Learning rate of each parameter group."""
        return [float(group["lr"]) for group in self._built_optimizer().param_groups]

    def get_optimizer_group(self, param: Any = None) -> Any:
        """The group that holds ``param``, or all groups' parameters."""
        groups = self._built_optimizer().param_groups
        if param is None:
            return [group["params"] for group in groups]
        return next((group for group in groups if any(p is param for p in group["params"])), None)

    def _built_optimizer(self) -> Any:
        if self.optimizer is None:
            raise ValueError("There is no optimizer yet: call trainer.create_optimizer() or trainer.train() first.")
        return self.optimizer

    def _get_learning_rate(self) -> float:
        return self.get_learning_rates()[0]
