"""SparseML's Trainer for transformers: it reads the arguments, and ``trainwright.Trainer`` does the work."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from trainwright.compat.sparseml.arguments import argument
from trainwright.compat.sparseml.manager import ScheduledModifierManager
from trainwright.compat.sparseml.metadata import metadata_of
from trainwright.compat.sparseml.state_path import StatePath
from trainwright.config.run_directory import run_directory
from trainwright.core.callback import TrainerCallback
from trainwright.core.modifier import Modifier
from trainwright.core.results import TrainOutput
from trainwright.core.state import TrainerControl, TrainerState
from trainwright.engines.torch.targets import unwrap
from trainwright.recipes.distillation.teacher import DISABLE
from trainwright.recipes.language.metadata import with_metadata
from trainwright.recipes.language.reading import read_recipe
from trainwright.recipes.language.records import Recipe
from trainwright.recipes.language.writing import write_recipe
from trainwright.recipes.oneshot import apply_modifiers, gradients_of
from trainwright.recipes.selecting import prunable_layers
from trainwright.trainer.trainer import Trainer as NativeTrainer
from trainwright.training.recipe_folder import state_file, write_recipe_files
from trainwright.training.recipe_past import Past, recall

logger = logging.getLogger("trainwright")


class PastSettles(TrainerCallback):
    """Fixes again, after a resume, what a model has behind it."""

    def __init__(self, past: Past) -> None:
        self._past = past

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._past.settle(unwrap(kwargs["model"]))


class Trainer(NativeTrainer):
    """``trainwright.Trainer`` with SparseML's first arguments; what follows is Hugging Face's (``args``, ...).

    ``model_state_path`` is the folder that the model came from. It supplies configuration and tokenizer where none is
    passed, and its ``recipe.yaml`` is the model's past: layers that it took out or made smaller, and rounding, are
    applied to ``model``; the recipe that is saved has its stages first. ``data_args`` is where ``metadata_args`` are
    looked for besides ``args``; its ``one_shot`` (or ``one_shot=True``) applies the recipe without training.

    >>> import torch
    >>> rows = [{"x": torch.randn(4), "labels": torch.tensor(i % 2)} for i in range(8)]
    >>> class Net(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.layer = nn.Linear(4, 2)
    ...     def forward(self, x):
    ...         return self.layer(x)
    >>> recipe = '''
    ... pruning_modifiers:
    ...   - !MagnitudePruningModifier
    ...     {params: __ALL_PRUNABLE__, init_sparsity: 0.0, final_sparsity: 0.5, start_epoch: 0, end_epoch: 1}
    ... '''
    >>> net = Net()
    >>> trainer = Trainer(net, None, recipe, train_dataset=rows, one_shot=True)
    >>> _ = trainer.train()
    >>> int((net.layer.weight == 0).sum())
    4
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        model_state_path: str | Path | None = None,
        recipe: Any = None,
        recipe_args: dict[str, Any] | str | None = None,
        metadata_args: Sequence[str] | None = None,
        teacher: nn.Module | str | Path | None = None,
        *,
        data_args: Any = None,
        one_shot: bool | None = None,
        distill_teacher: nn.Module | str | Path | None = None,
        tokenizer: Any = None,
        **kwargs: Any,
    ) -> None:
        args = kwargs.get("args")
        self.model_state_path = model_state_path
        self.one_shot = bool(getattr(data_args, "one_shot", False) if one_shot is None else one_shot)
        self._state_path = StatePath.of(model_state_path)
        teacher = _refuse_zoo("teacher", teacher)
        if teacher is None and distill_teacher is None:
            # Without a training there is nothing to learn from a teacher.
            distill_teacher = DISABLE if self.one_shot else argument(args, "distill_teacher", None)
        recipe = argument(args, "recipe", None if recipe == "" else recipe)
        recipe_args = argument(args, "recipe_args", recipe_args)
        if recipe is not None and not _is_list_of_modifiers(recipe):
            recipe, recipe_args = read_recipe(recipe, recipe_args), None
        metadata = metadata_of(metadata_args, args, data_args)
        self._past = self._recall(model, recipe, kwargs.get("model_init"))
        self._saved_recipe = self._to_save(recipe, metadata)
        if tokenizer is not None and kwargs.get("processing_class") is None:
            kwargs["processing_class"] = tokenizer
        elif tokenizer is not None:
            raise ValueError("Pass processing_class= or its old name tokenizer=, not both.")
        elif kwargs.get("processing_class") is None and self._state_path is not None:
            kwargs["processing_class"] = self._state_path.tokenizer()
        super().__init__(
            model,
            recipe=recipe,
            recipe_args=recipe_args,
            teacher=teacher,
            distill_teacher=_refuse_zoo("distill_teacher", distill_teacher),
            **kwargs,
        )
        if self._past is not None:
            self._hear_of_the_past(self._past)
        if self.one_shot and not self.modifiers:
            raise ValueError("one_shot=True applies a recipe without training, and there is none: pass recipe=.")

    # ---- the past

    def _recall(self, model: nn.Module | None, recipe: object, model_init: object) -> Past | None:
        if self._state_path is None or not self._state_path.has_recipe:
            return None
        if model is None or model_init is not None:
            raise ValueError(
                f"{self.model_state_path} holds the recipe that its model was made with, which is applied to the model "
                "given here: pass model=, not model_init=, or model_state_path=None."
            )
        if _is_list_of_modifiers(recipe):
            raise ValueError(
                f"{self.model_state_path} holds a recipe, and a list of modifiers cannot be added to it: write them as "
                "a recipe, or pass model_state_path=None."
            )
        return recall(unwrap(model), self._state_path.folder)

    def _to_save(self, recipe: object, metadata: dict[str, Any] | None) -> Recipe | None:
        """The recipe that is saved with the model: what was done before, and what is done now."""
        if not isinstance(recipe, Recipe):
            return None if self._past is None else self._past.recipe
        described = recipe if metadata is None else with_metadata(recipe, metadata)
        return described if self._past is None else self._past.with_next(described)

    def _all_modifiers(self) -> list[Modifier]:
        """Those of the past too, as the saved recipe orders them: what is saved of them is found by their number."""
        if self._past is None:
            return self.modifiers
        if self.recipe is None:
            return self._past.modifiers
        return self._past.among(self.recipe, self.modifiers)

    def _hear_of_the_past(self, past: Past) -> None:
        """Without a site they do nothing; they are there to be saved, and to follow when parameters are replaced."""
        handler = self.callback_handler
        own = [place for place, callback in enumerate(handler.callbacks) if callback in self.modifiers]
        after = own[-1] + 1 if own else 1
        ordered, callbacks = self._all_modifiers(), list(handler.callbacks)
        callbacks[after:after] = past.modifiers
        places = [place for place, callback in enumerate(callbacks) if callback in ordered]
        for place, modifier in zip(places, ordered, strict=True):
            callbacks[place] = modifier
        handler.arrange([*callbacks, PastSettles(past)])

    def recipe_text(self) -> str | None:
        return None if self._saved_recipe is None else write_recipe(self._saved_recipe)

    def _save(self, output_dir: str | Path | None = None, state_dict: dict[str, Any] | None = None) -> None:
        super()._save(output_dir, state_dict)
        if self._past is not None:
            folder = Path(output_dir or run_directory(self.args))
            write_recipe_files(folder, self.recipe_text(), state_file(self._all_modifiers()))

    def save_processor(self, folder: Path) -> None:
        super().save_processor(folder)
        if self._state_path is not None and not hasattr(unwrap(self.model), "config"):
            self._state_path.copy_config(folder)

    # ---- training

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train; with ``one_shot``, apply the recipe to the model as it is instead."""
        if not self.one_shot:
            return super().train(*args, **kwargs)
        if (args and args[0]) or kwargs.get("resume_from_checkpoint"):
            raise ValueError(
                "one_shot applies the recipe to the model as it is, and reads no checkpoint: load its weights into the "
                "model, and leave resume_from_checkpoint out."
            )
        if self.model is None:
            raise ValueError("one_shot=True applies the recipe to a model, and there is none: pass model=.")
        model = unwrap(self.model)
        loader = None if self.train_dataset is None else self.get_train_dataloader()

        def loss(batch: object) -> Any:
            found = self.compute_loss(model, self._prepare_inputs(batch))
            return found[0] if isinstance(found, tuple) else found

        apply_modifiers(
            model,
            self.modifiers,
            gradients=None if loader is None else gradients_of(model, lambda: loader, loss),
            calibrate=loader,
            run=lambda batch: self.prediction_step(model, self._prepare_inputs(batch), prediction_loss_only=False),
        )
        logger.info("The recipe was applied without training (one_shot).")
        self.log_model_sparsification()
        return TrainOutput(0, 0.0, {})

    @property
    def manager(self) -> ScheduledModifierManager | None:
        """The recipe of this training; None without one."""
        if not self.modifiers:
            return None
        return ScheduledModifierManager(self.modifiers, recipe=self.recipe)

    @property
    def arch_manager(self) -> ScheduledModifierManager | None:
        """The recipe that the model has behind it, from ``model_state_path``."""
        return None if self._past is None else ScheduledModifierManager(self._past.modifiers, recipe=self._past.recipe)

    def log_model_sparsification(self) -> None:
        """Say how many weights there are, and how many of those that can be pruned are zero."""
        model = unwrap(self.model)
        total = sum(parameter.numel() for parameter in model.parameters())
        weights: list[Any] = [layer.weight for layer in prunable_layers(model).values()]
        prunable = sum(weight.numel() for weight in weights)
        zeros = prunable - sum(int(weight.count_nonzero()) for weight in weights)
        logger.info(
            "%d parameters; %.2f %% of %d prunable ones are zero.", total, 100 * zeros / max(prunable, 1), prunable
        )

    def save_optimizer_and_scheduler(self, output_dir: str | None = None) -> None:
        """Nothing to do: checkpoints hold both, and a run goes on from them."""
        logger.info("Optimizer and schedule are in the checkpoints in %s.", self.args.output_dir)


def _is_list_of_modifiers(recipe: object) -> bool:
    return isinstance(recipe, (list, tuple))


def _refuse_zoo(name: str, value: object) -> Any:
    if isinstance(value, str) and value.startswith("zoo:"):
        raise ValueError(f"{name}={value!r}: the SparseZoo is gone: pass a module or the folder of a saved model.")
    return value
