"""Trainer methods for one micro-batch: from inputs to gradients; each may be overridden."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from trainwright.core.engine import Portion
from trainwright.data.feed import take
from trainwright.engines.torch.cutting import cut_batch
from trainwright.engines.torch.losses import logits_of, loss_of, smoothed_loss
from trainwright.engines.torch.module import Module, loss_in, module_in
from trainwright.engines.torch.targets import TargetCounter, base_model, is_mapping
from trainwright.recipes.distillation.teacher import without_teacher_columns
from trainwright.trainer.optimization import OptimizationMethods
from trainwright.trainer.signatures import (
    accepted_keywords,
    forward_parameters,
    label_names,
    overrides,
    returns_loss_by_default,
    takes_keyword,
)

logger = logging.getLogger("trainwright")


class StepMethods(OptimizationMethods):
    """training_step, compute_loss and what they are made of.

    The loss contract: ``compute_loss`` returns the mean over the targets of its own micro-batch, and the gradient of
    the step is the mean over all its targets, however they were cut into micro-batches.
    """

    #: The micro-batch that is being trained on.
    _portion: Portion | None = None
    current_gradient_accumulation_steps = 1
    _default_step_ran = False
    _own_step_was_noted = False

    def _learn_signatures(self, model: nn.Module) -> None:
        """Find out once how the model, and methods that a subclass overrides, want to be called."""
        inner = base_model(model)
        parameters = forward_parameters(inner)
        self.label_names = label_names(inner) if self.args.label_names is None else self.args.label_names
        self.can_return_loss = returns_loss_by_default(inner)
        self._target_counter = TargetCounter(model)
        self._count_targets = self._target_counter if self._module is None else self._module.count_targets
        smoothing = self.args.label_smoothing_factor
        if smoothing and getattr(getattr(inner, "config", None), "problem_type", None) == "multi_label_classification":
            raise ValueError("label_smoothing_factor does not fit multi-label classification: set it to 0.")
        self.label_smoother = smoothing or None
        self.model_accepts_loss_kwargs = "num_items_in_batch" in parameters
        self._loss_outside_model = bool(self.compute_loss_func or smoothing or not takes_keyword(parameters, "labels"))
        own_loss = overrides(self, StepMethods, "compute_loss")
        self._compute_loss_takes = accepted_keywords(self.compute_loss, ("return_outputs", "num_items_in_batch"))
        self._wants_count = bool(self.compute_loss_func or self.model_accepts_loss_kwargs or own_loss)
        self._training_step_is_own = overrides(self, StepMethods, "training_step")
        self._training_step_takes_count = bool(accepted_keywords(self.training_step, ("num_items_in_batch",)))
        self._loss_function_takes_count = self.compute_loss_func is not None and bool(
            accepted_keywords(self.compute_loss_func, ("num_items_in_batch",))
        )

    def count_targets(self, inputs: Any) -> Any:
        """What the mean loss of a batch is taken over; override it where the model counts differently.

        By default integer labels that are not -100 (without each row's first for models that shift), else samples.
        """
        return self._count_targets(inputs)

    def split_batch(self, inputs: Any, parts: int) -> list[Any]:
        """``inputs`` in ``parts`` pieces, for ``micro_batch``; override it where a batch is not a row per sample."""
        return cut_batch(inputs, parts) if self._module is None else self._module.split_batch(inputs, parts)

    def _draw_batches(self, iterator: Iterator[Any], count: int) -> list[Any]:
        return self.get_batch_samples(iterator, count, self.args.device)[0]

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> tuple[list[Any], Any]:
        """The next step's micro-batches and the number of targets in them."""
        batches = take(epoch_iterator, num_batches)
        return batches, sum(self.count_targets(batch) for batch in batches)

    # ---- one micro-batch

    def _train_on(self, batch: Any, portion: Portion) -> Tensor | None:
        """What the engine calls for each micro-batch; None when the whole step has no target."""
        self._portion = portion
        self.current_gradient_accumulation_steps = portion.pieces
        if self._training_step_is_own:
            loss = self._call_own_training_step(batch, portion)
        else:
            loss = self.training_step(self.model_wrapped, batch)
        return None if portion.step_targets == 0 else loss

    def _call_own_training_step(self, batch: Any, portion: Portion) -> Tensor:
        """A user's ``training_step``: HF's contract whole, with the step's target count."""
        self._default_step_ran = False
        if self._training_step_takes_count:
            loss = self.training_step(
                self.model_wrapped, batch, num_items_in_batch=self._as_count(portion.step_targets)
            )
        else:
            loss = self.training_step(self.model_wrapped, batch)
        if not self._default_step_ran and not self._own_step_was_noted:
            self._own_step_was_noted = True
            logger.info(
                "%s.training_step does not call super().training_step: scaling over %d batches is up to it.",
                type(self).__name__,
                portion.pieces,
            )
        if not self._default_step_ran and self._loss_modifiers:
            raise ValueError(
                f"{type(self).__name__}.training_step does not call super().training_step, so the recipe's "
                f"{type(self._loss_modifiers[0]).__name__} cannot act: call it, or override compute_loss instead."
            )
        if not self._default_step_ran and not self.engine.is_alone:
            # Its loss is the mean of this process alone, and losses are summed over processes.
            loss = loss / self._backend.world_size
        return loss.detach()

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward of one micro-batch; returns its share of the step's loss, detached."""
        self._default_step_ran = True
        if not model.training:
            # A callback may have switched to evaluation, to show samples say, and not back.
            self.engine.train_mode() if self.is_in_train else model.train()
        portion = self._portion or Portion(self.count_targets(inputs), 1.0, num_items_in_batch, 1)
        inputs = self._prepare_inputs(inputs)
        with self.compute_loss_context_manager():
            if self._loss_modifiers:
                loss = self._modified_loss(model, inputs, portion.targets if self._wants_count else None)
            else:
                loss = self._call_compute_loss(model, inputs, portion.targets if self._wants_count else None)
        if loss.ndim:
            loss = loss.mean()
        weight = portion.weight
        if isinstance(weight, float):
            if weight == 0.0:
                # No target: the mean is 0/0, and even 0 x its gradient may be NaN. There is nothing to learn here.
                self.engine.backward_of_nothing(loss)
                return torch.zeros_like(loss.detach())
            if weight != 1.0:
                loss = loss * weight
        else:
            loss = torch.where(weight > 0, loss * weight, 0.0)
        self.engine.backward(loss)
        return loss.detach()

    def _modified_loss(self, model: nn.Module, inputs: Any, targets: Any) -> Tensor:
        """The loss as a recipe wants it: it sees the outputs, and columns that only a teacher takes."""
        student = without_teacher_columns(inputs)
        loss, outputs = self._call_compute_loss(model, student, targets, return_outputs=True)
        loss = loss.mean() if loss.ndim else loss
        for modifier in self._loss_modifiers:
            loss = modifier.modify_loss(loss, outputs, inputs)
        return loss

    def _prepare_inputs(self, inputs: Any) -> Any:
        """Batch on the device."""
        if is_mapping(inputs) and not inputs:
            raise ValueError(
                "A batch came out empty: none of the dataset's columns is an argument of the model's forward. "
                "Rename the columns, or set remove_unused_columns=False."
            )
        return inputs if self.engine.device.type == "cpu" else self.engine.to_device(inputs)

    def compute_loss_context_manager(self) -> Any:
        """Context of a forward pass: autocast where the run uses it."""
        return self.engine.precision.autocast()

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> Any:
        return self.engine.precision.autocast(bool(cache_enabled))

    def _call_compute_loss(self, model: nn.Module, inputs: Any, targets: Any, return_outputs: bool = False) -> Any:
        """``compute_loss`` with the arguments its signature takes: overrides of every historic form work."""
        takes = self._compute_loss_takes
        kwargs: dict[str, Any] = {}
        if return_outputs:
            kwargs["return_outputs"] = True
        if targets is not None and "num_items_in_batch" in takes:
            kwargs["num_items_in_batch"] = self._as_count(targets)
        return self.compute_loss(model, inputs, **kwargs)

    def _as_count(self, targets: Any) -> Any:
        """A count as HF passes it: a scalar tensor on the device, filled there, so that nothing waits."""
        if targets is None or isinstance(targets, Tensor):
            return targets
        return torch.full((), targets, dtype=torch.long, device=self.engine.device)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Mean loss over the targets of this micro-batch, or ``(loss, outputs)``.

        ``num_items_in_batch`` is this micro-batch's own count: dividing a sum by it and ignoring it both give the mean.
        The Trainer weights micro-batches by their share of the step's targets.
        """
        if self._module is not None:
            return self._loss_by_module(model, inputs, return_outputs)
        labels = None
        if is_mapping(inputs):
            if self._loss_outside_model:
                inputs = dict(inputs)
                labels = inputs.pop("labels", None)
            if num_items_in_batch is not None and self.model_accepts_loss_kwargs:
                inputs = {**inputs, "num_items_in_batch": num_items_in_batch}
        elif isinstance(inputs, (tuple, list)) and len(inputs) > 1:
            *inputs, labels = inputs
        outputs = self._forward(model, inputs)
        if self.compute_loss_func is not None:
            loss = self._call_loss_function(outputs, labels, num_items_in_batch)
        elif self.label_smoother is not None and labels is not None:
            shift = self._target_counter.shifts
            loss = smoothed_loss(logits_of(outputs), labels, self.args.label_smoothing_factor, shift=shift)
        else:
            loss = loss_of(outputs, labels, inputs)
        return (loss, outputs) if return_outputs else loss

    def _loss_by_module(self, model: nn.Module, inputs: Any, return_outputs: bool) -> Any:
        # Through the wrapper, if there is one: it wants to see a forward pass.
        run_step: Any = (
            model if getattr(model, "runs_training_step", False) else self._running_module(model).training_step
        )
        outputs = run_step(inputs)
        loss = loss_in(outputs)
        if loss is None:
            raise ValueError(
                f"{type(self._module).__name__}.training_step returned {type(outputs).__name__}; it must return the "
                'loss: a scalar tensor, a dict with "loss", or a tuple that begins with it.'
            )
        return (loss, outputs) if return_outputs else loss

    def _train_by_hand(self, batch: Any, portion: Portion) -> Tensor | None:
        """One micro-batch of a Module that optimizes itself: whatever loss it returns is only logged."""
        module = self._running_module(self.model_wrapped)
        if not module.training:
            self.engine.train_mode()
        inputs = self._prepare_inputs(batch)
        with self.compute_loss_context_manager():
            loss = loss_in(module.training_step(inputs))
        return None if loss is None else loss.detach().mean()

    def _running_module(self, model: nn.Module) -> Module:
        module = module_in(model)
        assert module is not None
        return module

    def _call_loss_function(self, outputs: Any, labels: Any, targets: Any) -> Tensor:
        assert self.compute_loss_func is not None
        if self._loss_function_takes_count:
            return self.compute_loss_func(outputs, labels, num_items_in_batch=targets)
        return self.compute_loss_func(outputs, labels)

    def _forward(self, model: nn.Module, inputs: Any) -> Any:
        if is_mapping(inputs):
            return model(**inputs)
        return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)
