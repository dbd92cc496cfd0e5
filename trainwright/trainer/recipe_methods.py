"""Trainer methods that follow a recipe: modifiers, their teacher, and what they change in a run."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trainwright.callbacks.wording import plural
from trainwright.checkpoint.manifest import holds
from trainwright.checkpoint.training_state import TRAINING
from trainwright.config.fields import ours
from trainwright.config.warnings import TrainwrightWarning
from trainwright.core.modifier import Modifier, Site, overriding
from trainwright.core.run import Run
from trainwright.core.run_files import replace_text
from trainwright.core.spread import whole
from trainwright.engines.torch.model_setup import compiled
from trainwright.engines.torch.module_engine import ManualEngine
from trainwright.engines.torch.schedules import build_scheduler
from trainwright.engines.torch.targets import shifts_labels, unwrap
from trainwright.recipes.distillation.base import LearnsFromTeacher
from trainwright.recipes.distillation.layerwise import ComparesLayers
from trainwright.recipes.distillation.teacher import DISABLE, SELF, Teacher, fingerprint, resolve_teacher
from trainwright.recipes.pruning.layers import PassThrough
from trainwright.recipes.pruning.optimizer_state import replace_parameters
from trainwright.trainer.checkpoint_texts import callback_values, numbered
from trainwright.trainer.planning import TrainingPlan
from trainwright.trainer.preparation import compiled_again
from trainwright.trainer.recipe_folder import RECIPE, enlarge_to, read_recipe_state, refuse_other_recipe
from trainwright.trainer.recipe_gradients import sampled_gradients
from trainwright.trainer.running import RunningMethods

if TYPE_CHECKING:
    from trainwright.recipes.language.records import Recipe

logger = logging.getLogger("trainwright")


class RecipeMethods(RunningMethods):
    """``recipe=``, ``recipe_args=``, ``metadata_args=`` and ``teacher=``."""

    recipe: Recipe | None = None
    teacher: Any = None
    _site: Site | None = None
    _epochs_were_set = False

    # ---- taking a recipe

    def _take_recipe(self, recipe: Any, recipe_args: Any, metadata_args: list[str] | None, teacher: Any) -> Any:
        """Read the recipe and make its modifiers; everything that can be refused without a model is refused here.

        Returns the arguments, with the recipe's number of epochs.
        """
        self.teacher, self.metadata_args = teacher, metadata_args
        if recipe is None:
            if recipe_args is not None:
                raise ValueError("recipe_args= changes a recipe, but there is no recipe=: pass one, or leave it out.")
            self.modifiers = []
        elif isinstance(recipe, (list, tuple)) and all(isinstance(item, Modifier) for item in recipe):
            if recipe_args is not None:
                raise ValueError("recipe_args= changes a recipe that is read; this one is a list of modifiers.")
            self.modifiers = list(recipe)
        else:
            from trainwright.recipes.building import build_modifiers
            from trainwright.recipes.language.reading import read_recipe

            self.recipe = read_recipe(recipe, recipe_args)
            self.modifiers = build_modifiers(self.recipe)
        self._refuse_missing_teacher()
        self._use_recipes_epochs()
        return self.args

    def _learners(self) -> list[LearnsFromTeacher]:
        return [m for m in self.modifiers if isinstance(m, LearnsFromTeacher)]

    def _refuse_missing_teacher(self) -> None:
        wants = self._learners()
        self._has_teacher = bool(wants) and self.teacher != DISABLE
        if wants and self.teacher is None:
            raise ValueError(
                f"The recipe has a {type(wants[0]).__name__}, which needs a teacher: pass teacher= a module, the "
                "folder of a saved model, or 'self'; 'disable' trains without."
            )
        if not wants and self.teacher is not None and self.teacher != DISABLE:
            warnings.warn(
                "teacher= was given, but no modifier of the recipe learns from one: it is not used.",
                TrainwrightWarning,
                stacklevel=4,
            )

    def _use_recipes_epochs(self) -> None:
        """The recipe decides how many epochs there are."""
        epochs = self.recipe_epochs
        if not epochs:
            return
        if self.args.max_steps > 0:
            logger.info("max_steps=%d ends the run, whatever epochs the recipe speaks of.", self.args.max_steps)
        elif epochs != self.args.num_train_epochs:
            logger.warning(
                "The recipe trains for %s: num_train_epochs=%g does not act.",
                plural(epochs, "epoch"),
                self.args.num_train_epochs,
            )
            self.args = dataclasses.replace(self.args, num_train_epochs=epochs)

    @property
    def recipe_epochs(self) -> float:
        """When the last modifier that has an end ends, in whole epochs; 0 where none has one."""
        return float(math.ceil(max([0.0, *(m.end_epoch for m in self.modifiers)])))

    @property
    def final_epoch(self) -> float:
        """When the last modifier has finished changing what the model is."""
        return max((m.final_epoch for m in self.modifiers), default=0.0)

    # ---- before training

    def _prepare_recipe(self) -> None:
        """Teacher and surgery, on the model as it was given: weights of a checkpoint come after."""
        if not self.modifiers:
            return
        if isinstance(self.engine, ManualEngine):
            raise ValueError(
                f"{type(self._module).__name__} has automatic_optimization=False and steps its optimizers itself, so a "
                "recipe cannot act: let the Trainer optimize, or use ScheduledModifierManager in your own loop."
            )
        model = unwrap(self.model)
        if self.strategy.is_sharded:
            refuse_for_sharded(self.modifiers)
        for modifier in self.modifiers:
            modifier.forget()
        self._engage_teacher(model)
        for modifier in self.modifiers:
            modifier.prepare_model(model)
        if self.args.torch_compile and any(isinstance(m, ComparesLayers) for m in self.modifiers):
            # torch does not look for hooks where it has compiled a layer of the same class before.
            torch.compiler.reset()
        self._loss_modifiers = overriding(self.modifiers, "modify_loss")
        if self._loss_modifiers and "return_outputs" not in self._compute_loss_takes:
            raise ValueError(
                f"{type(self).__name__}.compute_loss must take return_outputs and return (loss, outputs) then: the "
                "recipe compares outputs with a teacher's."
            )
        extra = [parameter for m in self.modifiers for parameter in m.extra_parameters().values()]
        for parameter in extra:
            parameter.data = parameter.data.to(self.args.device)
        self.engine.extra_parameters = extra

    def _engage_teacher(self, model: nn.Module) -> None:
        wants = self._learners()
        if not wants:
            return
        chosen = resolve_teacher(self.teacher, model)
        if chosen is not None and self.strategy.is_sharded:
            # Whole on every device, unlike the model, which goes there in parts.
            chosen = chosen.to(self.args.device)
        own_hash = fingerprint(chosen) if chosen is not None and self.teacher == SELF else None
        called = compiled(chosen, self.args) if chosen is not None and self.args.torch_compile else chosen
        asked: dict[Any, Teacher | None] = {}
        for modifier in wants:
            keys = modifier.teacher_input_keys
            key = None if keys is None else tuple(keys)
            if key not in asked:
                asked[key] = None if chosen is None else Teacher(chosen, keys, called)
            modifier.set_teacher(asked[key], own_hash=own_hash, shifts_labels=shifts_labels(self.model))

    def _restore_structure(self, checkpoint: Path) -> None:
        """Sizes of layers as a checkpoint has them, before its weights are loaded."""
        refuse_other_recipe(checkpoint, self._recipe_text(), has_modifiers=bool(self.modifiers))
        changing = [m for m in self.modifiers if m.changes_structure]
        if not changing or not holds(checkpoint, TRAINING):
            return
        states = json.loads((checkpoint / TRAINING).read_text(encoding="utf-8"))["callbacks"]
        for key, modifier in numbered(self.callback_handler.callbacks).items():
            if modifier in changing and key in states:
                modifier.restore_structure(unwrap(self.model), callback_values(states[key])["own"])

    # ---- optimizer and schedule

    def create_optimizer(self, model: nn.Module | None = None) -> Any:
        optimizer = super().create_optimizer(model)
        known = {id(p) for group in optimizer.param_groups for p in group["params"]}
        extra = [p for p in self.engine.extra_parameters if id(p) not in known]
        if extra:
            optimizer.add_param_group({"params": extra})
        return optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        if any(m.sets_learning_rate for m in self.modifiers):
            kind = getattr(self.args.lr_scheduler_type, "value", self.args.lr_scheduler_type)
            warnings.warn(
                f"The recipe sets the learning rate: lr_scheduler_type={kind!r} and warm-up do not act.",
                TrainwrightWarning,
                stacklevel=2,
            )
            self.lr_scheduler = build_scheduler(
                "constant", optimizer or self.optimizer, warmup_steps=0, total_steps=num_training_steps, kwargs={}
            )
        return super().create_scheduler(num_training_steps, optimizer)

    # ---- during training

    def _follow_recipe(self, loader: Any, plan: TrainingPlan) -> None:
        """Give modifiers the site they work on, and the engine what they do in each step."""
        if not self.modifiers:
            return
        whole = plan.batches_per_epoch is None
        length = max(self.recipe_epochs, 1.0)
        site = Site(
            model=unwrap(self.model),
            optimizer=self.optimizer,
            steps_per_epoch=plan.max_steps / length if whole else plan.steps_per_epoch,
            gradients=sampled_gradients(self, loader),
            rebuild=self._rebuild,
            changing=self._changing_weights,
            was_bad=lambda: bool(self.engine.was_bad),
        )
        if whole:
            logger.info("The data has no length: the recipe's %g epochs are spread over max_steps.", length)
            site.epoch_of = lambda state: state.global_step / site.steps_per_epoch
        self._site = site
        self._show_recipe()
        for modifier in self.modifiers:
            modifier.site = site
        for method in ("shape_gradients", "before_update", "after_update"):
            calls: list[Callable[[], None]] = [
                partial(getattr(m, method), site) for m in overriding(self.modifiers, method)
            ]
            setattr(self.engine, method, calls)

    def _show_recipe(self) -> None:
        """The recipe, and a picture of what happens when, in the run directory."""
        if self.recipe is None or not self.args.should_save:
            return
        from trainwright.recipes.language.timeline import draw_svg

        replace_text(self._run_directory() / RECIPE, self._recipe_text() or "")
        replace_text(self._run_directory() / "recipe.svg", draw_svg(self.recipe))

    @contextmanager
    def _changing_weights(self) -> Iterator[None]:
        self.engine.wait_for_copy()
        with self.engine.update_lock:
            yield

    def _rebuild(self, replaced: dict[Any, tuple[Any, Callable[[Any], Any] | None]]) -> None:
        """Parameters were replaced by smaller ones: optimizer, engine and compiled code take the new ones."""
        replace_parameters(self.optimizer, replaced)
        self.model_wrapped = compiled_again(self)
        known = {replaced[p][0] if p in replaced else p for p in self.engine.parameters}
        self.engine.look_at_parameters(self.model_wrapped, known)
        for callback in self.callback_handler.callbacks:
            heard = getattr(callback, "replaced", None)
            if callable(heard):
                heard(replaced)

    def _build_run(self, loader: Any, plan: TrainingPlan, checkpoint: Path | None, ignore_keys: Any) -> Run:
        self._follow_recipe(loader, plan)
        run = super()._build_run(loader, plan, checkpoint, ignore_keys)
        wanted = ours(self.args, "best_model_after_epoch")
        run.best_after = self.final_epoch if wanted is None else wanted
        return run

    def _log_training(self, logs: dict[str, float]) -> None:
        if self._site is not None:
            logs.update(self._site.logs)
            self._site.logs.clear()
            masks = [mask for m in self.modifiers for mask in getattr(m, "masks", {}).values()]
            if masks:
                kept = sum(int(whole(mask.count_nonzero())) for mask in masks)
                logs["sparsity"] = 1 - kept / sum(mask.numel() for mask in masks)
        super()._log_training(logs)

    def _load_from_checkpoint(self, resume_from_checkpoint: str | Path, model: nn.Module | None = None) -> None:
        changing = [type(m).__name__ for m in self.modifiers if m.changes_structure]
        if model is None and self._site is not None and changing:
            # Back from where layers were made smaller to a moment when they were not.
            replaced = enlarge_to(unwrap(self.model), Path(resume_from_checkpoint), changing)
            if replaced:
                self._rebuild(replaced)
        super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_best_model(self) -> None:
        super()._load_best_model()
        best = self.state.best_model_checkpoint
        if self.modifiers and best is not None:
            # Masks and the like as they were then: those of the end would change the model that was the best.
            states = read_recipe_state(Path(best))
            # By the names that the checkpoint knows them by: those of an earlier recipe may stand among them.
            for key, modifier in numbered(self.callback_handler.callbacks).items():
                if modifier in self.modifiers and key in states:
                    modifier.load_state_dict(states[key])
                    if self._site is not None:
                        modifier.resume(self._site, self._site.epoch_of(self.state))

    def _finish_recipe(self) -> None:
        """Training is over: what modifiers did becomes permanent, and nothing of them stays in the way."""
        model = unwrap(self.model)
        for modifier in self.modifiers:
            modifier.finish_model(model)
            modifier.site = None
        for learner in self._learners():
            if learner.teacher is not None:
                learner.teacher.forget()
        self._loss_modifiers = []
        for method in ("shape_gradients", "before_update", "after_update"):
            setattr(self.engine, method, [])
        self._site = None

    # ---- saving

    def _save(self, output_dir: str | Path | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        super()._save(output_dir, state_dict)
        model = unwrap(self.model)
        if hasattr(model, "config") and any(isinstance(layer, PassThrough) for layer in model.modules()):
            logger.warning(
                "The recipe dropped layers that the configuration still counts: from_pretrained would give them random "
                "weights. `trainwright export FOLDER --to safetensors` writes the shorter model."
            )

    def _recipe_text(self) -> str | None:
        """The recipe as it is saved: evaluated, with the metadata that was asked for."""
        if self.recipe is None:
            return None
        from trainwright.recipes.language.metadata import metadata_from, with_metadata
        from trainwright.recipes.language.writing import write_recipe

        recipe = self.recipe
        if self.metadata_args:
            recipe = with_metadata(recipe, metadata_from(self.metadata_args, self.args))
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
