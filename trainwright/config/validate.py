"""Wrong values and contradictions, refused before anything runs. One rule per function; each message names the fix."""

import math
from collections.abc import Callable
from typing import Any

from trainwright.config.accelerations import ACCELERATION_WORDS, ACCELERATIONS
from trainwright.config.derive import FOREIGN_TRACKERS, METRIC_SCHEDULES
from trainwright.config.engines import ENGINES
from trainwright.config.enums import DebugOption, IntervalStrategy, SamplingStrategy, SaveStrategy
from trainwright.config.fields import AllFields, is_ours, ours
from trainwright.config.fields.data import WORKER_START_METHODS
from trainwright.config.fields.distributed import DDP_BACKENDS
from trainwright.config.fields.logs import LOG_LEVELS
from trainwright.config.fields.survival import FORMAT_VARIABLE
from trainwright.config.intervals import TOPICS
from trainwright.config.limits import check_limits
from trainwright.config.parallel import check_parallel
from trainwright.config.probe import probe_for
from trainwright.config.profile import parse_profile
from trainwright.config.registry import check_name, is_registered, registered, split_reference, suggestion

CHECKPOINT_FORMATS = ("trainwright", "hf")
_EVALUATE = 'set eval_strategy to "steps" or "epoch", or evaluate_every to something like "500 steps"'


def _refuse(condition: object, message: str) -> None:
    if condition:
        raise ValueError(message)


def _at_least(args: AllFields, name: str, least: float) -> None:
    value = getattr(args, name)
    _refuse(value is not None and value < least, f"{name}={value} must be at least {least}.")


def check_sizes(args: AllFields) -> None:
    """Counts that cannot be zero."""
    for name in (
        "per_device_train_batch_size",
        "per_device_eval_batch_size",
        "gradient_accumulation_steps",
        "eval_accumulation_steps",
        "torch_empty_cache_steps",
        "dataloader_prefetch_factor",
    ):
        _at_least(args, name, 1)


def check_not_negative(args: AllFields) -> None:
    """Amounts that cannot be below zero."""
    for name in (
        "learning_rate",
        "weight_decay",
        "adam_epsilon",
        "max_grad_norm",
        "warmup_steps",
        "eval_delay",
        "neftune_noise_alpha",
        "ddp_timeout",
    ):
        _at_least(args, name, 0)
    if args.dataloader_num_workers != "auto":
        _at_least(args, "dataloader_num_workers", 0)


def check_shares(args: AllFields) -> None:
    """Numbers that must lie in [0, 1)."""
    for name in ("label_smoothing_factor", "adam_beta1", "adam_beta2"):
        value = getattr(args, name)
        _refuse(not 0 <= value < 1, f"{name}={value} must lie in [0, 1).")


def check_seeds(args: AllFields) -> None:
    """numpy takes seeds of 32 bits only."""
    for name in ("seed", "data_seed"):
        value = getattr(args, name)
        _refuse(value is not None and not 0 <= value < 2**32, f"{name}={value} must lie in [0, 2**32).")


def check_length(args: AllFields) -> None:
    """A run must have an end."""
    _refuse(
        args.max_steps == 0 or args.max_steps < -1,
        f"max_steps={args.max_steps} trains nothing: give a positive number of steps, or -1 (as if it were left out) "
        "for as many as num_train_epochs makes.",
    )
    _refuse(
        args.max_steps <= 0 and args.num_train_epochs <= 0,
        f"num_train_epochs={args.num_train_epochs} trains nothing: give a positive number, or set max_steps.",
    )


def check_intervals(args: AllFields) -> None:
    """Step intervals that are in force must be positive, and whole from 1 on."""
    for topic in TOPICS:
        strategy, steps = topic.strategy, topic.steps
        if getattr(args, strategy) != "steps" or getattr(ours(args), topic.every) is not None:
            continue
        value = getattr(args, steps)
        _refuse(value <= 0, f'{steps}={value} with {strategy}="steps": give a positive number or set {strategy}="no".')
        _refuse(value >= 1 and value != int(value), f"{steps}={value} must be a whole number, or below 1 for a share.")


def check_best_model(args: AllFields) -> None:
    """The best model is found by evaluating; it is saved when it appears, so saving may be off otherwise."""
    _refuse(
        args.load_best_model_at_end and args.eval_strategy == IntervalStrategy.NO,
        f"load_best_model_at_end=True needs evaluations: {_EVALUATE}.",
    )


def check_save_best(args: AllFields) -> None:
    """Saving on improvement needs something that can improve."""
    if args.eval_strategy != IntervalStrategy.NO:
        return
    _refuse(args.save_strategy == SaveStrategy.BEST, f'save_strategy="best" needs evaluations: {_EVALUATE}.')
    _refuse(ours(args).save_best, f"save_best=True needs evaluations: {_EVALUATE}.")


def check_metric_schedule(args: AllFields) -> None:
    """Schedules that follow a metric need evaluations."""
    _refuse(
        args.lr_scheduler_type in METRIC_SCHEDULES and args.eval_strategy == IntervalStrategy.NO,
        f'lr_scheduler_type="{args.lr_scheduler_type}" follows a metric: {_EVALUATE}.',
    )


def check_precision(args: AllFields) -> None:
    """One half-precision format at a time."""
    _refuse(args.fp16 and args.bf16, "fp16=True and bf16=True exclude each other: keep one (bf16 where it exists).")
    _refuse(
        args.fp16_full_eval and args.bf16_full_eval,
        "fp16_full_eval=True and bf16_full_eval=True exclude each other: keep one.",
    )


def check_workers(args: AllFields) -> None:
    """Options of worker processes need worker processes."""
    if args.dataloader_num_workers == "auto" or int(args.dataloader_num_workers) > 0:
        return
    for name in ("dataloader_persistent_workers", "dataloader_prefetch_factor", "dataloader_multiprocessing_context"):
        value = getattr(args, name)
        _refuse(value, f"{name}={value!r} needs worker processes: set dataloader_num_workers to 1 or more.")


def check_words(args: AllFields) -> None:
    """Arguments that take one of a few words."""
    for name, choices in (
        ("log_level", tuple(LOG_LEVELS)),
        ("log_level_replica", tuple(LOG_LEVELS)),
        ("train_sampling_strategy", tuple(member.value for member in SamplingStrategy)),
        ("include_num_input_tokens_seen", ("no", "all", "non_padding")),
        ("dataloader_multiprocessing_context", (None, *WORKER_START_METHODS)),
        ("ddp_backend", (None, *DDP_BACKENDS)),
    ):
        value = getattr(args, name)
        listed = ", ".join(repr(choice) for choice in choices)
        near = "" if value in choices else suggestion(str(value), [choice for choice in choices if choice is not None])
        _refuse(value not in choices, f"{name}={value!r} is not known{near}; choose one of {listed}.")
    unknown = set(args.include_for_metrics) - {"inputs", "loss"}
    _refuse(unknown, f"include_for_metrics has {sorted(unknown)}; choose from 'inputs' and 'loss'.")


def check_mappings(args: AllFields) -> None:
    """Options must have become dicts by now."""
    for name in ("lr_scheduler_kwargs", "gradient_checkpointing_kwargs", "liger_kernel_config"):
        value = getattr(args, name)
        _refuse(
            value is not None and not isinstance(value, dict), f"{name}={value!r} must be a dict or JSON text of one."
        )


def check_trackers(args: AllFields) -> None:
    """Every tracker named must be one we can write to; options must be for one that is chosen."""
    for name in args.report_to or ():
        if isinstance(name, str) and split_reference(name) is None:
            _refuse(name in ("none", "all"), f"report_to: {name!r} stands alone; beside other trackers leave it out.")
            check_name("tracker", name, "report_to", also=("none", "all", *FOREIGN_TRACKERS, "my_file.py:MyTracker"))
    options = ours(args).tracker_options
    _refuse(
        options is not None and not (isinstance(options, dict) and all(isinstance(o, dict) for o in options.values())),
        'tracker_options must be a dict of dicts, or JSON text of one, like {"wandb": {"entity": "us"}}.',
    )
    own = [str(getattr(t, "__name__", t if isinstance(t, str) else type(t).__name__)) for t in args.report_to or ()]
    named = {*FOREIGN_TRACKERS, *(text.rpartition(":")[2] for text in own)}
    for name in set(options or ()) - named:
        if not is_registered("tracker", name):
            near = suggestion(name, [*named, *registered("tracker")])
            raise ValueError(f"tracker_options has {name!r}{near}, which is no tracker in report_to.")


def check_debug(args: AllFields) -> None:
    """TPU debugging is torch_xla's."""
    _refuse(
        DebugOption.TPU_METRICS_DEBUG in args.debug,
        'debug="tpu_metrics_debug" cannot be honoured: those metrics are torch_xla\'s; remove it.',
    )


def _check_engine_devices(args: AllFields) -> None:
    _at_least(args, "engine_devices", 1)
    instead = {
        "torch": "start one process for each GPU with torchrun or `trainwright launch`",
        "mindspore": "it trains on one device",
    }
    _refuse(
        args.engine_devices > 1 and args.engine != "jax",
        f"engine_devices={args.engine_devices} is for engine='jax'; with engine={args.engine!r} leave it out: "
        f"{instead.get(args.engine)}.",
    )


def check_native(args: AllFields) -> None:
    """Our own arguments."""
    if is_ours(args, "engine"):
        _refuse(args.engine not in ENGINES, f"engine={args.engine!r} is not available; choose from {list(ENGINES)}.")
        _check_engine_devices(args)
    if is_ours(args, "acceleration"):
        _check_acceleration(args.acceleration)
    if is_ours(args, "memory_budget") and args.memory_budget is not None:
        _check_memory_budget(args)
    if is_ours(args, "profile") and args.profile is not None:
        parse_profile(args.profile)
    if is_ours(args, "log_loss_per") and args.log_loss_per is not None:
        _refuse(
            not isinstance(args.log_loss_per, str) or not args.log_loss_per,
            f'log_loss_per={args.log_loss_per!r}: write "class", or the name of a column of the training data.',
        )
        _refuse(
            args.engine != "torch",
            f"log_loss_per={args.log_loss_per!r} is for engine='torch'; with engine={args.engine!r} leave it out.",
        )
    if is_ours(args, "log_histograms"):
        _at_least(args, "log_histograms", 1)
    if is_ours(args, "max_tokens_per_batch"):
        _at_least(args, "max_tokens_per_batch", 1)
    if is_ours(args, "sampling_temperature"):
        _check_sampling(args)
    if is_ours(args, "micro_batch") and args.micro_batch != "auto":
        _at_least(args, "micro_batch", 1)


def _check_sampling(args: AllFields) -> None:
    temperature = args.sampling_temperature
    _refuse(
        temperature is not None and not 0 < temperature < math.inf,
        f"sampling_temperature={temperature} must be above 0: 1 leaves the shares of the data, more makes them alike.",
    )
    for name in ("sampling_column", "sampling_temperature"):
        value = getattr(args, name)
        _refuse(
            value is not None and args.train_sampling_strategy != "balanced",
            f"{name}={value!r} acts with train_sampling_strategy='balanced' alone: set that too, or leave it out.",
        )


def _check_memory_budget(args: AllFields) -> None:
    given = f"memory_budget={args.memory_budget!r}"
    _refuse(
        not 0 <= (args.memory_budget or 0.0) <= 1,
        f"{given} must be from 0 (what is needed in backward is computed again) to 1 (everything is kept).",
    )
    _refuse(
        args.gradient_checkpointing,
        f"{given} and gradient_checkpointing=True both say what is computed again: leave one of them out.",
    )
    _refuse(args.engine != "torch", f"{given} is for engine='torch'; with engine={args.engine!r} leave it out.")
    _refuse(args.torch_compile, f"{given} is for blocks that acceleration compiles: leave torch_compile=True out.")
    left_out = args.acceleration == "off" or (isinstance(args.acceleration, list) and "blocks" not in args.acceleration)
    _refuse(
        left_out,
        f"{given} needs compiled blocks, and acceleration={args.acceleration!r} leaves them out: use 'auto', 'max' or "
        "a list with 'blocks' in it.",
    )


def _check_acceleration(wanted: str | list[str] | None) -> None:
    names = [wanted] if isinstance(wanted, str) else wanted or []
    unknown = [
        name for name in names if name not in (*ACCELERATIONS, *(ACCELERATION_WORDS if names == [wanted] else ()))
    ]
    _refuse(
        bool(unknown),
        f"acceleration={wanted!r}: {unknown} is not known; choose from {list(ACCELERATION_WORDS)}, or give a list of "
        f"{list(ACCELERATIONS)}.",
    )


def check_restarts(args: AllFields) -> None:
    """How a run stops and goes on."""
    resume, form = ours(args).resume, ours(args).checkpoint_format
    _refuse(
        resume not in (None, "auto"),
        f'resume={resume!r} is not known; "auto" continues from the newest checkpoint, None starts anew. '
        "A particular checkpoint goes to train(resume_from_checkpoint=...).",
    )
    _refuse(
        form not in CHECKPOINT_FORMATS,
        f"checkpoint_format={form!r} is not known; choose one of {list(CHECKPOINT_FORMATS)} "
        f"(the environment variable {FORMAT_VARIABLE} sets the default).",
    )
    for name in ("resume", "rewind_on_nonfinite"):
        value = getattr(ours(args), name)
        _refuse(
            value and args.save_only_model,
            f"{name}={value!r} needs whole checkpoints, and save_only_model=True writes weights only: "
            "remove one of them.",
        )


def check_survival(args: AllFields) -> None:
    """Limits of what a run puts up with."""
    for name, least in (
        ("keep_every", 1),
        ("max_nonfinite_steps", 1),
        ("check_weights_every", 1),
        ("preemption_deadline", 0),
    ):
        value = getattr(ours(args), name)
        _refuse(value is not None and value < least, f"{name}={value} must be at least {least}.")
    hours, seconds, code = ours(args).max_hours, ours(args).watchdog_seconds, ours(args).preempted_exit_code
    _refuse(hours is not None and hours <= 0, f"max_hours={hours} must be positive; leave it out for no limit.")
    _refuse(seconds is not None and seconds < 0, f"watchdog_seconds={seconds} must not be negative; 0 switches it off.")
    _refuse(not 0 <= code <= 255, f"preempted_exit_code={code} must lie in [0, 255], the exit codes there are.")
    exact = ours(args).exact
    _refuse(exact not in ("warn", "require"), f"exact={exact!r} is not one of 'warn' and 'require'.")
    unknown = set(ours(args).rescue_on or ()) - {"interrupt", "out_of_memory", "error"}
    _refuse(unknown, f"rescue_on has {sorted(unknown)}; choose from 'interrupt', 'out_of_memory' and 'error'.")
    _refuse(
        ours(args).watchdog_exit and not seconds,
        "watchdog_exit=True needs the watchdog: give watchdog_seconds a positive number.",
    )
    _refuse(
        ours(args).rewind_on_nonfinite and ours(args).max_nonfinite_steps is None,
        "rewind_on_nonfinite=True goes back after max_nonfinite_steps in a row: give that a number.",
    )


CHECKS: tuple[Callable[[Any], None], ...] = (
    check_sizes,
    check_not_negative,
    check_shares,
    check_seeds,
    check_length,
    check_intervals,
    check_best_model,
    check_save_best,
    check_metric_schedule,
    check_precision,
    check_workers,
    check_words,
    check_mappings,
    check_trackers,
    check_debug,
    check_native,
    check_restarts,
    check_survival,
    check_limits,
    check_parallel,
)


def validate(args: AllFields) -> None:
    """Refuse what cannot be meant. Touches no framework; ``check_device`` asks the hardware later."""
    for check in CHECKS:
        check(args)


def check_device(args: AllFields) -> None:
    """Refuse number formats the device does not have. Loads the framework, so it runs when a Trainer is built."""
    probe = probe_for(args)
    device = probe.device(args.use_cpu)
    if is_ours(args, "engine") and args.engine != "torch":
        # Which precisions a graph has is the engine's to say, when a Trainer is built.
        return
    for name, supported, fix in (
        ("bf16", probe.supports_bf16, "use fp16=True or full precision"),
        ("bf16_full_eval", probe.supports_bf16, "use fp16_full_eval=True or full precision"),
        ("fp16", probe.supports_fp16, "use bf16=True or full precision"),
        ("fp16_full_eval", probe.supports_fp16, "use bf16_full_eval=True or full precision"),
        ("tf32", probe.supports_tf32, "leave tf32 unset; it needs an NVIDIA GPU of the Ampere generation or newer"),
    ):
        _refuse(getattr(args, name) and not supported(device), f"{name}=True is not available on {device}: {fix}.")
