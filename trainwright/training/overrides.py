"""Internals of transformers' Trainer that a subclass overrides: which are called here, and what is said of the others.

What is asked once is asked here, when a Trainer is built or a training begins; a step never asks.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from types import CodeType
from typing import Any

from trainwright.config.origin import OURS, library_of
from trainwright.config.warnings import TrainwrightWarning
from trainwright.core.engine import StepOverrides
from trainwright.training.hf_methods import HF_METHODS
from trainwright.training.hooks import is_overridden
from trainwright.training.setup import Setup

#: Called at the same moment as in transformers, or, like ``add_callback``, by scripts alone.
FOLLOWED = frozenset(
    """
    _clip_grad_norm _determine_best_metric _evaluate _get_collator_with_removed_columns _get_dataloader
    _get_eval_sampler _get_grad_norm _get_learning_rate _get_train_sampler _inner_training_loop _load_best_model
    _load_callback_state _load_from_checkpoint _load_optimizer_and_scheduler _load_scaler _move_model_to_device
    _prepare_input _prepare_inputs _remove_unused_columns _save _save_checkpoint _save_optimizer_and_scheduler
    _save_rng_state _save_scaler _set_signature_columns_if_needed _track_num_input_tokens _validate_args _wrap_model
    add_callback autocast_smart_context_manager call_model_init compute_loss compute_loss_context_manager
    create_accelerator_and_postprocess create_model_card create_optimizer create_optimizer_and_scheduler
    create_scheduler end evaluate evaluation_loop floating_point_ops get_batch_samples get_decay_parameter_names
    get_eval_dataloader get_learning_rates get_num_trainable_parameters get_optimizer_cls_and_kwargs
    get_optimizer_group get_test_dataloader get_total_train_batch_size get_train_dataloader hyperparameter_search
    init_hf_repo is_local_process_zero is_world_process_zero log num_examples pop_callback predict prediction_step
    push_to_hub remove_callback save_model set_initial_training_values store_flos train training_step
    """.split()  # noqa: SIM905
)

#: What to do instead, for those that subclasses have been seen to override.
INSTEAD = {
    "_build_accelerator_args": "set backend=, fsdp=, deepspeed= or accelerator_config= in the arguments",
    "_finalize_training": "override train(), or use on_train_end",
    "_get_num_items_in_batch": "override count_targets(inputs), which counts the targets of one batch",
    "_get_output_dir": "set output_dir, or run_name",
    "_init_training_state": "use on_train_begin",
    "_load_rng_state": "override get_state() and update_state(state), which are saved with every checkpoint",
    "_maybe_log_save_evaluate": "override log(logs) or _evaluate(...), or set switches of the control in on_step_end",
    "_nested_gather": "use self.accelerator.gather",
    "_prepare_for_training": "override get_train_dataloader, create_optimizer_and_scheduler or _wrap_model",
    "_push_from_checkpoint": "use on_save",
    "_report_to_hp_search": "override _evaluate(...)",
    "_rotate_checkpoints": "set save_total_limit and keep_every",
    "_sorted_checkpoints": "set save_total_limit and keep_every",
    "get_cp_size": "set parallelism_config",
    "get_sp_size": "set parallelism_config",
    "get_tp_size": "set tensor_parallel_size",
    "prediction_loop": "override evaluation_loop",
}

#: Whoever writes these anew trains with a loop of their own, and would get ours without a word.
LOOPS = ("_inner_training_loop", "_run_epoch")


def look_at_overrides(setup: Setup) -> None:
    """Refuse a training loop that would not run, and name the methods that will never be called."""
    hooks = setup.hooks()
    name, found = type(hooks).__name__, sorted(overridden(hooks))
    for loop in LOOPS:
        if loop in found and not calls_inherited(getattr(hooks, loop), loop):
            raise ValueError(
                f"{name}.{loop} replaces the training loop, which is trainwright's here: it would not run as written. "
                "Override training_step, compute_loss or get_batch_samples, or use a callback "
                "(docs/coming-from-hugging-face.md); a method that calls super() around the training may stay."
            )
    unused = [method for method in found if method not in FOLLOWED]
    if "_push_from_checkpoint" in unused and not setup.args.push_to_hub:
        # Libraries define it; where nothing is pushed nobody misses it.
        unused.remove("_push_from_checkpoint")
    if unused:
        instead = "".join(f"\n  {method}: {INSTEAD[method]}" for method in unused if method in INSTEAD)
        warnings.warn(
            f"{name} defines {', '.join(unused)}, which trainwright does not call. Use a callback or one of the "
            f"methods that docs/coming-from-hugging-face.md lists{':' if instead else '.'}{instead}",
            TrainwrightWarning,
            stacklevel=3,
        )


def overridden(hooks: object) -> set[str]:
    """Methods of transformers' Trainers that somebody else's class, or an assignment, puts in place of ours."""
    own = [vars(kind) for kind in type(hooks).__mro__ if kind is not object and library_of(kind) != OURS]
    found = {name for names in own for name in names if name in HF_METHODS}
    return found | {name for name, value in vars(hooks).items() if name in HF_METHODS and callable(value)}


def calls_inherited(method: Any, name: str) -> bool:
    """Return True where a method mentions ``super()``, or the method of its own name that it inherits."""
    code = getattr(inspect.unwrap(method), "__code__", None)
    return code is None or any({"super", name} & set(part.co_names) for part in _parts(code))


def _parts(code: CodeType) -> Iterator[CodeType]:
    """The code of a function and of those defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _parts(constant)


def step_overrides(setup: Setup) -> StepOverrides:
    """What a subclass does in each step in place of the engine; it may be put on the instance, before the training."""
    hooks = setup.hooks()
    clips = is_overridden(hooks, "_clip_grad_norm") or is_overridden(hooks, "_get_grad_norm")
    if clips and setup.engine.weights.layout.name == "deepspeed":
        warnings.warn(
            f"DeepSpeed clips gradients by itself: _clip_grad_norm and _get_grad_norm of {type(hooks).__name__} are "
            "not called. Set max_grad_norm, or gradient_clipping in the DeepSpeed configuration.",
            TrainwrightWarning,
            stacklevel=2,
        )

    def clip() -> Any:
        hooks, model = setup.hooks(), setup.model_wrapped
        norm = hooks._clip_grad_norm(model) if (setup.args.max_grad_norm or 0.0) > 0 else None
        return hooks._get_grad_norm(model, grad_norm=norm)

    def learning_rate() -> Any:
        return setup.hooks()._get_learning_rate()

    return StepOverrides(
        clip=clip if clips else None,
        learning_rate=learning_rate if is_overridden(hooks, "_get_learning_rate") else None,
    )
