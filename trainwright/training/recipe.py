"""Follow a recipe: its modifiers, their teacher, and what they change in a run."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainwright.callbacks.wording import plural
from trainwright.checkpoint.manifest import holds
from trainwright.checkpoint.training_state import TRAINING
from trainwright.config.warnings import TrainwrightWarning
from trainwright.core.engine import UpdateHooks
from trainwright.core.files import replace_text
from trainwright.core.modifier import Modifier, Site, overriding
from trainwright.engines.torch.model_setup import compiled
from trainwright.engines.torch.module_engine import ManualEngine
from trainwright.engines.torch.targets import shifts_labels, unwrap
from trainwright.recipes.distillation.base import LearnsFromTeacher
from trainwright.recipes.distillation.layerwise import ComparesLayers
from trainwright.recipes.distillation.teacher import DISABLE, SELF, Teacher, fingerprint, resolve_teacher
from trainwright.recipes.pruning.optimizer_state import replace_parameters
from trainwright.training.checkpoint_texts import callback_values, numbered
from trainwright.training.layers import note_layers
from trainwright.training.preparation import compiled_again
from trainwright.training.recipe_folder import RECIPE, refuse_other_recipe
from trainwright.training.recipe_gradients import sampled_gradients
from trainwright.training.run import TrainingRun
from trainwright.training.save_model import run_folder
from trainwright.training.setup import Setup

logger = logging.getLogger("trainwright")


def take_recipe(setup: Setup, recipe: Any, recipe_args: Any, metadata_args: list[str] | None, teacher: Any) -> Any:
    """Read the recipe and make its modifiers; everything that can be refused without a model is refused here.

    Returns the arguments, with the recipe's number of epochs.
    """
    setup.teacher, setup.metadata_args = teacher, metadata_args
    if recipe is None:
        if recipe_args is not None:
            raise ValueError("recipe_args= changes a recipe, but there is no recipe=: pass one, or leave it out.")
        setup.modifiers = []
    elif isinstance(recipe, (list, tuple)) and all(isinstance(item, Modifier) for item in recipe):
        if recipe_args is not None:
            raise ValueError("recipe_args= changes a recipe that is read; this one is a list of modifiers.")
        setup.modifiers = list(recipe)
    else:
        from trainwright.recipes.building import build_modifiers
        from trainwright.recipes.language.reading import read_recipe

        setup.recipe = read_recipe(recipe, recipe_args)
        setup.modifiers = build_modifiers(setup.recipe)
    refuse_missing_teacher(setup)
    use_recipes_epochs(setup)
    return setup.args


def learners(setup: Setup) -> list[LearnsFromTeacher]:
    return [m for m in setup.modifiers if isinstance(m, LearnsFromTeacher)]


def refuse_missing_teacher(setup: Setup) -> None:
    wants = learners(setup)
    setup.has_teacher = bool(wants) and setup.teacher != DISABLE
    if wants and setup.teacher is None:
        raise ValueError(
            f"The recipe has a {type(wants[0]).__name__}, which needs a teacher: pass teacher= a module, the "
            "folder of a saved model, or 'self'; 'disable' trains without."
        )
    if not wants and setup.teacher is not None and setup.teacher != DISABLE:
        warnings.warn(
            "teacher= was given, but no modifier of the recipe learns from one: it is not used.",
            TrainwrightWarning,
            stacklevel=4,
        )


def use_recipes_epochs(setup: Setup) -> None:
    """The recipe decides how many epochs there are."""
    epochs = recipe_epochs(setup)
    if not epochs:
        return
    if setup.args.max_steps > 0:
        logger.info("max_steps=%d ends the run, whatever epochs the recipe speaks of.", setup.args.max_steps)
    elif epochs != setup.args.num_train_epochs:
        logger.warning(
            "The recipe trains for %s: num_train_epochs=%g does not act.",
            plural(epochs, "epoch"),
            setup.args.num_train_epochs,
        )
        setup.take_arguments(dataclasses.replace(setup.given_args, num_train_epochs=epochs))


def recipe_epochs(setup: Setup) -> float:
    """When the last modifier that has an end ends, in whole epochs; 0 where none has one."""
    return float(math.ceil(max([0.0, *(m.end_epoch for m in setup.modifiers)])))


def final_epoch(setup: Setup) -> float:
    """When the last modifier has finished changing what the model is."""
    return max((m.final_epoch for m in setup.modifiers), default=0.0)


def prepare_recipe(setup: Setup) -> None:
    """Teacher and surgery, on the model as it was given: weights of a checkpoint come after."""
    if not setup.modifiers:
        return
    if isinstance(setup.engine, ManualEngine):
        raise ValueError(
            f"{type(setup.module).__name__} has automatic_optimization=False and steps its optimizers itself, so a "
            "recipe cannot act: let the Trainer optimize, or use ScheduledModifierManager in your own loop."
        )
    model = unwrap(setup.model)
    if setup.engine.weights.layout.in_parts:
        refuse_for_sharded(setup.modifiers)
    for modifier in setup.modifiers:
        modifier.forget()
    engage_teacher(setup, model)
    for modifier in setup.modifiers:
        modifier.prepare_model(model)
    if setup.args.torch_compile and any(isinstance(m, ComparesLayers) for m in setup.modifiers):
        # torch does not look for hooks where it has compiled a layer of the same class before.
        torch.compiler.reset()
    setup.loss_modifiers = [
        one for one in setup.modifiers if overriding([one], "modify_loss") or overriding([one], "compute_loss")
    ]
    setup.pass_modifiers = overriding(setup.modifiers, "around_pass")
    if setup.loss_modifiers and "return_outputs" not in setup.calling.compute_loss_takes:
        raise ValueError(
            f"{type(setup.hooks()).__name__}.compute_loss must take return_outputs and return (loss, outputs) then: "
            f"{type(setup.loss_modifiers[0]).__name__} looks at the outputs."
        )
    extra = [parameter for m in setup.modifiers for parameter in m.extra_parameters().values()]
    for parameter in extra:
        parameter.data = parameter.data.to(setup.args.device)
    setup.engine.train_also(extra)


def engage_teacher(setup: Setup, model: nn.Module) -> None:
    wants = learners(setup)
    if not wants:
        return
    chosen = resolve_teacher(setup.teacher, model)
    if chosen is not None and setup.engine.weights.layout.in_parts:
        # Whole on every device, unlike the model, which goes there in parts.
        chosen = chosen.to(setup.args.device)
    own_hash = fingerprint(chosen) if chosen is not None and setup.teacher == SELF else None
    called = compiled(chosen, setup.args) if chosen is not None and setup.args.torch_compile else chosen
    asked: dict[Any, Teacher | None] = {}
    for modifier in wants:
        keys = modifier.teacher_input_keys
        key = None if keys is None else tuple(keys)
        if key not in asked:
            asked[key] = None if chosen is None else Teacher(chosen, keys, called)
        modifier.set_teacher(asked[key], own_hash=own_hash, shifts_labels=shifts_labels(setup.model))


def restore_structure(setup: Setup, checkpoint: Path) -> None:
    """Sizes of layers as a checkpoint has them, before its weights are loaded."""
    refuse_other_recipe(checkpoint, setup.hooks().recipe_text(), has_modifiers=bool(setup.modifiers))
    changing = [m for m in setup.modifiers if m.changes_structure]
    if not changing or not holds(checkpoint, TRAINING):
        return
    states = json.loads((checkpoint / TRAINING).read_text(encoding="utf-8"))["callbacks"]
    for key, modifier in numbered(setup.callbacks.everyone).items():
        if modifier in changing and key in states:
            modifier.restore_structure(unwrap(setup.model), callback_values(states[key])["own"])


def follow_recipe(run: TrainingRun) -> None:
    """Give modifiers the site they work on, and the engine what they do in each step."""
    setup, plan = run.setup, run.plan
    if not setup.modifiers:
        return
    whole = plan.batches_per_epoch is None
    length = max(recipe_epochs(setup), 1.0)
    site = Site(
        model=unwrap(setup.model),
        optimizer=setup.optimizer,
        steps_per_epoch=plan.max_steps / length if whole else plan.steps_per_epoch,
        gradients=sampled_gradients(run),
        rebuild=partial(take_replaced_parameters, setup),
        changing=setup.engine.changing_weights,
        was_bad=lambda: bool(setup.engine.was_bad),
        tell=partial(_note_stage, run),
        note=lambda kind, message, **facts: _note(run, kind, message, facts),
    )
    if whole:
        logger.info("The data has no length: the recipe's %g epochs are spread over max_steps.", length)
        site.epoch_of = lambda state: state.global_step / site.steps_per_epoch
    run.site = site
    show_recipe(setup)
    for modifier in setup.modifiers:
        modifier.site = site
    setup.engine.set_update_hooks(
        UpdateHooks(
            shape_gradients=[partial(m.shape_gradients, site) for m in overriding(setup.modifiers, "shape_gradients")],
            before_update=[partial(m.before_update, site) for m in overriding(setup.modifiers, "before_update")],
            after_update=[partial(m.after_update, site) for m in overriding(setup.modifiers, "after_update")],
        )
    )


def _note_stage(run: TrainingRun, modifier: Modifier, what: str, epoch: float) -> None:
    name = type(modifier).__name__
    run.events.record(
        "recipe",
        f"{name.removesuffix('Modifier')} {what} at epoch {epoch:.4g}.",
        step=run.setup.state.global_step,
        level=logging.DEBUG,
        modifier=name,
        epoch=epoch,
    )


def _note(run: TrainingRun, kind: str, message: str, facts: dict[str, Any]) -> None:
    run.events.record(kind, message, step=run.setup.state.global_step, level=logging.INFO, **facts)


def show_recipe(setup: Setup) -> None:
    """The recipe, and a picture of what happens when, in the run directory."""
    if setup.recipe is None or not setup.args.should_save:
        return
    from trainwright.recipes.language.timeline import draw_svg

    replace_text(run_folder(setup) / RECIPE, setup.hooks().recipe_text() or "")
    if picture := draw_svg(setup.recipe):
        replace_text(run_folder(setup) / "recipe.svg", picture)


def take_replaced_parameters(setup: Setup, replaced: dict[Any, tuple[Any, Callable[[Any], Any] | None]]) -> None:
    """Parameters were replaced by smaller ones: optimizer, engine and compiled code take the new ones."""
    replace_parameters(setup.optimizer, replaced)
    setup.model_wrapped = compiled_again(setup)
    known = {replaced[p][0] if p in replaced else p for p in setup.engine.parameters}
    setup.engine.look_at_parameters(setup.model_wrapped, known)
    setup.fire("on_parameters_replaced", replaced=replaced)


def finish_recipe(run: TrainingRun) -> None:
    """Training is over: what modifiers did becomes permanent, and nothing of them stays in the way."""
    setup = run.setup
    model = unwrap(setup.model)
    # Before what quantized them goes.
    note_layers(setup, model)
    for modifier in setup.modifiers:
        modifier.finish_model(model)
        modifier.site = None
    for learner in learners(setup):
        if learner.teacher is not None:
            learner.teacher.forget()
    setup.loss_modifiers, setup.pass_modifiers = [], []
    setup.engine.set_update_hooks(UpdateHooks())
    run.site = None


def recipe_text(setup: Setup) -> str | None:
    """The recipe as it is saved: evaluated, with the metadata that was asked for."""
    if setup.recipe is None:
        return None
    from trainwright.recipes.language.metadata import metadata_from, with_metadata
    from trainwright.recipes.language.writing import write_recipe

    recipe = setup.recipe
    if setup.metadata_args:
        recipe = with_metadata(recipe, metadata_from(setup.metadata_args, setup.given_args))
    return write_recipe(recipe)


def refuse_for_sharded(modifiers: list[Modifier]) -> None:
    """What looks at whole tensors, or replaces them, cannot work on parts of them."""
    cannot = [
        type(m).__name__
        for m in modifiers
        if m.needs_whole_tensors or m.changes_structure or not getattr(m, "works_in_parts", True)
    ]
    if cannot:
        raise ValueError(
            f"The model's parameters are sharded over processes, and {', '.join(dict.fromkeys(cannot))} needs them "
            "whole: prune by magnitude, or train with backend='ddp'."
        )
