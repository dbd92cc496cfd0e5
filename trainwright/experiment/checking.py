"""``trainwright check``: one training step, one evaluation step, one save and one load, in a folder that goes away."""

from __future__ import annotations

import dataclasses
import logging
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainwright.callbacks.progress import PrinterCallback
from trainwright.checkpoint.directory import list_checkpoints
from trainwright.config.arguments import TrainingArguments
from trainwright.config.errors import ConfigError
from trainwright.config.extras import EXTRAS, install, is_installed
from trainwright.config.fields import is_ours
from trainwright.config.intervals import EVALUATE, SAVE, cadence
from trainwright.config.loading import Loaded
from trainwright.config.registry import suggestion
from trainwright.engines.torch.targets import unwrap
from trainwright.experiment.building import Built, arguments_for, build, run_folder, trackers_of
from trainwright.experiment.running import SPEED, is_refusal, refuse_unwritable
from trainwright.experiment.sources import first
from trainwright.experiment.stored import resolved
from trainwright.trainer.trainer import Trainer
from trainwright.training.plan import plan_training


@dataclass(frozen=True)
class Report:
    """What a check found, in lines of (name, text)."""

    lines: list[tuple[str, str]]


def check(loaded: Loaded) -> Report:
    """Do everything that a run does once; whatever would fail in hours fails now."""
    with tempfile.TemporaryDirectory(prefix="trainwright-check-") as folder, level_put_back():
        _refuse_unusable(loaded)
        built = build(writing_to(loaded, folder))
        lines = [("task", built.task), *(("data", note) for note in built.prepared.notes)]
        try:
            lines += [*_data_lines(built), *_schedule_lines(built), *_tried(built, Path(folder) / "try")]
        except ValueError as error:
            if isinstance(error, ConfigError) or not is_refusal(error):
                raise
            raise ConfigError(f"{loaded.document.source}: {error}") from error
    return Report(lines)


def _refuse_unusable(loaded: Loaded) -> None:
    """What a check itself does without, and a run would stumble over: trackers, the folder, data for later."""
    _, args = arguments_for(loaded)
    trackers_of(loaded)
    for name in (*loaded.experiment.trackers, *(args.report_to or ())):
        if name in EXTRAS and not is_installed(name):
            raise ConfigError(f"{loaded.document.source}: the tracker {name} needs its package: {install(name)}")
    resolved(loaded)
    refuse_unwritable(run_folder(loaded))


@contextmanager
def level_put_back() -> Iterator[None]:
    """``log_level`` sets the level of the whole process; a check is over soon."""
    logger = logging.getLogger("trainwright")
    level = logger.level
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def _without_a_word() -> Iterator[None]:
    """That nothing is left to train is what was wanted."""
    logger = logging.getLogger("trainwright")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def writing_to(loaded: Loaded, folder: str) -> Loaded:
    """The same experiment with another folder for its results, and no trackers."""
    kept = {key: value for key, value in loaded.experiment.checkpoint.items() if key != "output_dir"}
    # No repository is made on the Hub for a try.
    training = {**loaded.experiment.training, "output_dir": folder, "report_to": "none", "push_to_hub": False}
    training.pop("tracker_options", None)
    experiment = dataclasses.replace(loaded.experiment, training=training, checkpoint=kept, trackers={})
    return dataclasses.replace(loaded, experiment=experiment)


def _data_lines(built: Built) -> list[tuple[str, str]]:
    train, evaluation = built.prepared.train, built.prepared.eval
    sizes = [f"{_length(train)} to train on"]
    if evaluation is not None:
        sizes.append(f"{_length(evaluation)} to evaluate on")
    lines = [("samples", ", ".join(sizes))]
    lines.append(("columns dropped", ", ".join(built.prepared.dropped) or "none"))
    return lines


def _length(rows: Any) -> str:
    return f"{len(rows):,}" if hasattr(rows, "__len__") else "unknown number"


def _schedule_lines(built: Built) -> list[tuple[str, str]]:
    trainer, args = built.trainer, built.args
    plan = plan_training(trainer.args, trainer.get_train_dataloader(), trainer.num_examples)
    trainer.create_optimizer_and_scheduler(plan.max_steps)
    rates = _rates(trainer.lr_scheduler, plan.max_steps)
    # A run starts with an optimizer of its own.
    trainer.optimizer = trainer.lr_scheduler = None
    return [
        ("steps", f"{plan.max_steps:,} in {args.num_train_epochs if args.max_steps <= 0 else plan.epochs} epochs"),
        *(_phase_lines(built) or [("learning rate", f"{args.lr_scheduler_type}{rates and ': '}{rates}")]),
        ("evaluates", str(cadence(args, EVALUATE))),
        ("saves", f"{cadence(args, SAVE)}, keeps {args.save_total_limit or 'all'}"),
    ]


def _phase_lines(built: Built) -> list[tuple[str, str]]:
    """What is trained how long and with which rate, where that is not the same in all epochs."""
    args, lines = built.trainer.args, []
    for name, phase in built.loaded.experiment.phases.items():
        rate = args.learning_rate if phase.learning_rate is None else phase.learning_rate
        trained = f", trains {phase.trainable}" if phase.trainable is not None else ""
        rests = f", without {phase.freeze}" if phase.freeze is not None else ""
        data = f", on {phase.data}" if phase.data is not None else ""
        until = f", until {phase.until}" if phase.until is not None else ""
        kind = phase.lr_scheduler_type or args.lr_scheduler_type
        lines.append((f"phase {name}", f"{phase.epochs} epochs, {kind} from {rate:g}{data}{trained}{rests}{until}"))
    return lines


def _rates(scheduler: Any, steps: int) -> str:
    """The learning rate at a few points of the run, where the schedule is a function of the step."""
    factor = getattr(scheduler, "factor", None)
    if not callable(factor):
        return ""
    base = scheduler.base_lrs[0]
    points = [0, math.ceil(steps * 0.1), steps // 2, max(0, steps - 1)]
    return ", ".join(f"{base * factor(point):.2g} at step {point}" for point in dict.fromkeys(points))


def _tried(built: Built, folder: Path) -> list[tuple[str, str]]:
    args = _one_step(built.args, folder)
    peak = _Peak(args)
    trainer = _copy_of(built, args)
    trainer.train()
    lines = [("training step", f"done, loss {_loss(trainer):.4g}")]
    if built.prepared.eval is not None:
        metrics = trainer.evaluate()
        names = [name for name in metrics if name.startswith("eval_") and not name.endswith(SPEED)]
        lines.append(("metrics", ", ".join(sorted(names))))
        _refuse_missing_metric(built, names)
    (checkpoint,) = list_checkpoints(folder)
    size = sum(file.stat().st_size for file in checkpoint.rglob("*") if file.is_file())
    before = {name: value.clone() for name, value in unwrap(trainer.model).state_dict().items()}
    with _without_a_word():
        trainer.train(resume_from_checkpoint=str(checkpoint))
    after = unwrap(trainer.model).state_dict()
    same = all(torch.equal(value, after[name]) for name, value in before.items())
    lines.append(("save and load", "the weights came back as they were" if same else "the weights CHANGED"))
    kept = built.args.save_total_limit
    disk = f"{_size(size)} a checkpoint" + (f", {_size(size * (kept + 1))} in all at most" if kept else "")
    lines.append(("disk", disk))
    lines.append(("memory", f"{_weights_and_more(trainer)}; {peak.text()}"))
    return lines


def _refuse_missing_metric(built: Built, names: list[str]) -> None:
    wanted = built.args.metric_for_best_model
    if wanted is not None and f"eval_{wanted.removeprefix('eval_')}" not in names:
        raise built.loaded.error(
            ("training", "metric_for_best_model"),
            f"an evaluation gives {', '.join(sorted(names))}, and no {wanted}{suggestion(f'eval_{wanted}', names)}.",
        )


def _one_step(args: TrainingArguments, folder: Path) -> Any:
    off: dict[str, Any] = {"evaluate_every": None, "eval_strategy": "no", "checkpoint_every": None, "log_every": None}
    off |= {"load_best_model_at_end": False, "save_best": False, "resume": None, "rewind_on_nonfinite": False}
    off |= {"logging_strategy": "steps", "logging_steps": 1, "save_strategy": "steps", "save_steps": 1}
    off |= {
        "report_to": "none",
        "disable_tqdm": True,
        "push_to_hub": False,
        "save_only_model": False,
        "log_level": "warning",
        "write_report": False,
    }
    if is_ours(args, "fast_dev_run"):
        # A check is one already, and looks into its folder.
        off["fast_dev_run"] = None
    if str(args.lr_scheduler_type) in ("reduce_lr_on_plateau", "greedy"):
        off["lr_scheduler_type"] = "linear"
    return dataclasses.replace(args, output_dir=str(folder), max_steps=1, **off)


def _copy_of(built: Built, args: TrainingArguments) -> Trainer:
    source = built.trainer
    rows = built.prepared.eval
    few = None if rows is None else first(rows, args.per_device_eval_batch_size) if hasattr(rows, "__len__") else rows
    trainer = type(source)(
        model=built.prepared.model,
        args=args,
        data_collator=source.data_collator,
        train_dataset=built.prepared.train,
        eval_dataset=few,
        processing_class=source.processing_class,
        compute_loss_func=source.compute_loss_func,
        compute_metrics=source.compute_metrics,
        preprocess_logits_for_metrics=source.preprocess_logits_for_metrics,
    )
    # The report says what there is to say.
    trainer.remove_callback(PrinterCallback)
    return trainer


def _loss(trainer: Trainer) -> float:
    return next((entry["loss"] for entry in trainer.state.log_history if "loss" in entry), math.nan)


def _weights_and_more(trainer: Trainer) -> str:
    parameters = list(unwrap(trainer.model).parameters())
    weights = sum(p.numel() * p.element_size() for p in parameters)
    gradients = sum(p.numel() * p.element_size() for p in parameters if p.requires_grad)
    moments = sum(
        value.numel() * value.element_size()
        for state in trainer.optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    )
    count = sum(p.numel() for p in parameters)
    return f"{count:,} parameters: {_size(weights)} weights, {_size(gradients)} gradients, {_size(moments)} optimizer"


class _Peak:
    """The most memory that the device needed; on a CPU only the weights can be told."""

    def __init__(self, args: TrainingArguments) -> None:
        self._device = args.device
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)

    def text(self) -> str:
        if self._device.type != "cuda":
            return "activations are not measured on the CPU"
        total = torch.cuda.get_device_properties(self._device).total_memory
        return f"{_size(torch.cuda.max_memory_allocated(self._device))} of {_size(total)} at the peak of a step"


def _size(amount: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} TB"
