"""Trainer methods for a Module: its hooks, its data, and arguments that it leaves without effect."""

from __future__ import annotations

import logging
from typing import Any

from torch import nn
from torch.utils.data import DataLoader

from trainwright.checkpoint.pack import refuse_unstorable
from trainwright.config.fields import ours
from trainwright.core.callback import EVENTS
from trainwright.engines.torch.engine import TorchEngine
from trainwright.engines.torch.module import Module, module_in
from trainwright.engines.torch.module_engine import ManualEngine, ModuleEngine
from trainwright.engines.torch.targets import unwrap
from trainwright.trainer.own_state import OwnState
from trainwright.trainer.reporting import ReportingMethods
from trainwright.trainer.signatures import is_users_own

logger = logging.getLogger("trainwright")


class ModuleCallback(OwnState):
    """Lets a Module hear the events it defines, and keeps its state in checkpoints."""

    def __init__(self, module: Module) -> None:
        super().__init__(module)
        for event in EVENTS:
            method = getattr(module, event, None)
            if callable(method):
                setattr(self, event, method)


class ModuleMethods(ReportingMethods):
    """What a Trainer does because its model is a Module."""

    #: The model, where it is a Module.
    _module: Module | None = None
    #: Which of a Module's step methods evaluation calls: validation, test or predict.
    _stage: str = "validation"
    #: Whether optimizer and schedule are those of the Module's ``configure_optimizers``.
    _configured_by_module = False
    #: Whether we made them, and may make them again.
    _own_optimizer: bool
    _own_scheduler: bool

    def _take_module(self, model: nn.Module) -> None:
        """Find out whether ``model`` is a Module, and let it hear events from now on."""
        self._forget_configured()
        self._module = module_in(model)
        if self._module is not None:
            _refuse_what_cannot_act(self, self._module)
        handler = vars(self).get("callback_handler")
        if handler is not None:
            handler.pop_callback(ModuleCallback)
            for callback in self._module_callbacks():
                handler.add_callback(callback)

    def _forget_configured(self) -> None:
        """Optimizers and schedules that a Module made belong to it and to one training."""
        if self._configured_by_module:
            self.optimizer = self.lr_scheduler = None
            self._own_optimizer = self._own_scheduler = True
            self._configured_by_module = False

    def _module_callbacks(self) -> list[Any]:
        return [] if self._module is None else [ModuleCallback(self._module)]

    def _engine_class(self) -> type[TorchEngine]:
        if self._module is None:
            return TorchEngine
        return ModuleEngine if self._module.automatic_optimization else ManualEngine

    def _attach_module(self) -> None:
        """``self.log`` and the like of the Module reach this Trainer, and no other that it was given to before."""
        if self._module is not None and isinstance(self.engine, ModuleEngine):
            self._module._attach(self.engine)

    def _check_own_states(self) -> None:
        """Before the first step: what cannot be saved must not be found out after hours of work."""
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, OwnState):
                callback.state_dict()
        model = unwrap(self.model)
        if not hasattr(model, "save_pretrained"):
            # Others are written by code of their own, which may know how.
            refuse_unstorable(model.state_dict())

    # ---- data

    def _data_of_module(self, which: str) -> Any:
        """What the Module's ``<which>_dataloader`` gives; None without a Module."""
        return None if self._module is None else getattr(self._module, f"{which}_dataloader")()

    def _use_own_eval_data(self) -> None:
        if self.eval_dataset is None:
            self.eval_dataset = self._data_of_module("val")


def is_loader(data: Any, what: str) -> bool:
    """Whether ``data`` gives batches and not samples; a list of loaders, which would pass for a dataset, is refused."""
    if isinstance(data, (list, tuple)) and data and all(isinstance(item, DataLoader) for item in data):
        raise ValueError(f"{what} got a list of loaders: pass one loader or, to evaluate on several, a dict by name.")
    return isinstance(data, DataLoader)


def refuse_with_own_loader(args: Any) -> None:
    """Arguments by which the Trainer would make batches, where a loader already makes them."""
    given = [name for name in ("max_tokens_per_batch",) if getattr(args, name, None) is not None]
    if getattr(args, "train_sampling_strategy", "random") != "random":
        given.append("train_sampling_strategy")
    if given:
        raise ValueError(
            f"The training data is a DataLoader, which makes the batches: {', '.join(given)} cannot act. Pass the "
            "dataset instead, or leave it out."
        )


def _refuse_what_cannot_act(trainer: Any, module: Module) -> None:
    """Arguments and options that mean nothing to a Module, with the way out."""
    args, name = trainer.args, type(module).__name__
    if trainer.compute_loss_func is not None or args.label_smoothing_factor:
        raise ValueError(
            f"{name}.training_step computes the loss itself: compute_loss_func and label_smoothing_factor would do "
            "nothing. Use them there, and leave them out here."
        )
    own_optimizers = getattr(module.configure_optimizers, "__func__", None) is not Module.configure_optimizers
    given = not trainer._own_optimizer or not trainer._own_scheduler or trainer.optimizer_cls_and_kwargs is not None
    if own_optimizers and given:
        raise ValueError(
            f"{name} defines configure_optimizers, and the Trainer got optimizers= or optimizer_cls_and_kwargs=: which "
            "one should be used? Leave one out."
        )
    if not module.automatic_optimization:
        if is_users_own(trainer, "training_step") or is_users_own(trainer, "compute_loss"):
            raise ValueError(
                f"{name} has automatic_optimization=False, so training_step and compute_loss of "
                f"{type(trainer).__name__} would never be called: leave them out."
            )
        _refuse_in_manual_optimization(args, name)


def _refuse_in_manual_optimization(args: Any, name: str) -> None:
    cannot = {
        "gradient_accumulation_steps": args.gradient_accumulation_steps > 1,
        "fp16": args.fp16,
        "micro_batch": ours(args, "micro_batch") is not None,
        "rewind_on_nonfinite": ours(args, "rewind_on_nonfinite"),
    }
    found = [argument for argument, is_set in cannot.items() if is_set]
    if found:
        raise ValueError(
            f"{name} has automatic_optimization=False: its training_step steps the optimizers, so {', '.join(found)} "
            "cannot act. Leave it out (bf16=True works), or let the Trainer optimize."
        )
    logger.info(
        "%s has automatic_optimization=False: max_grad_norm and the guard against steps that are not finite do not "
        "act; training_step decides what is done to gradients.",
        name,
    )
