"""Give a Trainer its model, engine, callbacks and training tools."""

from __future__ import annotations

import inspect
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from trainwright.core.callback import CallbackHandler
from trainwright.data.order import mixed_seed
from trainwright.engines.torch.engine import TorchEngine
from trainwright.engines.torch.joint import EpochScheduleCallback, JointSchedule
from trainwright.engines.torch.optimizer_states import adopt_sharded_parameters
from trainwright.engines.torch.randomness import enable_full_determinism, set_seed
from trainwright.engines.torch.strategies.base import StrategyContext
from trainwright.engines.torch.strategies.choice import choose_strategy, places_model
from trainwright.engines.torch.targets import base_model, unwrap
from trainwright.training.checks import refuse_for_strategy
from trainwright.training.construction import default_callbacks
from trainwright.training.course import made_now
from trainwright.training.data import signature_columns
from trainwright.training.engine_choice import graph_engine, in_torch_form, refuse_what_the_engine_lacks
from trainwright.training.given import warn_of_misspelled_events
from trainwright.training.hooks import is_overridden
from trainwright.training.modules import (
    check_own_states,
    engine_class,
    module_callbacks,
    take_module,
)
from trainwright.training.overrides import step_overrides
from trainwright.training.own_state import own_states
from trainwright.training.run import TrainingRun
from trainwright.training.save import may_save_unasked
from trainwright.training.setup import Setup
from trainwright.training.step import count_targets, learn_signatures, train_by_hand, train_on


def handler_of(setup: Setup, users: list[Any]) -> CallbackHandler:
    warn_of_misspelled_events(users)
    # Modifiers first: whoever looks at weights sees what they made of them.
    own = [*setup.modifiers, *module_callbacks(setup), *users, *own_states(setup)]
    return CallbackHandler(
        default_callbacks(setup.args, own),
        model=setup.model,
        processing_class=setup.processing_class,
        tokenizer=setup.processing_class,  # its name in transformers 4
        optimizer=setup.optimizer,
        lr_scheduler=setup.lr_scheduler,
    )


def adopt_first_model(setup: Setup, model: nn.Module | None) -> None:
    """None where ``fit`` will be given one."""
    if model is not None:
        adopt_model(setup, model)


def adopt_model(setup: Setup, model: nn.Module) -> None:
    """Take ``model`` and learn from its signature how to call it."""
    if setup.place_model_on_device and not hasattr(model, "hf_device_map") and not places_model(setup.args):
        setup.hooks()._move_model_to_device(model, setup.args.device)
    setup.model = setup.model_wrapped = model
    take_module(setup, model)
    config = getattr(base_model(model), "config", None)
    if config is not None and hasattr(config, "use_cache"):
        config.use_cache = setup.args.use_cache
    learn_signatures(setup, model)


def build_engine(setup: Setup) -> None:
    """What computes, with the strategy that the arguments ask for."""
    by_hand = setup.module is not None and not setup.module.automatic_optimization
    strategy = choose_strategy(
        StrategyContext(
            args=setup.args,
            backend=setup.backend,
            model=setup.model,
            modifiers=setup.modifiers,
            optimizes_by_hand=by_hand,
            has_checkpointer=setup.checkpointer is not None,
        )
    )
    setup.engine = make_engine(
        setup,
        device=setup.args.device,
        precision=strategy.precision(setup.args),
        max_grad_norm=setup.args.max_grad_norm or 0.0,
        skip_nonfinite_logs=setup.args.logging_nan_inf_filter,
        training_step=partial(train_by_hand, setup) if by_hand else partial(train_on, setup),
        count_targets=partial(count_targets, setup),
        backend=setup.backend,
        set_grads_to_none=setup.args.set_grads_to_none,
        strategy=strategy,
    )
    refuse_what_the_engine_lacks(setup)


def make_engine(setup: Setup, **options: Any) -> TorchEngine:
    if setup.args.engine == "torch":
        return engine_class(setup)(**options)
    return graph_engine(setup, **options)


def call_model_init(setup: Setup, trial: object = None) -> nn.Module:
    """A new model from ``model_init``, which may take the trial."""
    assert setup.model_init is not None
    takes_trial = len(inspect.signature(setup.model_init).parameters) > 0
    model = setup.model_init(trial) if takes_trial else setup.model_init()
    if model is None:
        raise ValueError("model_init returned None; it must return the model.")
    return in_torch_form(model, setup)


def adopt_another_model(setup: Setup, model: nn.Module) -> None:
    model = in_torch_form(model, setup)
    if not isinstance(model, nn.Module):
        raise ValueError(f"fit(model, train, val) takes a torch.nn.Module first, not a {type(model).__name__}.")
    if model is setup.model:
        return
    if setup.model is not None and setup.signature_columns == signature_columns(setup):
        # Those of the model before.
        setup.signature_columns = None
    adopt_model(setup, model)
    setup.hooks().create_accelerator_and_postprocess()
    setup.callbacks.references["model"] = setup.model
    if callable(heard := getattr(setup.module, "on_init_end", None)):
        heard(setup.given_args, setup.state, setup.control, **setup.callbacks.references)


def spread_model(setup: Setup, called: nn.Module, checkpoint: Path | None) -> None:
    """Weights of the checkpoint, if there is one, in the model; spread over the processes."""
    if checkpoint is not None and not setup.engine.weights.layout.in_parts:
        setup.hooks()._load_from_checkpoint(str(checkpoint))
    before = dict(setup.model.named_parameters())
    setup.model_wrapped = setup.engine.weights.spread(setup.model, setup.backend, wrapped(setup, called))
    if setup.engine.weights.layout.in_parts:
        if setup.optimizer is not None and not setup.own_optimizer:
            adopt_sharded_parameters(setup.optimizer, before, setup.model)
        if checkpoint is not None:
            setup.hooks()._load_from_checkpoint(str(checkpoint))


def wrapped(setup: Setup, model: nn.Module, *, training: bool = True) -> nn.Module:
    """``model`` as ``_wrap_model`` of a subclass returns it; what that puts around it stands for the same weights."""
    if not is_overridden(setup.hooks(), "_wrap_model"):
        return model
    found, strategy = setup.hooks()._wrap_model(model, training=training), setup.engine.weights
    kinds = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    if isinstance(found, kinds) or (found is not model and strategy.layout.name in ("fsdp", "deepspeed")):
        raise ValueError(
            f"{type(setup.hooks()).__name__}._wrap_model returned a {type(found).__name__}: here the Trainer spreads "
            "the model over devices. Start with torchrun, or set backend=, fsdp= or deepspeed=, and return the model "
            "as it is."
        )
    if unwrap(found) is not unwrap(model):
        vars(found)["_stored_model"] = lambda: setup.model
    return found


def seed_everything(setup: Setup) -> None:
    # Processes must not draw the same dropout masks for their different samples.
    rank = setup.args.process_index // setup.args.tensor_parallel_size
    seed = setup.args.seed if rank == 0 else mixed_seed(setup.args.seed, rank)
    (enable_full_determinism if setup.args.full_determinism else set_seed)(seed)


def create_training_tools(run: TrainingRun, max_steps: int) -> None:
    """Optimizer and schedule; those made for an earlier call are made anew, those the user gave are kept."""
    setup = run.setup
    if setup.own_scheduler:
        setup.lr_scheduler = None
    if setup.own_optimizer:
        setup.optimizer = None
    setup.hooks().create_optimizer_and_scheduler(num_training_steps=max_steps)
    run.made = made_now(setup, max_steps)
    refuse_for_strategy(setup)
    refuse_what_the_engine_lacks(setup)
    setup.model_wrapped = setup.engine.weights.take_optimizer(setup.model_wrapped, setup.optimizer)
    setup.engine.attach(setup.model_wrapped, setup.optimizer, setup.lr_scheduler)
    setup.engine.set_step_overrides(step_overrides(setup))
    # Of a step that somebody took by hand.
    setup.engine.clear_gradients()
    setup.callbacks.call_before_looking(setup.engine.show_weights if setup.engine.hides_weights else None)
    setup.callbacks.pop_callback(EpochScheduleCallback)
    if isinstance(setup.lr_scheduler, JointSchedule) and setup.lr_scheduler.moves_by_epoch:
        setup.hooks().add_callback(EpochScheduleCallback(setup.lr_scheduler, lambda: run.feed.epoch_is_over))
    if may_save_unasked(setup):
        check_own_states(setup)
