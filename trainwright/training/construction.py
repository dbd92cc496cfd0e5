"""Choose a Trainer's defaults, and find contradictions before any work is done."""

from __future__ import annotations

import dataclasses
import logging
import warnings
from collections.abc import Callable
from typing import Any

from torch import nn

from trainwright.callbacks.flow import DefaultFlowCallback
from trainwright.callbacks.notebook import NotebookCallback, in_notebook
from trainwright.callbacks.progress import PrinterCallback, ProgressCallback
from trainwright.callbacks.run_directory import RunDirectoryCallback
from trainwright.callbacks.tracking import TrackerCallback
from trainwright.config.arguments import TrainingArguments
from trainwright.config.backends import BACKENDS, rank_from_environment
from trainwright.config.derive import FOREIGN_TRACKERS
from trainwright.config.enums import IntervalStrategy
from trainwright.config.fields import is_ours, ours
from trainwright.config.origin import class_if_imported
from trainwright.config.profile import parse_profile
from trainwright.core.backend import BACKEND_MEMBERS
from trainwright.data.collators import collate_any
from trainwright.data.collators_text import DataCollatorWithPadding
from trainwright.data.loader import has_length
from trainwright.engines.torch.backends import DistributedProcesses, SingleProcess
from trainwright.engines.torch.histograms import HistogramsCallback
from trainwright.engines.torch.loss_groups import LossGroups
from trainwright.engines.torch.step_callbacks import EmptyCacheCallback, ProfileCallback
from trainwright.engines.torch.strategies.choice import places_model
from trainwright.loop.evaluate import accepts_compute_result, is_streaming_metric
from trainwright.trackers import build_trackers, tracker_name
from trainwright.training.engine_choice import in_torch_form
from trainwright.training.given import refuse_optimizer_of_another_model
from trainwright.training.hooks import is_users_own
from trainwright.training.setup import Setup

logger = logging.getLogger("trainwright")


def choose_processor(processing_class: object, tokenizer: object) -> Any:
    """``processing_class``, or ``tokenizer``, its name until transformers 5."""
    if tokenizer is None:
        return processing_class
    if processing_class is not None:
        raise ValueError("Pass processing_class= or its old name tokenizer=, not both.")
    warnings.warn(
        "Trainer(tokenizer=...) is now called processing_class=...; it works the same.", FutureWarning, stacklevel=3
    )
    return tokenizer


def choose_collator(processor: object) -> Callable[[list[Any]], Any]:
    """Padding for a tokenizer or a feature extractor, plain stacking otherwise."""
    # Image processors pad too, but images.
    is_for_images = isinstance(
        processor, class_if_imported("transformers.image_processing_base", "ImageProcessingMixin")
    )
    pads = callable(getattr(processor, "pad", None)) and not hasattr(processor, "image_processor") and not is_for_images
    return DataCollatorWithPadding(processor) if pads else collate_any


def one_teacher(teacher: object, distill_teacher: object) -> Any:
    """``teacher``, or ``distill_teacher``, its other name."""
    if teacher is not None and distill_teacher is not None:
        raise ValueError("Pass teacher= or its other name distill_teacher=, not both.")
    return distill_teacher if teacher is None else teacher


def resolve_model(model: nn.Module | None, setup: Setup) -> nn.Module | None:
    """The model given, or the one ``model_init`` makes; None where it will be given to ``fit``."""
    if model is not None and setup.model_init is not None:
        raise ValueError("Pass model= or model_init=, not both: which one should be trained?")
    if model is None:
        return None if setup.model_init is None else setup.hooks().call_model_init()
    model = in_torch_form(model, setup)
    if not isinstance(model, nn.Module):
        raise ValueError(f"model must be a torch.nn.Module, not {type(model).__name__}.")
    return model


def with_backend(args: TrainingArguments, given: object) -> Any:
    """``args`` with the backend that a Trainer was given by name; both given and different is an error."""
    named = ours(args).backend
    wanted = given if given is None or isinstance(given, str) else getattr(given, "name", None)
    if named is not None and wanted is not None and named != wanted:
        raise ValueError(f"backend={wanted!r} was given to the Trainer and {named!r} to its arguments: keep one.")
    if not isinstance(given, str) or named is not None:
        return args
    if not is_ours(args, "backend"):
        raise ValueError(
            f"{type(args).__name__} has a field `backend` of its own, so backend={given!r} has no place in it: rename "
            "the field, or say it otherwise (bf16=True, fsdp=, deepspeed=)."
        )
    return dataclasses.replace(args, backend=given)


def choose_backend(args: TrainingArguments, given: Any) -> Any:
    """The object that ``backend=`` names, or the one that was given."""
    place = rank_from_environment()
    if given is None or isinstance(given, str):
        if place.world_size == 1 and places_model(args):
            return DistributedProcesses(*place, communication=args.ddp_backend)
        if place.world_size == 1:
            if (args.backend or "").startswith("ddp"):
                logger.warning(
                    "backend=%r, but only this one process was started: it trains alone. Start several with "
                    "`torchrun --nproc-per-node=N`.",
                    args.backend,
                )
            return SingleProcess()
        return DistributedProcesses(*place, communication=args.ddp_backend)
    missing = [name for name in BACKEND_MEMBERS if not hasattr(given, name)]
    if missing:
        raise ValueError(
            f"backend={given!r} is neither one of {', '.join(BACKENDS)} nor an object with {', '.join(missing)} "
            "(trainwright.core.backend.Backend says what each does; SingleProcess is a base to start from)."
        )
    if (given.rank, given.local_rank, given.world_size) != place:
        raise ValueError(
            f"The backend says it is process {given.rank} of {given.world_size}, the launcher (RANK, WORLD_SIZE) that "
            f"it is {place.rank} of {place.world_size}: start the script with torchrun, or correct the backend."
        )
    return given


def refuse_contradictions(setup: Setup) -> None:
    """Combinations of constructor arguments that cannot work, with the way out."""
    args = setup.args
    if setup.model is not None and setup.module is None:
        # A Module may still be given data, or bring its own.
        refuse_missing_data(setup)
    given_optimizer = setup.optimizer is not None or setup.lr_scheduler is not None
    if setup.model_init is not None and given_optimizer:
        raise ValueError(
            "optimizers= belongs to one model, but model_init= makes a new one for each train(): "
            "override create_optimizer instead."
        )
    refuse_optimizer_of_another_model(setup)
    if setup.optimizer_cls_and_kwargs is not None and setup.optimizer is not None:
        raise ValueError("Pass optimizers= or optimizer_cls_and_kwargs=, not both.")
    metric = setup.compute_metrics
    by_batch = args.batch_eval_metrics and metric is not None and not is_streaming_metric(metric)
    if by_batch and not accepts_compute_result(metric):
        raise ValueError(
            "batch_eval_metrics=True calls compute_metrics for every batch and needs a compute_result argument: "
            "def compute_metrics(prediction, compute_result: bool)."
        )


def refuse_missing_data(setup: Setup) -> None:
    """Evaluation without data, training without an end; asked once the model is there, which may bring its own."""
    args = setup.args
    has_data = setup.eval_dataset is not None or args.overfit_batches is not None
    if args.eval_strategy != "no" and not has_data and not _evaluates_by_itself(setup):
        raise ValueError(
            f"eval_strategy={IntervalStrategy(args.eval_strategy).value!r} (or evaluate_every) needs data: pass "
            "eval_dataset=, or set eval_strategy='no'."
        )
    dataset = setup.train_dataset
    if dataset is not None and not has_length(dataset) and args.max_steps <= 0:
        raise ValueError("train_dataset has no length, so max_steps must say how long to train: set max_steps=...")


def warn_of_no_samples(setup: Setup) -> None:
    """Say that evaluations of a training will have nothing to look at."""
    if setup.args.eval_strategy == "no" or _evaluates_by_itself(setup):
        return
    sets = setup.eval_dataset if isinstance(setup.eval_dataset, dict) else {"": setup.eval_dataset}
    for name, one in sets.items():
        if one is not None and has_length(one) and len(one) == 0:
            which = f"eval_dataset[{name!r}]" if name else "eval_dataset"
            logger.warning(
                "%s has no samples, so its evaluations say nothing: give it some, or set eval_strategy='no'.", which
            )


def _evaluates_by_itself(setup: Setup) -> bool:
    """Whether a subclass finds its own evaluation data."""
    names = ("get_eval_dataloader", "evaluate")
    return any(is_users_own(setup.hooks(), name) for name in names)


def default_callbacks(args: TrainingArguments, users: list[Any]) -> list[Any]:
    """The flow, the user's callbacks, then what shows and records: it sees what the user's changed."""
    callbacks: list[Any] = [DefaultFlowCallback(), *users]
    if args.torch_empty_cache_steps is not None:
        callbacks.append(EmptyCacheCallback(args.torch_empty_cache_steps))
    if args.profile is not None:
        callbacks.append(ProfileCallback(*parse_profile(args.profile)))
    if (group := ours(args).log_loss_per) is not None:
        callbacks.append(LossGroups(group))
    if (every := ours(args).log_histograms) is not None:
        callbacks.append(HistogramsCallback(every))
    callbacks.append(_display(args))
    if args.should_save:
        callbacks.append(RunDirectoryCallback())
    if args.process_index == 0:
        foreign = [spec for spec in args.report_to or () if isinstance(spec, str) and spec in FOREIGN_TRACKERS]
        if trackers := build_trackers(args):
            callbacks.append(TrackerCallback(trackers, [tracker_name(tracker) for tracker in trackers]))
        callbacks += [foreign_tracker(name) for name in foreign]
    return callbacks


def _display(args: TrainingArguments) -> Any:
    """What shows the run: plain dicts, a page in a notebook, or header, bars and lines."""
    if args.disable_tqdm:
        return PrinterCallback()
    return NotebookCallback() if in_notebook() else ProgressCallback()


def foreign_tracker(name: str) -> Any:
    """transformers' own callback for a tracker that has none here yet."""
    try:
        from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
    except ImportError as error:
        raise ValueError(
            f"report_to={name!r} goes through transformers' callback: pip install transformers, or use 'tensorboard'."
        ) from error
    callback: Any = INTEGRATION_TO_CALLBACK[name]()
    # So that it sees what other callbacks change in the logs, as our own trackers do.
    callback.listens_last = True
    return callback
