"""ScheduledModifierManager: a recipe in a training loop that somebody wrote by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from trainwright.compat.sparseml.classes.acting import FromPython
from trainwright.compat.sparseml.classes.catalogue import native_for, native_to_train, rate_setters
from trainwright.compat.sparseml.classes.lifecycle import Modifier
from trainwright.compat.sparseml.classes.shipped import types_of
from trainwright.compat.sparseml.grad_sampler import calibration_of, gradients_from
from trainwright.compat.sparseml.listing import BaseManager
from trainwright.compat.sparseml.overridden import AsOverridden, overrides
from trainwright.compat.sparseml.sparsification.types import SparsificationTypes
from trainwright.compat.sparseml.stepping import ModifiedOptimizer, ModifiedScaler
from trainwright.compat.sparseml.teaching import engage, for_teacher
from trainwright.config.warnings import warn
from trainwright.core.modifier import Modifier as NativeModifier
from trainwright.core.modifier import Site
from trainwright.recipes.building import build_modifier, in_order
from trainwright.recipes.distillation.base import LearnsFromTeacher
from trainwright.recipes.distillation.teacher import DISABLE
from trainwright.recipes.language.composing import compose_staged
from trainwright.recipes.language.reading import read_recipe
from trainwright.recipes.language.records import Recipe
from trainwright.recipes.manual_loop import ManualLoop
from trainwright.recipes.oneshot import AFTER_ALL, apply_modifiers
from trainwright.recipes.pruning.optimizer_state import replace_parameters
from trainwright.training.checkpoint_texts import numbered

_NOT_GIVEN: Any = object()


class ScheduledModifierManager(BaseManager, Modifier):
    """Modifiers, and when they act.

    >>> import torch
    >>> manager = ScheduledModifierManager.from_yaml('''
    ... pruning_modifiers:
    ...   - !MagnitudePruningModifier
    ...     {params: __ALL_PRUNABLE__, init_sparsity: 0.0, final_sparsity: 0.5, start_epoch: 0, end_epoch: 1}
    ... ''')
    >>> model = nn.Linear(10, 10)
    >>> optimizer = manager.modify(model, torch.optim.SGD(model.parameters(), lr=0.1), steps_per_epoch=4)
    >>> for step in range(4):
    ...     optimizer.zero_grad()
    ...     model(torch.randn(2, 10)).square().mean().backward()
    ...     optimizer.step()
    >>> manager.finalize(model)
    >>> int((model.weight == 0).sum()), manager.phase(0.5), manager.phase(1.5)
    (50, None, 'pruned')
    """

    def __init__(
        self,
        modifiers: list[Any] | dict[str, list[Any]],
        metadata: dict[str, Any] | None = None,
        *,
        recipe: Recipe | None = None,
    ) -> None:
        super().__init__(modifiers, metadata, recipe=recipe)
        #: What does the work, in the order in which it acts; settings may change until there is a model.
        self._in_use: list[NativeModifier] | None = None
        # What is no modifier is refused at once.
        _ = self._acting
        self._is_overridden = overrides(type(self), ScheduledModifierManager)
        self._model: nn.Module | None = None
        self._epoch, self._logged_at = 0.0, -1.0
        self._gradients: Any = None
        self._drive: ManualLoop | None = None
        #: For loops that call update() and the like themselves.
        self._site: Site | None = None
        #: A state that was loaded before there was a model to put it on.
        self._waiting: dict[str, Any] | None = None

    @classmethod
    def from_yaml(
        cls,
        file_path: Any,
        add_modifiers: list[Any] | None = None,
        recipe_variables: dict[str, Any] | str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> ScheduledModifierManager:
        """From a file, or from the text of a recipe."""
        recipe = read_recipe(file_path, recipe_variables)
        if recipe.is_staged:
            stages = {str(stage.name): [build_modifier(s) for s in stage.modifiers] for stage in recipe.stages}
            if add_modifiers:
                raise ValueError("add_modifiers= cannot say which stage it means: write them into the recipe.")
            return cls(stages, metadata, recipe=recipe)
        own = [build_modifier(spec) for spec in recipe.modifiers]
        if add_modifiers:
            return cls([*own, *add_modifiers], metadata)
        return cls(own, metadata, recipe=recipe)

    @classmethod
    def compose_staged(
        cls,
        base_recipe: Any,
        additional_recipe: Any,
        keep_original_epochs: bool = False,
        save_path: str | Path | None = None,
    ) -> ScheduledModifierManager:
        """One recipe after the other, as stages of one; each may be a manager, a file or text."""
        both = [r.written() if isinstance(r, cls) else read_recipe(r) for r in (base_recipe, additional_recipe)]
        manager = cls.from_yaml(compose_staged(both[0], both[1], keep_original_epochs=keep_original_epochs))
        if save_path is not None:
            manager.save(save_path)
        return manager

    @property
    def _acting(self) -> list[NativeModifier]:
        return in_order([native_for(modifier) for modifier in self]) if self._in_use is None else self._in_use

    def _hold(self) -> list[NativeModifier]:
        """The same from now on: they get to know a model."""
        if self._in_use is None:
            self._in_use = in_order([native_to_train(modifier) for modifier in self])
        return self._in_use

    def rate_setters(self) -> list[NativeModifier]:
        """Those that set the learning rate now."""
        return rate_setters(self._acting)

    # ---- in a loop

    def initialize(
        self,
        module: nn.Module,
        epoch: float = 0.0,
        loggers: Any = None,
        *,
        distillation_teacher: Any = _NOT_GIVEN,
        grad_sampler: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Say what there is to work with; :meth:`modify` does this too."""
        _refuse_unknown(kwargs)
        acting = self._hold()
        super().initialize(module, epoch, loggers)
        self._model, self._epoch = module, epoch
        self._gradients = gradients_from(module, grad_sampler)
        self._engage(module, distillation_teacher)
        for modifier in acting:
            if isinstance(modifier, FromPython):
                teacher = {} if distillation_teacher is _NOT_GIVEN else {"distillation_teacher": distillation_teacher}
                modifier.options = {"loggers": loggers, "grad_sampler": grad_sampler, **teacher}

    def _engage(self, model: nn.Module, teacher: object) -> None:
        learners = self._learners()
        if not learners:
            return
        if teacher is _NOT_GIVEN:
            warn(f"{type(learners[0]).__name__} does nothing: there is no distillation_teacher=.")
            teacher = DISABLE
        engage(learners, model, teacher)

    def _learners(self) -> list[LearnsFromTeacher]:
        return [m for m in self._acting if isinstance(m, LearnsFromTeacher)]

    def modify(
        self,
        module: nn.Module,
        optimizer: Any,
        steps_per_epoch: int,
        wrap_optim: Any = None,
        epoch: float | None = None,
        allow_parallel_module: bool = True,
        **kwargs: Any,
    ) -> Any:
        """What to call ``step`` of from now on: it stands around ``optimizer``, or around ``wrap_optim``, a GradScaler.

        ``kwargs`` are those of :meth:`initialize`.
        """
        if not steps_per_epoch > 0:
            raise ValueError(f"steps_per_epoch={steps_per_epoch} must be more than 0.")
        model = _bare(module, allow_parallel_module)
        if not self.initialized:
            self.initialize(model, 0.0 if epoch is None else epoch, **kwargs)
        elif _bare(module, False) is not _bare(self._model, False):
            raise ValueError("This manager holds the masks of another model: make one for this with from_yaml().")
        elif kwargs:
            raise ValueError(f"{', '.join(kwargs)} belongs to initialize(), which was called before.")
        self._drive = ManualLoop(
            [AsOverridden(self, self._acting)] if self._is_overridden else self._acting,
            model,
            optimizer,
            steps_per_epoch,
            epoch=self._epoch if epoch is None else epoch,
            gradients=self._gradients,
            called=module,
        )
        self._logged_at = -1.0
        self._take_up_what_waits()
        if wrap_optim is None or wrap_optim is optimizer:
            return ModifiedOptimizer(self._drive, optimizer, self)
        return ModifiedScaler(self._drive, wrap_optim, optimizer, self)

    def loss_update(
        self,
        loss: Tensor,
        module: nn.Module | None = None,
        optimizer: Any = None,
        epoch: float = 0.0,
        steps_per_epoch: float = 1.0,
        student_outputs: Any = None,
        student_inputs: Any = None,
        teacher_inputs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """The loss as the modifiers want it, before ``backward``."""
        _refuse_unknown(kwargs)
        self._require_initialized()
        if not self.enabled:
            return loss
        if (student_outputs is None or student_inputs is None) and any(
            learner.teacher is not None and learner.is_active for learner in self._learners()
        ):
            raise ValueError("A teacher is compared with: pass student_outputs= and student_inputs= to loss_update.")
        inputs = for_teacher(student_inputs, teacher_inputs)
        if self._drive is not None:
            self._drive.start()
        for modifier in self._acting:
            loss = modifier.modify_loss(loss, student_outputs, inputs)
        return loss

    def update(
        self, module: nn.Module, optimizer: Any, epoch: float, steps_per_epoch: float, log_updates: bool = True
    ) -> None:
        """Do what is due at ``epoch``; for loops that call the manager themselves instead of :meth:`modify`."""
        site = self._site_for(module, optimizer, steps_per_epoch)
        for modifier in self._acting:
            modifier.advance(site, epoch)

    def optimizer_pre_step(self, module: nn.Module, optimizer: Optimizer, epoch: float, steps_per_epoch: float) -> None:
        """Before ``optimizer.step()``."""
        site = self._site_for(module, optimizer, steps_per_epoch)
        for modifier in self._acting:
            modifier.shape_gradients(site)
        for modifier in self._acting:
            modifier.before_update(site)

    def optimizer_post_step(
        self, module: nn.Module, optimizer: Optimizer, epoch: float, steps_per_epoch: float
    ) -> None:
        """After it: masks are put on here."""
        site = self._site_for(module, optimizer, steps_per_epoch)
        for modifier in self._acting:
            modifier.after_update(site)

    def _site_for(self, module: nn.Module, optimizer: Optimizer, steps_per_epoch: float) -> Site:
        self._require_use()
        if self._drive is not None and self._is_overridden:
            return self._drive.site
        if self._drive is not None:
            raise ValueError("modify() was called: its step() does this by itself.")
        if self._site is None:
            self._site = Site(
                self._model,
                optimizer,
                steps_per_epoch,
                gradients=self._gradients,
                rebuild=lambda mapping: self._rebuild(optimizer, mapping),
            )
            for modifier in self._acting:
                modifier.prepare_model(self._model)
            self._take_up_what_waits()
            for modifier in self._acting:
                if modifier.has_begun:
                    modifier.resume(self._site, self._epoch)
        return self._site

    def send_logs(self, drive: ManualLoop) -> None:
        """Let the loggers have what modifiers said, as often as they want to hear it."""
        loggers = self.loggers
        if loggers and drive.site.logs and loggers.log_ready(drive.epoch, self._logged_at):
            self._logged_at = drive.epoch
            for name, value in drive.site.logs.items():
                loggers.log_scalar(name, value, step=drive.steps)

    def _rebuild(self, optimizer: Optimizer, mapping: dict[Any, Any]) -> None:
        replace_parameters(optimizer, mapping)
        for modifier in self._acting:
            modifier.replaced(mapping)

    def finalize(self, module: nn.Module | None = None, reset_loggers: bool = True, **kwargs: object) -> None:
        """The training is over: what was done to the model stays."""
        _refuse_unknown(kwargs)
        model = self._model if module is None else _bare(module, False)
        if model is None:
            raise ValueError("finalize() needs the module: modify() was not called.")
        if self._drive is not None and self._is_overridden:
            # The update of the last epoch, which no step follows.
            self.update(model, self._drive.site.optimizer, self._drive.epoch, self._drive.site.steps_per_epoch)
        for modifier in self._acting:
            modifier.finish_model(model)

    # ---- without a training

    def apply(
        self,
        module: nn.Module,
        epoch: float = math.inf,
        loggers: Any = None,
        finalize: bool = True,
        *,
        grad_sampler: dict[str, Any] | None = None,
        calibration_dataloader: Any = None,
        calibration_function: Any = None,
        **kwargs: Any,
    ) -> None:
        """Do all of it at once; ``finalize=False`` where a training is to follow."""
        _refuse_unknown({name: value for name, value in kwargs.items() if name != "distillation_teacher"})
        apply_modifiers(
            _bare(module, True),
            self._hold(),
            gradients=gradients_from(module, grad_sampler),
            calibrate=calibration_dataloader,
            run=calibration_of(module, calibration_dataloader, calibration_function),
            epoch=min(epoch, AFTER_ALL),
            finish=finalize,
        )

    def apply_structure(
        self, module: nn.Module, epoch: float = 0.0, loggers: object = None, finalize: bool = False, **kwargs: object
    ) -> None:
        """Only what makes another model of it: layers taken out, smaller ones, rounding.

        After :meth:`load_state_dict` it is what the state tells of; make the optimizer, and load weights, after this.
        """
        module = _bare(module, True)
        site = Site(module, None, 1.0)
        states = self._waiting or {}
        for key, modifier in numbered(self._hold()).items():
            if SparsificationTypes.structured not in types_of(modifier):
                continue
            modifier.prepare_model(module)
            if key in states:
                modifier.restore_structure(module, states[key]["values"]["own"])
            else:
                modifier.advance(site, min(epoch, AFTER_ALL))
            if finalize:
                modifier.finish_model(module)

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """What the modifiers know, stage or not: masks, ranges, how far they have come."""
        return {key: modifier.state_dict() for key, modifier in numbered(self._acting).items()}

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Take up what :meth:`state_dict` gave; ``modify(..., epoch=)`` says where the loop stands."""
        known = numbered(self._acting)
        other = sorted(state_dict.keys() ^ known.keys())
        if strict and other:
            raise IndexError(f"The state and the recipe do not have the same modifiers: {', '.join(other)}.")
        if self._drive is None and self._site is None:
            self._waiting = dict(state_dict)
            return
        assert self._model is not None
        before = dict(self._model.named_parameters())
        for key, modifier in known.items():
            if key in state_dict and modifier.changes_structure:
                modifier.restore_structure(self._model, state_dict[key]["values"]["own"])
        now = dict(self._model.named_parameters())
        site = self._site if self._drive is None else self._drive.site
        assert site is not None
        replace_parameters(
            site.optimizer, {old: (now.get(name), None) for name, old in before.items() if now.get(name) is not old}
        )
        for key, modifier in known.items():
            if key in state_dict:
                modifier.load_state_dict(state_dict[key])

    def _take_up_what_waits(self) -> None:
        if self._waiting is not None:
            state, self._waiting = self._waiting, None
            self.load_state_dict(state, strict=False)


def _bare(module: Any, allow_parallel: bool) -> nn.Module:
    """The module whose names the recipe uses."""
    parallel = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    while True:
        if hasattr(module, "_orig_mod"):
            module = module._orig_mod
        elif isinstance(module, parallel) and not allow_parallel:
            module = module.module
        else:
            return module


def _refuse_unknown(kwargs: dict[str, Any]) -> None:
    if kwargs:
        raise ValueError(f"{', '.join(kwargs)}: no modifier here takes this; leave it out.")
