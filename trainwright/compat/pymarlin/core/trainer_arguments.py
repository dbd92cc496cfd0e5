"""PyMarlin's arguments, and what each is called by the one Trainer behind the doors."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainwright.compat.pymarlin.core.trainer_backend import (
    TrainerBackend,
    build_trainer_backend,
    description_in,
    native_name,
    refuse_apex,
)
from trainwright.compat.pymarlin.utils.checkpointer.checkpoint_utils import DefaultCheckpointerArguments
from trainwright.compat.pymarlin.utils.differential_privacy import DifferentialPrivacyArguments
from trainwright.compat.pymarlin.utils.distributed import DistributedTrainingArguments
from trainwright.compat.pymarlin.utils.stats.basic_stats import StatInitArguments
from trainwright.compat.pymarlin.utils.writer.base import WriterInitArguments
from trainwright.config.batch_sizes import BatchSizes
from trainwright.config.warnings import warn


class _Unnamed(str):
    """A backend's name that nobody has given."""


#: The default, which does not contradict a ``trainer_backend`` that is given.
UNNAMED = _Unnamed("sp")
_LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


@dataclass
class TrainerArguments:
    """How to train; the fields and defaults are PyMarlin's."""

    epochs: int = 1
    use_gpu: bool = True
    #: Samples in an optimizer step, over all processes.
    train_batch_size: int = 1
    #: Most samples that run at once on a device; "auto" finds it by trying.
    gpu_batch_size_limit: int | str = 512
    #: Samples in a validation batch, on each device.
    val_batch_size: int = 1
    #: Optimizer steps after which an epoch ends.
    max_train_steps_per_epoch: int | None = None
    #: Batches after which a validation loader ends.
    max_val_steps_per_epoch: int | None = None
    clip_grads: bool = True
    max_grad_norm: float = 1.0
    #: Go on from a checkpoint with new optimizers and schedulers, made for the epochs that are left.
    reset_optimizers_schedulers: bool = False
    checkpointer_args: DefaultCheckpointerArguments = field(default_factory=DefaultCheckpointerArguments)
    #: Ranks; None takes them from the environment, as torchrun and AzureML set it.
    distributed_training_args: DistributedTrainingArguments | None = None
    writers: list[Any] = field(default_factory=lambda: ["stdout", "tensorboard"])
    stats_args: StatInitArguments = field(default_factory=StatInitArguments)
    writer_args: WriterInitArguments = field(default_factory=WriterInitArguments)
    disable_tqdm: bool = False
    log_level: str = "INFO"
    #: sp, sp-dp, sp-amp, ddp, ddp-amp, or with the precision said: sp-bf16, sp-fp16, ddp-bf16, ddp-fp16.
    backend: str = UNNAMED
    amp_backend_native: bool = False
    amp_backend_apex: bool = False
    amp_level_apex: str = "O1"
    differential_privacy_args: DifferentialPrivacyArguments | None = None

    def __post_init__(self) -> None:
        if self.amp_backend_apex:
            refuse_apex()
        if self.differential_privacy_args is not None and not self.backend.endswith("-dp"):
            # PyMarlin trained without privacy then, and did not say so.
            raise ValueError(f"differential_privacy_args need backend='sp-dp' (with opacus), not {self.backend!r}.")
        if self.amp_level_apex != "O1":
            warn(f"amp_level_apex={self.amp_level_apex!r} is a setting of apex, which is not used here: it is ignored.")
        if self.amp_backend_native and not self.backend.endswith(("-amp", "-bf16", "-fp16")):
            # PyMarlin ignored it, and people believed it worked.
            warn(f"amp_backend_native=True does nothing by itself: set backend='{self.backend}-amp'.")
        if self.epochs < 1:
            raise ValueError(f"epochs must be at least 1, got {self.epochs}.")
        limit = self.gpu_batch_size_limit
        if limit != "auto" and (not isinstance(limit, int) or limit < 1):
            raise ValueError(f"gpu_batch_size_limit must be a number of samples or 'auto', got {limit!r}.")
        for name in ("max_train_steps_per_epoch", "max_val_steps_per_epoch"):
            steps = getattr(self, name)
            if steps is not None and steps < 1:
                raise ValueError(f"{name} must be at least 1, got {steps}; None is without a limit.")
        if str(self.log_level).upper() not in _LOG_LEVELS:
            raise ValueError(f"log_level={self.log_level!r} is not one of {', '.join(_LOG_LEVELS)}.")


def batch_sizes(args: TrainerArguments, world_size: int) -> BatchSizes:
    """How a global batch is spread over processes and micro-batches."""
    limit = None if isinstance(args.gpu_batch_size_limit, str) else args.gpu_batch_size_limit
    return BatchSizes.of_global(args.train_batch_size, world_size, limit)


def native_settings(
    args: TrainerArguments, sizes: BatchSizes, backend: str, seed: int, output_dir: Path
) -> dict[str, Any]:
    """The same settings for ``trainwright.TrainingArguments``."""
    settings: dict[str, Any] = {
        "output_dir": str(output_dir),
        "num_train_epochs": args.epochs,
        "per_device_train_batch_size": sizes.per_device,
        "per_device_eval_batch_size": args.val_batch_size,
        "gradient_accumulation_steps": sizes.accumulation,
        "max_grad_norm": args.max_grad_norm if args.clip_grads else 0.0,
        "use_cpu": not args.use_gpu,
        "logging_strategy": "epoch",
        "log_level": args.log_level.lower(),
        "disable_tqdm": args.disable_tqdm,
        "report_to": "none",
        "remove_unused_columns": False,
        "seed": seed,
        "backend": backend,
    }
    if args.gpu_batch_size_limit == "auto":
        settings["micro_batch"] = "auto"
    communication = args.distributed_training_args.backend if args.distributed_training_args else None
    if communication is not None and backend.startswith("ddp"):
        settings["ddp_backend"] = communication
    return settings


def chosen_backend(given: TrainerBackend | None, args: TrainerArguments) -> TrainerBackend:
    """The backend that is given as an object or by its name, but not as both."""
    if given is None:
        return build_trainer_backend(args.backend)
    named = native_name(given) if description_in(given) is not None else None
    if named is not None and args.backend is not UNNAMED and args.backend != named:
        raise ValueError(f"trainer_backend is {named!r} and args.backend {args.backend!r}: leave one of them out.")
    return given
