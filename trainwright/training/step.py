"""Take one micro-batch from inputs to gradients."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from trainwright.core.engine import Portion
from trainwright.core.microbatching import to_give_away
from trainwright.core.modifier import Passes
from trainwright.core.signatures import (
    accepted_keywords,
    forward_parameters,
    label_names,
    returns_loss_by_default,
    takes_keyword,
    takes_positionally,
)
from trainwright.data.feed import take
from trainwright.data.group_column import without_groups
from trainwright.engines.torch.loss_functions.base import Loss, next_labels
from trainwright.engines.torch.losses import logits_of, loss_of, smoothed_loss
from trainwright.engines.torch.module import Module, loss_in, module_in
from trainwright.engines.torch.split_batch import cut_batch
from trainwright.engines.torch.targets import TargetCounter, base_model, is_mapping
from trainwright.recipes.distillation.teacher import without_teacher_columns
from trainwright.training.hooks import is_overridden
from trainwright.training.loss_groups import watch_losses
from trainwright.training.setup import Calling, Setup

logger = logging.getLogger("trainwright")


def learn_signatures(setup: Setup, model: nn.Module) -> None:
    """Find out once how the model, and methods that a subclass overrides, want to be called."""
    inner, hooks = base_model(model), setup.hooks()
    setup.label_names = label_names(inner) if setup.args.label_names is None else setup.args.label_names
    setup.can_return_loss = returns_loss_by_default(inner)
    smoothing = setup.args.label_smoothing_factor
    if smoothing and getattr(getattr(inner, "config", None), "problem_type", None) == "multi_label_classification":
        raise ValueError("label_smoothing_factor does not fit multi-label classification: set it to 0.")
    setup.label_smoother = smoothing or None
    said, takes_count = setup.loss_kwargs_by_subclass, "num_items_in_batch" in forward_parameters(inner)
    setup.model_accepts_loss_kwargs = takes_count if said is None else said
    counter = TargetCounter(model)
    setup.calling = Calling(
        target_counter=counter,
        compute_loss_takes=accepted_keywords(hooks.compute_loss, ("return_outputs", "num_items_in_batch")),
        training_step_is_own=is_overridden(hooks, "training_step"),
        training_step_takes_count=bool(accepted_keywords(hooks.training_step, ("num_items_in_batch",))),
        training_step_takes_third=takes_positionally(hooks.training_step, 3),
        prepares_each_input=is_overridden(hooks, "_prepare_input"),
        autocast_is_own=is_overridden(hooks, "autocast_smart_context_manager"),
        count_factor=setup.args.data_processes if hooks.counts_over_processes else 1,
        **_calling_of_the_loss(setup, inner, counter),
    )


def take_loss_function(setup: Setup, function: Callable[..., Tensor] | None) -> None:
    """Set the loss function, also in a Trainer that is built: subclasses do it after they called our constructor."""
    setup.compute_loss_func = function
    _learn_loss_again(setup)


def take_loss_kwargs(setup: Setup, accepts: bool) -> None:
    """Let a subclass say whether its loss counts items, whatever the model's signature says."""
    setup.model_accepts_loss_kwargs = setup.loss_kwargs_by_subclass = accepts
    _learn_loss_again(setup)


def _learn_loss_again(setup: Setup) -> None:
    if isinstance(setup.calling, Calling):
        found = _calling_of_the_loss(setup, base_model(setup.model), setup.calling.target_counter)
        setup.calling = replace(setup.calling, **found)


def count_nothing(inputs: Any) -> None:
    """What a subclass's loss counts that is a mean over something of its own: batches weigh the same."""


def _calling_of_the_loss(setup: Setup, inner: nn.Module, counter: TargetCounter) -> dict[str, Any]:
    """Those fields of :class:`Calling` that depend on who computes the loss."""
    function, takes_labels = setup.compute_loss_func, takes_keyword(forward_parameters(inner), "labels")
    is_own = is_overridden(setup.hooks(), "compute_loss")
    # How a subclass said it before ``loss_is_scaled_for_ga``: the number of words means nothing to a loss of pairs.
    counts_no_items = setup.loss_kwargs_by_subclass is False and function is None
    count_targets = counter if setup.module is None else setup.module.count_targets
    if isinstance(function, Loss):
        count_targets = partial(function.count_targets, usual=counter)
    return {
        "count_targets": count_nothing if counts_no_items else count_targets,
        "loss_outside_model": bool(function or setup.args.label_smoothing_factor or not takes_labels),
        "wants_count": not counts_no_items and bool(function or setup.model_accepts_loss_kwargs or is_own),
        "loss_function_takes_count": function is not None
        and bool(accepted_keywords(function, ("num_items_in_batch",))),
        "shifts_for_loss": isinstance(function, Loss) and function.compares_positions and counter.shifts,
    }


def split_batch(setup: Setup, inputs: object, parts: int) -> list[Any]:
    """``inputs`` in ``parts`` pieces, for ``micro_batch``; override it where a batch is not a row per sample."""
    return cut_batch(inputs, parts) if setup.module is None else setup.module.split_batch(inputs, parts)


def count_targets(setup: Setup, batch: Any) -> Any:
    """What the engine asks of a batch."""
    return setup.hooks().count_targets(batch)


def draw_batches(setup: Setup, iterator: Iterator[Any], count: int) -> list[Any]:
    return setup.hooks().get_batch_samples(iterator, count, setup.args.device)[0]


def get_batch_samples(
    setup: Setup, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
) -> tuple[list[Any], Any]:
    """The next step's micro-batches and the number of targets in them."""
    batches = take(epoch_iterator, num_batches)
    counts = [setup.hooks().count_targets(batch) for batch in batches]
    return batches, None if any(count is None for count in counts) else sum(counts)


def train_on(setup: Setup, batch: object, portion: Portion) -> Tensor | None:
    """What the engine calls for each micro-batch; None when the whole step has no target."""
    setup.portion = portion
    setup.current_gradient_accumulation_steps = portion.pieces
    if setup.pass_modifiers:
        loss = modified_pass(setup, batch, portion)
    elif setup.calling.training_step_is_own:
        loss = call_own_training_step(setup, batch, portion)
    else:
        loss = setup.hooks().training_step(setup.model_wrapped, batch)
    # A step that somebody takes by hand later is whole.
    setup.portion = None
    return None if portion.step_targets == 0 else loss


def modified_pass(setup: Setup, batch: object, portion: Portion) -> Tensor:
    """Forward and backward as modifiers want it: perhaps twice."""

    def run() -> Tensor:
        # A loss takes its labels out, and a second pass needs them.
        given = to_give_away(batch)
        if setup.calling.training_step_is_own:
            return call_own_training_step(setup, given, portion)
        return setup.hooks().training_step(setup.model_wrapped, given)

    around: Callable[[], Any] = run
    for modifier in setup.pass_modifiers:
        assert modifier.site is not None
        around = partial(modifier.around_pass, modifier.site, around)
    return around()


def call_own_training_step(setup: Setup, batch: object, portion: Portion) -> Tensor:
    """A user's ``training_step``: HF's contract whole, with the step's target count."""
    setup.default_step_ran = False
    count = as_count(setup, portion.step_targets)
    if setup.calling.training_step_takes_count:
        loss = setup.hooks().training_step(setup.model_wrapped, batch, num_items_in_batch=count)
    elif setup.calling.training_step_takes_third:
        loss = setup.hooks().training_step(setup.model_wrapped, batch, count)
    else:
        loss = setup.hooks().training_step(setup.model_wrapped, batch)
    if not setup.default_step_ran and not setup.own_step_was_noted:
        setup.own_step_was_noted = True
        logger.info(
            "%s.training_step does not call super().training_step: scaling over %d batches is up to it.",
            type(setup.hooks()).__name__,
            portion.pieces,
        )
    if not setup.default_step_ran and setup.loss_modifiers:
        raise ValueError(
            f"{type(setup.hooks()).__name__}.training_step does not call super().training_step, so the recipe's "
            f"{type(setup.loss_modifiers[0]).__name__} cannot act: call it, or override compute_loss instead."
        )
    if not setup.default_step_ran and not setup.engine.is_alone:
        # Its loss is the mean of this process alone, and losses are summed over processes.
        loss = loss / setup.backend.world_size
    return loss.detach()


def training_step(setup: Setup, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
    """Forward and backward of one micro-batch; returns its share of the step's loss, detached."""
    setup.default_step_ran = True
    if not model.training:
        # A callback may have switched to evaluation, to show samples say, and not back.
        setup.engine.train_mode() if setup.is_in_train else model.train()
    hooks = setup.hooks()
    portion = setup.portion or Portion(hooks.count_targets(inputs), 1.0, num_items_in_batch, 1)
    targets, weight = portion.targets, portion.weight
    if hooks.loss_is_scaled_for_ga is not None:
        targets, weight = portion.step_targets, weight_by_subclass(setup, portion, scaled=hooks.loss_is_scaled_for_ga)
    if not setup.calling.wants_count:
        targets = None
    inputs = hooks._prepare_inputs(inputs)
    with hooks.compute_loss_context_manager():
        if setup.loss_modifiers or setup.loss_groups is not None:
            loss = modified_loss(setup, model, inputs, targets)
        else:
            loss = call_compute_loss(setup, model, inputs, targets)
    if loss.ndim:
        loss = loss.mean()
    if isinstance(weight, float):
        if weight == 0.0:
            # No target: the mean is 0/0, and even 0 x its gradient may be NaN. There is nothing to learn here.
            setup.engine.backward_of_nothing(loss)
            return torch.zeros_like(loss.detach())
        if weight != 1.0:
            loss = loss * weight
    else:
        loss = torch.where(weight > 0, loss * weight, 0.0)
    setup.engine.backward(loss)
    return loss.detach()


def weight_by_subclass(setup: Setup, portion: Portion, *, scaled: bool) -> Any:
    """Weight of a micro-batch whose ``compute_loss`` has scaled its loss for the step, or wants a plain mean of them.

    transformers takes the mean over processes, where losses are summed here. A batch without a target is left out.
    """
    share = 1.0 if scaled else 1.0 / portion.pieces
    return share / setup.backend.world_size * (portion.weight > 0)


def modified_loss(setup: Setup, model: nn.Module, inputs: object, targets: object) -> Tensor:
    """The loss as a recipe wants it: it sees the outputs, and columns that only a teacher takes."""
    student, _ = without_groups(without_teacher_columns(inputs))
    run: Callable[[Any], Any] = partial(call_compute_loss, setup, model, targets=targets, return_outputs=True)
    shifts = setup.calling.target_counter.shifts
    passes = Passes(run, partial(loss_of_other_labels, setup, targets), shifts)
    for modifier in setup.loss_modifiers:
        passes = replace(passes, run=partial(modifier.compute_loss, passes))
    loss, outputs = passes.run(student)
    loss = loss.mean() if loss.ndim else loss
    for modifier in setup.loss_modifiers:
        loss = modifier.modify_loss(loss, outputs, inputs)
    watch_losses(setup, outputs, inputs)
    return loss


def prepare_inputs(setup: Setup, inputs: object) -> Any:
    """Batch on the device."""
    if is_mapping(inputs) and not inputs:
        raise ValueError(
            "A batch came out empty: none of the dataset's columns is an argument of the model's forward. "
            "Rename the columns, or set remove_unused_columns=False."
        )
    if setup.calling.prepares_each_input:
        return setup.hooks()._prepare_input(inputs)
    return inputs if setup.engine.device.type == "cpu" else setup.engine.to_device(inputs)


def prepare_input(setup: Setup, data: Any) -> Any:
    """``data`` on the device; what is nested in it goes through the method that a subclass may override."""
    if is_mapping(data):
        return type(data)({name: setup.hooks()._prepare_input(value) for name, value in data.items()})
    if isinstance(data, (tuple, list)):
        parts = [setup.hooks()._prepare_input(value) for value in data]
        return type(data)(*parts) if hasattr(data, "_fields") else type(data)(parts)
    return setup.engine.to_device(data)


def call_compute_loss(
    setup: Setup, model: nn.Module, inputs: object, targets: Any, return_outputs: bool = False
) -> Any:
    """``compute_loss`` with the arguments its signature takes: overrides of every historic form work."""
    takes = setup.calling.compute_loss_takes
    kwargs: dict[str, Any] = {}
    if return_outputs:
        kwargs["return_outputs"] = True
    if targets is not None and "num_items_in_batch" in takes:
        factor = setup.calling.count_factor
        kwargs["num_items_in_batch"] = as_count(setup, targets if factor == 1 else targets * factor)
    return setup.hooks().compute_loss(model, inputs, **kwargs)


def as_count(setup: Setup, targets: Any) -> Any:
    """A count as HF passes it: a scalar tensor on the device, filled there, so that nothing waits."""
    if targets is None or isinstance(targets, Tensor):
        return targets
    return torch.full((), targets, dtype=torch.long, device=setup.engine.device)


def compute_loss(
    setup: Setup,
    model: nn.Module,
    inputs: Any,
    return_outputs: bool = False,
    num_items_in_batch: Any = None,
) -> Any:
    """Mean loss over this micro-batch's targets, or ``(loss, outputs)``; ``Trainer.compute_loss`` has the contract."""
    if setup.module is not None:
        return loss_by_module(setup, model, inputs, return_outputs)
    if num_items_in_batch is not None and setup.calling.count_factor != 1:
        num_items_in_batch = num_items_in_batch // setup.calling.count_factor
    labels = None
    if is_mapping(inputs):
        if setup.calling.loss_outside_model:
            inputs = dict(inputs)
            labels = inputs.pop("labels", None)
        if num_items_in_batch is not None and setup.model_accepts_loss_kwargs:
            inputs = {**inputs, "num_items_in_batch": num_items_in_batch}
    elif isinstance(inputs, (tuple, list)) and len(inputs) > 1:
        *inputs, labels = inputs
    outputs = call_model(model, inputs)
    loss = loss_from_outputs(setup, outputs, labels, inputs, num_items_in_batch)
    return (loss, outputs) if return_outputs else loss


def loss_from_outputs(setup: Setup, outputs: Any, labels: Any, inputs: object, count: object) -> Tensor:
    if setup.compute_loss_func is not None:
        return call_loss_function(setup, outputs, labels, count)
    if setup.label_smoother is not None and labels is not None:
        shift = setup.calling.target_counter.shifts
        return smoothed_loss(logits_of(outputs), labels, setup.args.label_smoothing_factor, shift=shift)
    return loss_of(outputs, labels, inputs)


def loss_of_other_labels(setup: Setup, targets: Any, outputs: Any, labels: Any) -> Tensor:
    """The loss of a pass that was made, compared with other labels; of as many targets."""
    if setup.module is not None or not setup.calling.loss_outside_model or is_overridden(setup.hooks(), "compute_loss"):
        raise ValueError(
            "Samples that are mixed have two labels, and this model (or compute_loss) computes its loss by itself: "
            "pass compute_loss_func='cross_entropy' (model.loss: cross_entropy), which can be asked twice."
        )
    return loss_from_outputs(setup, outputs, labels, {}, as_count(setup, targets))


def loss_by_module(setup: Setup, model: nn.Module, inputs: object, return_outputs: bool) -> Any:
    # Through the wrapper, if there is one: it wants to see a forward pass.
    run_step: Any = model if getattr(model, "runs_training_step", False) else running_module(model).training_step
    outputs = run_step(inputs)
    loss = loss_in(outputs)
    if loss is None:
        raise ValueError(
            f"{type(setup.module).__name__}.training_step returned {type(outputs).__name__}; it must return the "
            'loss: a scalar tensor, a dict with "loss", or a tuple that begins with it.'
        )
    return (loss, outputs) if return_outputs else loss


def train_by_hand(setup: Setup, batch: object, portion: Portion) -> Tensor | None:
    """One micro-batch of a Module that optimizes itself: whatever loss it returns is only logged."""
    module = running_module(setup.model_wrapped)
    if not module.training:
        setup.engine.train_mode()
    inputs = setup.hooks()._prepare_inputs(batch)
    with setup.hooks().compute_loss_context_manager():
        loss = loss_in(module.training_step(inputs))
    return None if loss is None else loss.detach().mean()


def running_module(model: nn.Module) -> Module:
    module = module_in(model)
    assert module is not None
    return module


def call_loss_function(setup: Setup, outputs: object, labels: object, targets: object) -> Tensor:
    assert setup.compute_loss_func is not None
    if setup.calling.shifts_for_loss:
        labels = next_labels(labels)
    if setup.calling.loss_function_takes_count:
        return setup.compute_loss_func(outputs, labels, num_items_in_batch=targets)
    return setup.compute_loss_func(outputs, labels)


def call_model(model: nn.Module, inputs: object) -> Any:
    if is_mapping(inputs):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)
