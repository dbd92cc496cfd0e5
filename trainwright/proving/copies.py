"""Copies of a Trainer that train by themselves, while the Trainer itself stays as it is."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from trainwright.callbacks.progress import PrinterCallback
from trainwright.callbacks.run_directory import RunDirectoryCallback
from trainwright.config.run_directory import run_directory
from trainwright.core.callback import CallbackHandler
from trainwright.engines.torch.memory import MemoryReport, release_memory
from trainwright.engines.torch.randomness import random_state, set_random_state
from trainwright.proving.duplicates import Memo, duplicate, share_data
from trainwright.training.construction import choose_backend
from trainwright.training.dev_run import NOTHING_IS_KEPT
from trainwright.training.hooks import is_ours
from trainwright.training.setup import Setup
from trainwright.training.start import adopt_model, handler_of

#: Fields of the setup that a copy makes itself, or does without.
_ITS_OWN = frozenset(
    """
    hooks args given_args model model_wrapped model_init module calling backend engine callbacks memory checkpointer
    train_dataset eval_dataset
    writers answering state control run is_in_train evaluation portion search upload eval_loaders loaded_eval_sets
    """.split()  # noqa: SIM905
)
#: What a training changes in any case.
_ALWAYS_COPIED = ("optimizer", "lr_scheduler")

#: A copy trains, and does nothing else: it neither evaluates nor shows nor uploads.
QUIET: dict[str, Any] = {
    **NOTHING_IS_KEPT,
    "auto_find_batch_size": False,
    "check_weights_every": None,
    "debug": "",
    "disable_tqdm": True,
    "eval_on_start": False,
    "eval_strategy": "no",
    "evaluate_every": None,
    "full_determinism": False,
    "handle_signals": False,
    "include_num_input_tokens_seen": "no",
    "log_every": None,
    "log_level": "passive",
    "logging_nan_inf_filter": False,
    "logging_steps": 1,
    "logging_strategy": "steps",
    "max_nonfinite_steps": None,
    "save_only_model": False,
    "save_total_limit": None,
    "skip_memory_metrics": True,
    "torch_empty_cache_steps": None,
    "watchdog_seconds": None,
}


#: Bytes of a model from which on its copies are looked for as soon as they have trained.
_LARGE = 2**26


@dataclasses.dataclass(frozen=True)
class TrainerCopy:
    """A Trainer of the same class with a model, data and state of its own."""

    trainer: Any
    setup: Setup


@contextmanager
def let_go_afterwards(source: Setup) -> Iterator[None]:
    """Copies that were made within it leave memory at its end; small ones may wait for Python to tidy up."""
    try:
        yield
    finally:
        if sum(parameter.nbytes for parameter in source.model.parameters()) > _LARGE:
            # Copies, their engines and what was put around their passes know each other.
            gc.collect()
            release_memory(source.args.device)


def copied(source: Setup, settings: dict[str, Any], folder: str, dtype: torch.dtype | None = None) -> TrainerCopy:
    """A copy of the Trainer whose setup is ``source``, with other settings, that writes into ``folder`` only.

    The model's numbers are in ``dtype``, if one is given. Callbacks of the user's are left out: they may write.
    """
    original = source.hooks()
    args = _arguments(source, {**QUIET, **settings, "output_dir": folder})
    kind: Any = type(original)
    trainer = kind.__new__(kind)
    # As it is taken along to another process.
    setup: Setup = trainer.__getstate__()["_setup"]
    # Whatever refers to one of these in the original refers to its counterpart in the copy.
    memo: Memo = {
        id(original): trainer,
        id(source): setup,
        id(source.given_args): args,
        id(source.callbacks): CallbackHandler(),
        id(source.processing_class): source.processing_class,
    }
    for dataset in (source.train_dataset, source.eval_dataset):
        share_data(dataset, memo)
    try:
        model = copy.deepcopy(source.model, memo)
    except Exception as error:
        raise ValueError(
            f"prove trains copies of the model, and {type(source.model).__name__} cannot be copied "
            f"({type(error).__name__}: {error}): give it a __deepcopy__, or keep tensors with a history out of its "
            "attributes."
        ) from error
    setup.train_dataset = duplicate(source.train_dataset, memo, may_share=False)
    # Nobody evaluates: where it is not what is trained on, it is not touched.
    setup.eval_dataset = memo.setdefault(id(source.eval_dataset), source.eval_dataset)
    for field in dataclasses.fields(Setup):
        if field.name not in _ITS_OWN:
            setattr(
                setup,
                field.name,
                duplicate(getattr(source, field.name), memo, may_share=field.name not in _ALWAYS_COPIED),
            )
    for name, value in original.__getstate__().items():
        if name not in ("_setup", "_run", "accelerator"):
            vars(trainer)[name] = duplicate(value, memo)
    setup.take_arguments(args)
    setup.backend = choose_backend(setup.args, None if is_ours(source.backend) else duplicate(source.backend, memo))
    setup.memory = MemoryReport(False)
    if setup.own_optimizer:
        setup.optimizer = None
    if setup.own_scheduler:
        setup.lr_scheduler = None
    adopt_model(setup, model if dtype is None else model.to(dtype))
    _in_format(setup.optimizer, dtype)
    trainer.create_accelerator_and_postprocess()
    setup.callbacks = handler_of(setup, [])
    for kind in (PrinterCallback, RunDirectoryCallback):
        setup.callbacks.pop_callback(kind)
    run_directory(args).mkdir(parents=True, exist_ok=True)
    return TrainerCopy(trainer, setup)


def _arguments(source: Setup, settings: dict[str, Any]) -> Any:
    given = source.given_args
    known = {field.name for field in dataclasses.fields(given) if field.init}
    changes = {name: value for name, value in settings.items() if name in known}
    if str(changes.get("lr_scheduler_type", given.lr_scheduler_type)) in ("reduce_lr_on_plateau", "greedy"):
        # They follow evaluations.
        changes |= {"lr_scheduler_type": "linear", "lr_scheduler_kwargs": None}
    return dataclasses.replace(given, **changes)


def _in_format(optimizer: Any, dtype: torch.dtype | None) -> None:
    """State of an optimizer that the user gave, in the format of the parameters."""
    if dtype is None or optimizer is None:
        return
    for state in getattr(optimizer, "state", {}).values():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.is_floating_point() and value.ndim:
                state[name] = value.to(dtype)


@contextmanager
def nothing_said() -> Iterator[None]:
    """Within it the library logs nothing, and nothing warns: what copies of a Trainer say would confuse."""
    logger = logging.getLogger("trainwright")
    was_disabled, logger.disabled = logger.disabled, True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.disabled = was_disabled


@contextmanager
def random_numbers_put_back() -> Iterator[None]:
    """Afterwards Python's, numpy's and torch's generators go on as if nothing had been drawn."""
    before = random_state()
    try:
        yield
    finally:
        with contextlib.suppress(Exception):
            torch.clear_autocast_cache()
        set_random_state(*before)
