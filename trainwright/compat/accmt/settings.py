"""The Trainer's arguments, checked, and in the words of ``TrainingArguments``."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainwright.checkpoint.models import bytes_of
from trainwright.compat.accmt.cadence import native_cadence
from trainwright.compat.accmt.handlers import rescue_kinds
from trainwright.compat.accmt.hyperparameters import HyperParameters, read_config, truth
from trainwright.config.registry import suggestion
from trainwright.config.warnings import TrainwrightWarning


@dataclass(kw_only=True)
class LaterSettings:
    """Arguments that later versions of ACCMT added."""

    patience: int | dict[str, int] | None = None
    metrics: Any = None
    callback: Any = None
    callbacks: Any = None
    enable_checkpointing: bool = True
    multiple_checkpoints: bool = False
    max_checkpoints: int | None = None
    disable_model_saving: bool = False
    gradient_checkpointing: bool = False
    gradient_checkpointing_kwargs: dict[str, Any] | None = None
    compile_kwargs: dict[str, Any] | None = None
    sampler_train: Any = None
    sampler_val: Any = None
    batch_sampler: Any = None
    batch_sampler_train: Any = None
    batch_sampler_val: Any = None
    collate_fn_train: Any = None
    collate_fn_val: Any = None
    dataloader_drop_last: bool = False
    cleanup_cache_every_n_steps: int | None = None
    #: Ours, as messages name it: end another run that writes into the same folder, unsaved.
    take_over: bool = False

    def __post_init__(self) -> None:
        if self.callback is not None and self.callbacks is not None:
            raise ValueError("callback and callbacks are two names of one thing: keep one.")
        _set_booleans(self, "enable_checkpointing multiple_checkpoints disable_model_saving gradient_checkpointing")
        _set_booleans(self, "dataloader_drop_last take_over")
        for sampler in (each for each in self.batch_samplers if each is not None):
            if not hasattr(sampler, "__iter__"):
                raise ValueError(f"batch_sampler={sampler!r} must give lists of indices; for single ones use sampler.")
        for name in ("max_checkpoints", "cleanup_cache_every_n_steps"):
            _check_count(name, getattr(self, name))
        for value in self.patience.values() if isinstance(self.patience, dict) else [self.patience]:
            _check_count("patience", value)

    @property
    def batch_samplers(self) -> tuple[Any, Any]:
        """Of training, of validation."""
        if self.batch_sampler is None:
            return self.batch_sampler_train, self.batch_sampler_val
        if self.batch_sampler_train is not None or self.batch_sampler_val is not None:
            raise ValueError("batch_sampler is both batch_sampler_train and batch_sampler_val: leave these out.")
        return self.batch_sampler, self.batch_sampler

    @property
    def all_callbacks(self) -> list[Any]:
        given = self.callback if self.callbacks is None else self.callbacks
        return [] if given is None else list(given) if isinstance(given, (list, tuple)) else [given]

    @property
    def checkpoints_kept(self) -> int | None:
        if self.max_checkpoints is not None:
            return self.max_checkpoints
        return None if self.multiple_checkpoints else 1


#: Arguments of some version that cannot act here, and why.
REFUSED = {
    "consolidate_metrics": "compute the value in a Metric",
    "additional_metric_consolidation": "compute the value in a Metric",
    "report_all_metrics": "all metrics are reported",
    "reset_optimizer_every_n_steps": "call self.reset_optimizer() from a Callback",
    "batch_device_placement": "batches are placed on the device",
    "additional_tracker_config": "put what a tracker should show into its own options, or log it",
    "test_dataset": "pass it to Trainer.evaluate(module, dataset)",
}
#: Arguments of some version that describe what is always so here.
NEEDLESS = frozenset(
    {
        "safe_mode",
        "safe_steps",
        "prepare_batch",
        "destroy_after_training",
        "enable_prepare_logging",
        "module_hooks",
        "inference_mode",
    }
)


def split_more(more: dict[str, Any]) -> tuple[LaterSettings, dict[str, Any], list[str]]:
    """Keyword arguments beyond the document's: later settings, what is left for trackers, and what has no effect."""
    known = {each.name for each in dataclasses.fields(LaterSettings)}
    for name, instead in REFUSED.items():
        if name in more:
            raise ValueError(f"{name} is not offered here: {instead}.")
    later = LaterSettings(**{name: value for name, value in more.items() if name in known})
    rest = {name: value for name, value in more.items() if name not in known and name not in NEEDLESS}
    return later, rest, sorted(NEEDLESS & set(more))


def near_argument(name: str, own: tuple[str, ...]) -> str:
    """A suggestion for a mistyped argument."""
    return suggestion(name, [*own, *(each.name for each in dataclasses.fields(LaterSettings))])


@dataclass(kw_only=True)
class Settings:
    """The document's arguments."""

    hps_config: Any
    model_path: str
    track_name: str | None
    checkpoint: str | None
    resume: bool | int | None
    model_saving: Any
    evaluate_every_n_steps: int | None
    checkpoint_every: str | None
    logging_dir: str
    log_with: Any
    log_every: int
    grad_accumulation_steps: int | None
    clip_grad: float | None
    set_to_none: bool
    shuffle_train: bool
    shuffle_validation: bool
    sampler: Any
    model_saving_below: float | None
    model_saving_aboce: float | None
    collate_fn: Any
    max_shard_size: str
    safe_serialization: bool
    compile: bool
    train_loss_metric_name: str
    val_loss_metric_name: str
    dataloader_pin_memory: bool
    dataloader_num_workers: int
    report_loss_after_eval: bool
    handlers: Any
    eval_when_finish: bool
    eval_when_start: bool
    verbose: bool
    monitor: Any
    model_saving_above: float | None
    later: LaterSettings = field(default_factory=LaterSettings)

    def __post_init__(self) -> None:
        if not isinstance(self.model_path, (str, Path)) or not str(self.model_path):
            raise ValueError(f"model_path={self.model_path!r} must be the path of a folder for the model.")
        _set_booleans(self, "set_to_none shuffle_train shuffle_validation safe_serialization compile verbose")
        _set_booleans(self, "dataloader_pin_memory report_loss_after_eval eval_when_finish eval_when_start")
        if self.resume == -1 and _is_whole(self.resume):
            # The newest of several.
            self.resume = True
        if _is_whole(self.resume):
            self._check_place(int(self.resume or 0))
        elif self.resume is not None:
            self.resume = truth("resume", self.resume)
        if self.model_saving_above is not None and self.model_saving_aboce is not None:
            raise ValueError("model_saving_above and model_saving_aboce are one argument: keep one.")
        self._check_names()
        self._check_numbers()
        if self.later.compile_kwargs and not self.compile:
            raise ValueError("compile_kwargs do nothing without compile=True.")
        # Now, and not when the first checkpoint is due.
        native_cadence(self.checkpoint_every)
        rescue_kinds(self.handlers)

    def _check_place(self, number: int) -> None:
        """A number for ``resume`` is a place in the row of checkpoints, from 1 on; so all of them must be there."""
        if number < 1:
            raise ValueError(f"resume={number}: the first checkpoint is 1; -1 is the newest.")
        if not self.later.multiple_checkpoints or self.later.max_checkpoints is not None:
            raise ValueError(
                f"resume={number} counts checkpoints, and not all of them are kept here: pass multiple_checkpoints="
                "True and no max_checkpoints, or resume=True for the newest."
            )

    def _check_names(self) -> None:
        if self.checkpoint is not None and (not isinstance(self.checkpoint, (str, Path)) or not str(self.checkpoint)):
            raise ValueError(f"checkpoint={self.checkpoint!r} must be the path of a folder, or None.")
        if self.track_name is not None and not isinstance(self.track_name, str):
            raise ValueError(f"track_name={self.track_name!r} must be a name, or None for that of the model's folder.")
        names = ("train_loss_metric_name", "val_loss_metric_name")
        for name in names:
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise ValueError(f"{name}={getattr(self, name)!r} must be a name.")
        if self.train_loss_metric_name == self.val_loss_metric_name:
            raise ValueError(
                f"{' and '.join(names)} are both {self.val_loss_metric_name!r}: two curves need two names."
            )

    def _check_numbers(self) -> None:
        _check_count("evaluate_every_n_steps", self.evaluate_every_n_steps)
        _check_count("grad_accumulation_steps", self.grad_accumulation_steps)
        if self.log_every != -1 and (not _is_whole(self.log_every) or self.log_every < 1):
            raise ValueError(f"log_every={self.log_every!r} must be at least 1, or -1 for once an epoch.")
        if not _is_whole(self.dataloader_num_workers) or self.dataloader_num_workers < 0:
            raise ValueError(f"dataloader_num_workers={self.dataloader_num_workers!r} must be at least 0.")
        if self.clip_grad is not None and (not _is_number(self.clip_grad) or not 0 < self.clip_grad < math.inf):
            raise ValueError(f"clip_grad={self.clip_grad!r} must be a positive number, or None for no clipping.")
        for name in ("model_saving_below", "model_saving_above", "model_saving_aboce"):
            value = getattr(self, name)
            if value is not None and (not _is_number(value) or math.isnan(value)):
                raise ValueError(f"{name}={value!r} must be a number, or None.")
            if value is not None and (not self.model_saving or self.later.disable_model_saving):
                raise ValueError(f"{name}={value} does nothing without model_saving: leave it out.")
        bytes_of(self.max_shard_size)

    @property
    def above(self) -> float | None:
        return self.model_saving_aboce if self.model_saving_above is None else self.model_saving_above

    @property
    def model_folder(self) -> Path:
        return Path(self.model_path)

    @property
    def checkpoint_folder(self) -> Path:
        """Where checkpoints go: beside the model, unless it is said."""
        if self.checkpoint is not None:
            return Path(self.checkpoint)
        whole = Path(self.model_path).absolute()
        return Path(self.model_path).parent / f"checkpoint-{whole.name}" if whole.name else whole / "checkpoint"

    @property
    def names_taken(self) -> dict[str, str]:
        """Names under which something else is logged than a Metric, and what."""
        losses = dict.fromkeys(("loss", "valid_loss", self.val_loss_metric_name), "the validation loss")
        return {**losses, self.train_loss_metric_name: "the training loss", "learning_rate": "the learning rate"}

    @property
    def project(self) -> str:
        return self.track_name or Path(self.model_path).absolute().name


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_count(name: str, value: Any) -> None:
    if value is not None and (not _is_whole(value) or value < 1):
        raise ValueError(f"{name}={value!r} must be a whole number of at least 1, or None.")


def _set_booleans(holder: object, names: str) -> None:
    for name in names.split():
        setattr(holder, name, truth(name, getattr(holder, name)))


def _number(value: object, default: float) -> float:
    return float(value) if isinstance(value, (int, float)) else default


def trainer_arguments(config: str | Path | Mapping[str, Any], beside: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a Trainer that a configuration holds, and those that were given beside it."""
    content = dict(config) if isinstance(config, Mapping) else read_config(Path(config))
    where = "config" if isinstance(config, Mapping) else str(config)
    values = content.get("trainer", {key: value for key, value in content.items() if key != "hps"})
    if not isinstance(values, Mapping):
        raise ValueError(f"{where}: trainer must be a mapping of the Trainer's arguments, not {values!r}.")
    arguments = dict(values)
    if "hps" in content:
        arguments.setdefault("hps_config", {"hps": content["hps"]})
    twice = sorted(set(arguments) & set(beside))
    if twice:
        raise ValueError(f"{where}: {', '.join(twice)} stands there and is given beside it: keep one.")
    arguments |= beside
    for needed in ("hps_config", "model_path"):
        if needed not in arguments:
            raise ValueError(f"{where}: {needed} is missing.")
    return arguments


def native_settings(settings: Settings, hps: HyperParameters, *, validates: bool, seed: int) -> dict[str, Any]:
    """What ``TrainingArguments`` is told, trackers aside."""
    later = settings.later
    saves = native_cadence(settings.checkpoint_every) if later.enable_checkpointing else "never"
    evaluates = settings.evaluate_every_n_steps
    compile_kwargs = dict(later.compile_kwargs or {})
    native: dict[str, Any] = {
        "output_dir": str(settings.checkpoint_folder),
        "num_train_epochs": hps.epochs,
        "max_steps": -1 if hps.max_steps is None else hps.max_steps,
        "per_device_train_batch_size": hps.batch_sizes[0],
        "per_device_eval_batch_size": hps.batch_sizes[1],
        "gradient_accumulation_steps": settings.grad_accumulation_steps or 1,
        "max_grad_norm": float(settings.clip_grad or 0.0),
        "set_grads_to_none": settings.set_to_none,
        "checkpoint_every": saves,
        "save_total_limit": later.checkpoints_kept,
        "take_over": later.take_over,
        "rescue_on": rescue_kinds(settings.handlers),
        "log_every": "1 epoch" if settings.log_every == -1 else f"{settings.log_every} steps",
        "evaluate_every": "never" if not validates else "1 epoch" if evaluates is None else f"{evaluates} steps",
        "eval_on_end": settings.eval_when_finish,
        "eval_on_start": settings.eval_when_start and validates,
        "train_sampling_strategy": "random" if settings.shuffle_train else "sequential",
        "dataloader_pin_memory": settings.dataloader_pin_memory,
        "dataloader_num_workers": settings.dataloader_num_workers,
        "dataloader_drop_last": later.dataloader_drop_last,
        "gradient_checkpointing": later.gradient_checkpointing,
        "gradient_checkpointing_kwargs": later.gradient_checkpointing_kwargs,
        "torch_compile": settings.compile,
        "torch_compile_backend": compile_kwargs.pop("backend", None) if settings.compile else None,
        "torch_compile_mode": compile_kwargs.pop("mode", None) if settings.compile else None,
        "torch_empty_cache_steps": later.cleanup_cache_every_n_steps,
        # What trackers and config.yaml show; the optimizer itself is built from the hyperparameters.
        "learning_rate": _number(hps.optim_kwargs.get("lr"), 1e-3),
        "weight_decay": _number(hps.optim_kwargs.get("weight_decay"), 0.0),
        "remove_unused_columns": False,
        "seed": seed,
        "project": settings.project,
    }
    if compile_kwargs:
        raise ValueError(f"compile_kwargs has {sorted(compile_kwargs)}; 'backend' and 'mode' are what it may have.")
    if not settings.verbose:
        native |= {"disable_tqdm": True, "log_level": "error"}
    return native


def checkpoint_only_where_it_acts(settings: dict[str, Any], model: object) -> None:
    """Warn, as ACCMT does, where ``gradient_checkpointing`` finds nothing to act on."""
    if settings["gradient_checkpointing"] and not hasattr(model, "gradient_checkpointing_enable"):
        settings["gradient_checkpointing"] = False
        warnings.warn(
            f"gradient_checkpointing=True does nothing: {type(model).__name__} has no gradient_checkpointing_enable().",
            TrainwrightWarning,
            stacklevel=5,
        )


def say_needless(names: list[str]) -> None:
    """Warn of arguments that act on nothing."""
    if not names:
        return
    warnings.warn(f"{', '.join(names)} change nothing here: leave them out.", TrainwrightWarning, stacklevel=3)
