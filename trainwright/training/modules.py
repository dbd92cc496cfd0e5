"""Serve a Module: its hooks, its data, and arguments that it leaves without effect."""

from __future__ import annotations

import logging
from typing import Any

from torch import nn
from torch.utils.data import DataLoader

from trainwright.checkpoint.pack import refuse_unstorable
from trainwright.config.arguments import TrainingArguments
from trainwright.core.callback import EVENTS
from trainwright.engines.torch.engine import TorchEngine
from trainwright.engines.torch.module import Module, attach_run, module_in
from trainwright.engines.torch.module_engine import ManualEngine, ModuleEngine
from trainwright.engines.torch.targets import unwrap
from trainwright.training.hooks import is_users_own
from trainwright.training.own_state import OwnState
from trainwright.training.setup import Setup

logger = logging.getLogger("trainwright")


class ModuleCallback(OwnState):
    """Lets a Module hear the events it defines, and keeps its state in checkpoints."""

    def __init__(self, module: Module) -> None:
        super().__init__(module)
        for event in EVENTS:
            method = getattr(module, event, None)
            if callable(method):
                setattr(self, event, method)


def take_module(setup: Setup, model: nn.Module) -> None:
    """Find out whether ``model`` is a Module, and let it hear events from now on."""
    forget_configured(setup)
    setup.module = module_in(model)
    if setup.module is not None:
        _refuse_what_cannot_act(setup, setup.module)
    handler = setup.callbacks
    if handler is not None:
        handler.pop_callback(ModuleCallback)
        for callback in module_callbacks(setup):
            handler.add_callback(callback)


def forget_configured(setup: Setup) -> None:
    """Optimizers and schedules that a Module made belong to it and to one training."""
    if setup.configured_by_module:
        setup.optimizer = setup.lr_scheduler = None
        setup.own_optimizer = setup.own_scheduler = True
        setup.configured_by_module = False


def module_callbacks(setup: Setup) -> list[Any]:
    return [] if setup.module is None else [ModuleCallback(setup.module)]


def engine_class(setup: Setup) -> type[TorchEngine]:
    if setup.module is None:
        return TorchEngine
    return ModuleEngine if setup.module.automatic_optimization else ManualEngine


def attach_module(setup: Setup) -> None:
    """``self.log`` and the like of the Module reach this Trainer, and no other that it was given to before."""
    if setup.module is not None and isinstance(setup.engine, ModuleEngine):
        attach_run(setup.module, setup.engine)


def check_own_states(setup: Setup) -> None:
    """Before the first step: what cannot be saved must not be found out after hours of work."""
    for callback in setup.callbacks.everyone:
        if isinstance(callback, OwnState):
            callback.state_dict()
    model = unwrap(setup.model)
    if not hasattr(model, "save_pretrained"):
        # Others are written by code of their own, which may know how.
        refuse_unstorable(model.state_dict())


def data_of_module(setup: Setup, which: str) -> Any:
    """What the Module's ``<which>_dataloader`` gives; None without a Module."""
    return None if setup.module is None else getattr(setup.module, f"{which}_dataloader")()


def use_own_eval_data(setup: Setup) -> None:
    if setup.eval_dataset is None:
        setup.eval_dataset = data_of_module(setup, "val")


def is_loader(data: object, what: str) -> bool:
    """Whether ``data`` gives batches and not samples; a list of loaders, which would pass for a dataset, is refused."""
    if isinstance(data, (list, tuple)) and data and all(isinstance(item, DataLoader) for item in data):
        raise ValueError(f"{what} got a list of loaders: pass one loader or, to evaluate on several, a dict by name.")
    return isinstance(data, DataLoader)


def refuse_with_own_loader(args: TrainingArguments) -> None:
    """Arguments by which the Trainer would make batches, where a loader already makes them."""
    given = [name for name in ("max_tokens_per_batch",) if getattr(args, name, None) is not None]
    if args.train_sampling_strategy != "random":
        given.append("train_sampling_strategy")
    if given:
        raise ValueError(
            f"The training data is a DataLoader, which makes the batches: {', '.join(given)} cannot act. Pass the "
            "dataset instead, or leave it out."
        )


def _refuse_what_cannot_act(setup: Setup, module: Module) -> None:
    """Arguments and options that mean nothing to a Module, with the way out."""
    args, name = setup.args, type(module).__name__
    if setup.compute_loss_func is not None or args.label_smoothing_factor:
        raise ValueError(
            f"{name}.training_step computes the loss itself: compute_loss_func and label_smoothing_factor would do "
            "nothing. Use them there, and leave them out here."
        )
    own_optimizers = getattr(module.configure_optimizers, "__func__", None) is not Module.configure_optimizers
    given = not setup.own_optimizer or not setup.own_scheduler or setup.optimizer_cls_and_kwargs is not None
    if own_optimizers and given:
        raise ValueError(
            f"{name} defines configure_optimizers, and the Trainer got optimizers= or optimizer_cls_and_kwargs=: which "
            "one should be used? Leave one out."
        )
    if not module.automatic_optimization:
        if is_users_own(setup.hooks(), "training_step") or is_users_own(setup.hooks(), "compute_loss"):
            raise ValueError(
                f"{name} has automatic_optimization=False, so training_step and compute_loss of "
                f"{type(setup.hooks()).__name__} would never be called: leave them out."
            )
        _refuse_in_manual_optimization(args, name)


def _refuse_in_manual_optimization(args: TrainingArguments, name: str) -> None:
    cannot = {
        "gradient_accumulation_steps": args.gradient_accumulation_steps > 1,
        "fp16": args.fp16,
        "micro_batch": args.micro_batch is not None,
        "rewind_on_nonfinite": args.rewind_on_nonfinite,
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
