"""Values that follow from others when the user left them open."""

from __future__ import annotations

import importlib.util
import logging
from typing import TYPE_CHECKING, Any

from trainwright.config.accelerate_launch import warn_of_accelerate_settings
from trainwright.config.backends import derive_backend
from trainwright.config.enums import IntervalStrategy, SaveStrategy, SchedulerType
from trainwright.config.fields import is_ours, ours
from trainwright.config.fields.logs import NotGiven
from trainwright.config.intervals import derive_strategies
from trainwright.config.parallel import derive_parallel
from trainwright.config.probe import probe_for
from trainwright.config.shipped import SHIPPED

if TYPE_CHECKING:
    from trainwright.config.arguments import TrainingArguments

BUILT_IN_TRACKERS = tuple(name for name in SHIPPED["tracker"] if name != "comet")
"""Ours, in ``trainwright/trackers``; all but "jsonl" are the names of the packages they need."""
FOREIGN_TRACKERS = ("azure_ml", "codecarbon", "dagshub", "flyte", "kubeflow", "neptune", "swanlab")
"""Trackers that are served by transformers' callbacks, where transformers is installed."""

METRIC_SCHEDULES = (SchedulerType.REDUCE_ON_PLATEAU, SchedulerType.GREEDY)
"""Schedules that move by an evaluation's metric."""


def derive(args: TrainingArguments) -> None:
    """Fill what was left open."""
    if args.output_dir is None:
        args.output_dir = "trainer_output"
    if args.auto_find_batch_size and is_ours(args, "micro_batch") and args.micro_batch is None:
        args.micro_batch = "auto"
    derive_strategies(args)
    _derive_evaluation(args)
    args.report_to = resolve_trackers(args.report_to, args.logging_dir)
    if args.disable_tqdm is None:
        args.disable_tqdm = logging.getLogger("trainwright").getEffectiveLevel() > logging.WARNING
    if args.torch_compile_mode is not None or args.torch_compile_backend is not None:
        args.torch_compile = True
    if args.torch_compile and args.torch_compile_backend is None:
        args.torch_compile_backend = "inductor"
    if args.use_cpu:
        args.dataloader_pin_memory = False  # pinning is for copies to an accelerator
    _derive_accumulation(args)
    derive_parallel(args)
    if is_ours(args, "backend"):
        derive_backend(args, lambda: probe_for(args).supports_bf16(args.device))
    warn_of_accelerate_settings(args)


def _derive_evaluation(args: TrainingArguments) -> None:
    if args.eval_strategy != IntervalStrategy.NO:
        args.do_eval = True
    by_steps = args.eval_strategy == IntervalStrategy.STEPS and ours(args).evaluate_every is None
    if by_steps and args.eval_steps is None:
        args.eval_steps = args.logging_steps
    for name in ("logging_steps", "eval_steps", "save_steps"):
        value = getattr(args, name)
        if isinstance(value, float) and value >= 1 and value == int(value):
            setattr(args, name, int(value))
    tracks_best = args.load_best_model_at_end or args.save_strategy == SaveStrategy.BEST or ours(args).save_best
    if args.metric_for_best_model is None and (tracks_best or args.lr_scheduler_type in METRIC_SCHEDULES):
        args.metric_for_best_model = "loss"
    if args.greater_is_better is None and args.metric_for_best_model is not None:
        args.greater_is_better = not args.metric_for_best_model.endswith("loss")


def resolve_trackers(report_to: object, logging_dir: str | None = None) -> list[Any]:
    """The list of trackers, empty for none; classes and objects of one's own stay what they are."""
    # A log directory without a word about trackers has always meant TensorBoard; an explicit "none" wins.
    if isinstance(report_to, NotGiven):
        return [] if logging_dir is None else ["tensorboard"]
    if report_to is None:
        return []
    names = list(report_to) if isinstance(report_to, (list, tuple, set)) else [report_to]
    if names == ["all"]:
        # metrics.jsonl has all that "jsonl" would write.
        return [name for name in BUILT_IN_TRACKERS if name != "jsonl" and _is_installed(name)]
    names = ["comet_ml" if isinstance(name, str) and name == "comet" else name for name in names]
    # A name that is there twice is one tracker; two objects are two.
    first = {name: index for index, name in reversed(list(enumerate(names))) if isinstance(name, str)}
    names = [name for index, name in enumerate(names) if not isinstance(name, str) or first[name] == index]
    return [] if names == ["none"] else names


def _is_installed(package: str) -> bool:
    """A folder of that name (wandb leaves one behind) is found too, but has no code of its own."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


def _derive_accumulation(args: TrainingArguments) -> None:
    """accelerate's own spelling of the accumulation steps."""
    config = args.accelerator_config
    options = config.get("gradient_accumulation_kwargs") if isinstance(config, dict) else None
    steps = (options or {}).get("num_steps")
    if steps is None or steps == args.gradient_accumulation_steps:
        return
    if args.gradient_accumulation_steps != 1:
        raise ValueError(
            f"accelerator_config asks for {steps} accumulation steps and gradient_accumulation_steps for "
            f"{args.gradient_accumulation_steps}: keep only gradient_accumulation_steps."
        )
    args.gradient_accumulation_steps = steps
