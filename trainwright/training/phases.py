"""Phases of a training: from what was given to the Trainer to what a run follows."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from trainwright.checkpoint.manifest import holds
from trainwright.checkpoint.training_state import TRAINING
from trainwright.config.arguments import TrainingArguments
from trainwright.config.enums import SchedulerType
from trainwright.config.warnings import TrainwrightWarning
from trainwright.core.phases import Phase, PhasePlan
from trainwright.data.phased import phased_order
from trainwright.engines.torch.schedules import build_scheduler, needs_metric
from trainwright.recipes.scheduling.phases import Phases, RunSettings
from trainwright.training.checkpoint_texts import callback_values
from trainwright.training.recipe import recipe_epochs
from trainwright.training.run import TrainingRun
from trainwright.training.setup import Setup


def take_phases(setup: Setup, phases: Sequence[Phase] | None) -> None:
    """Make the modifier that follows ``phases``; what cannot go with them is refused here."""
    if phases is None:
        return
    if not isinstance(phases, Sequence) or not all(isinstance(one, Phase) for one in phases):
        raise ValueError("phases= takes a list of trainwright.Phase, such as [Phase('head', epochs=2), ...].")
    args, plan = setup.args, PhasePlan(phases)
    if args.max_steps > 0 and not args.fast_dev_run:
        raise ValueError(
            f"The phases say how long the run is, {plan.epochs} epochs, and max_steps={args.max_steps} says otherwise: "
            "leave it out."
        )
    if any(modifier.sets_learning_rate for modifier in setup.modifiers):
        raise ValueError("The recipe sets the learning rate, and so does each phase: take it out of the recipe.")
    if recipe_epochs(setup) > plan.epochs:
        raise ValueError(
            f"The recipe ends with epoch {recipe_epochs(setup):g}, and the phases have {plan.epochs} epochs together: "
            "its epochs are counted over all phases."
        )
    if any(phase.weight_decay for phase in plan.phases) and not args.weight_decay:
        raise ValueError(
            "A phase has weight_decay=, and the run has none: set TrainingArguments(weight_decay=...) too, which says "
            "that some parameters decay; a phase without is weight_decay=0.0 there."
        )
    if any(phase.until for phase in plan.phases) and args.eval_strategy == "no":
        raise ValueError(
            'until= ends a phase by what evaluations show, and there are none: set eval_strategy to "epoch", or '
            "evaluate_every."
        )
    settings = _settings_of(args)
    for phase in plan.phases:
        # Now, and not at the border.
        kind = phase.lr_scheduler_type or settings.lr_scheduler_type
        own = phase.lr_scheduler_type is not None or phase.lr_scheduler_kwargs is not None
        make_schedule(kind, (phase.lr_scheduler_kwargs or {}) if own else settings.lr_scheduler_kwargs, 0, 1)
    setup.phases = plan
    setup.modifiers.append(Phases(plan, settings, make_schedule))
    _use_epochs(setup, plan)


def _use_epochs(setup: Setup, plan: PhasePlan) -> None:
    said, default = setup.args.num_train_epochs, type(setup.args).__dataclass_fields__["num_train_epochs"].default
    if said not in (default, plan.epochs):
        warnings.warn(
            f"The phases train for {plan.epochs} epochs: num_train_epochs={said:g} does not act.",
            TrainwrightWarning,
            stacklevel=4,
        )
    setup.take_arguments(dataclasses.replace(setup.given_args, num_train_epochs=float(plan.epochs)))


def _settings_of(args: TrainingArguments) -> RunSettings:
    options = args.lr_scheduler_kwargs
    assert not isinstance(options, str)
    return RunSettings(
        learning_rate=args.learning_rate,
        lr_scheduler_type=str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)),
        lr_scheduler_kwargs=dict(options or {}),
        warmup_steps=args.warmup_steps,
        weight_decay=args.weight_decay,
    )


def make_schedule(
    name: str | SchedulerType, options: Mapping[str, Any], warmup_steps: int, total_steps: int
) -> Callable[[int], float]:
    """Return the factor of the rate at each step of a schedule; those that follow a metric are refused."""
    unused = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    made = build_scheduler(name, unused, warmup_steps=warmup_steps, total_steps=total_steps, kwargs=options)
    factors = getattr(made, "lr_lambdas", None)
    if needs_metric(made) or not factors:
        raise ValueError(
            f"lr_scheduler_type={str(getattr(name, 'value', name))!r} is no function of the step, so a phase cannot "
            "follow it: name another one, such as 'cosine'."
        )
    return factors[0]


def refuse_other_phases(setup: Setup, checkpoint: Path) -> None:
    """A run goes on in the phases that it has begun; refused before anything of it is touched."""
    if not holds(checkpoint, TRAINING):
        return
    states = json.loads((checkpoint / TRAINING).read_text(encoding="utf-8")).get("callbacks") or {}
    stored = next(filter(None, map(_phases_in, states.values())), None)
    present = next((one for one in setup.modifiers if isinstance(one, Phases)), None)
    if stored is not None and present is not None:
        present.refuse_other(stored)
    elif stored is not None:
        names = ", ".join(stored["names"])
        raise ValueError(f"{checkpoint.name} was saved by a run in phases ({names}): pass phases= to go on.")
    elif present is not None:
        raise ValueError(f"{checkpoint.name} was saved by a run without phases: leave phases= out, or begin a new run.")


def _phases_in(stored: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a run's phases have saved, if this is of them: known by what it holds, for classes can share a name."""
    values = callback_values(dict(stored)).get("own")
    return values if isinstance(values, dict) and values.keys() >= Phases.SAVED else None


def settle_phases(run: TrainingRun) -> None:
    """Count the steps of each phase's epochs, now that there is a loader."""
    plan = run.setup.phases
    if plan is None:
        return
    count = None if phased_order(run.loader) is None else run.loader.batch_sampler.batches_in_epoch
    if count is None:
        raise ValueError(
            "phases= needs the Trainer's own training loader: get_train_dataloader is overridden, or train_dataset= is "
            "a loader. Give datasets."
        )
    for modifier in run.setup.modifiers:
        if isinstance(modifier, Phases):
            # A search may have changed the arguments since.
            modifier.settings = _settings_of(run.setup.args)
    plan.accumulation = run.setup.args.gradient_accumulation_steps
    plan.batches_per_epoch = [count(plan.start_of(number)) for number in range(len(plan.phases))]
    for phase, batches in zip(plan.phases, plan.batches_per_epoch, strict=True):
        if not batches:
            raise ValueError(
                f"The data of the phase {phase.name!r} gives no batch. Is it empty, or smaller than a batch with "
                "dataloader_drop_last?"
            )
