"""How long a run is: epochs, steps, samples."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainwright.config.arguments import TrainingArguments
from trainwright.config.limits import train_limit
from trainwright.core.backend import Backend
from trainwright.data.first_batches import may_end_before
from trainwright.data.loader import has_length
from trainwright.data.phased import phased_order


@dataclass(frozen=True)
class TrainingPlan:
    epochs: int
    max_steps: int
    steps_per_epoch: int
    #: None for data without a length.
    batches_per_epoch: int | None
    #: Samples in the data.
    examples: int
    #: Samples that the whole run goes through.
    samples: int


def total_train_batch_size(args: TrainingArguments) -> int:
    """Samples per optimizer step over all devices."""
    return args.train_batch_size * args.gradient_accumulation_steps * args.data_processes


def plan_by(hooks: Any, args: TrainingArguments, loader: Any) -> TrainingPlan:
    """The plan as ``set_initial_training_values`` says, which a subclass may override."""
    find: Callable[..., Any] = hooks.set_initial_training_values
    # An argument of its own until transformers 4.57.
    batch = inspect.signature(find).parameters.get("total_train_batch_size")
    more = {} if batch is None else {"total_train_batch_size": hooks.get_total_train_batch_size(args)}
    epochs, steps_per_epoch, examples, samples, _, batches, max_steps = find(args, loader, **more)
    # transformers gives streams a length in this place too.
    batches = batches if has_length(loader) else None
    return TrainingPlan(epochs, max_steps, steps_per_epoch, batches, examples, int(samples))


def plan_training(
    args: TrainingArguments, loader: Any, count_examples: Callable[[Any], int], batch: int | None = None
) -> TrainingPlan:
    """Turn ``max_steps`` or ``num_train_epochs`` and the loader's length into a plan; ``batch`` samples are a step."""
    batch = total_train_batch_size(args) if batch is None else batch
    if not has_length(loader):
        return _plan_for_stream(args, batch)
    batches = len(loader)
    if batches == 0:
        raise ValueError(
            "The training data gives no batch. Is the dataset empty, or smaller than a batch with dataloader_drop_last?"
        )
    steps_per_epoch = math.ceil(batches / args.gradient_accumulation_steps)
    examples = min(count_examples(loader), steps_per_epoch * batch) if train_limit(args) else count_examples(loader)
    if args.max_steps > 0:
        epochs = math.ceil(args.max_steps / steps_per_epoch)
        samples = args.max_steps * batch
        if _epoch_sizes(loader) is not None or may_end_before(loader):
            # Batches by token budget differ in number from epoch to epoch: go on until max_steps.
            epochs = sys.maxsize
        return TrainingPlan(epochs, args.max_steps, steps_per_epoch, batches, examples, samples)
    max_steps = _steps_of_epochs(loader, args, steps_per_epoch)
    order = phased_order(loader)
    if order is not None and not train_limit(args):
        samples = sum(order.samples_of(order.plan.number_at(epoch)) for epoch in range(order.plan.epochs))
    else:
        samples = int(examples * args.num_train_epochs)
    return TrainingPlan(math.ceil(args.num_train_epochs), max_steps, steps_per_epoch, batches, examples, samples)


def refuse_uneven(plan: TrainingPlan, backend: Backend) -> None:
    """Processes that take other numbers of steps would wait for each other for ever."""
    found = backend.gather(plan.steps_per_epoch)
    if len(set(found)) > 1:
        raise ValueError(
            f"The training data gives the processes different numbers of steps in an epoch ({found}): its sampler must "
            "give each the same number of batches, as torch's DistributedSampler does; without a sampler for several "
            "processes the Trainer shares the data out by itself."
        )


def _epoch_sizes(loader: object) -> Any:
    """How many batches each epoch has, where that changes."""
    return getattr(getattr(loader, "batch_sampler", None), "batches_in_epoch", None)


def _steps_of_epochs(loader: object, args: TrainingArguments, steps_per_epoch: int) -> int:
    sizes = _epoch_sizes(loader)
    if sizes is None:
        return math.ceil(args.num_train_epochs * steps_per_epoch)
    whole, rest = divmod(args.num_train_epochs, 1)
    steps = sum(math.ceil(sizes(epoch) / args.gradient_accumulation_steps) for epoch in range(int(whole)))
    if rest:
        steps += math.ceil(rest * math.ceil(sizes(int(whole)) / args.gradient_accumulation_steps))
    return steps


def _plan_for_stream(args: TrainingArguments, batch: int) -> TrainingPlan:
    if args.max_steps <= 0:
        raise ValueError("The training data has no length, so max_steps must say how long to train: set max_steps=...")
    samples = args.max_steps * batch
    return TrainingPlan(sys.maxsize, args.max_steps, args.max_steps, None, samples, samples)
