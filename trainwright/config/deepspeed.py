"""DeepSpeed's configuration as Hugging Face writes it: ``"auto"`` is filled from the arguments, the rest compared."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from trainwright.config.errors import ConfigError
from trainwright.config.fields import ours
from trainwright.config.registry import suggestion
from trainwright.config.warnings import warn

if TYPE_CHECKING:
    from trainwright.config.arguments import TrainingArguments

AUTO = "auto"
#: ``backend="deepspeed"`` without a configuration.
DEFAULT: dict[str, Any] = {"zero_optimization": {"stage": 2}}

#: Sections that would take something out of our hands, or that our checkpoints know nothing of, with the way out.
_REFUSED = {
    "amp": "use bf16=True",
    "autotuning": "it starts trainings of its own",
    "checkpoint": "checkpoints are ours: save_strategy and save_steps say when",
    "compression_training": "use a recipe",
    "curriculum_learning": "the order of samples is ours: see train_sampling_strategy",
    "data_efficiency": "the order of samples is ours: see train_sampling_strategy",
    "elasticity": "a checkpoint goes on with any number of processes as it is",
    "hybrid_engine": "generation during training goes through the model itself",
    "pipeline": "models are not cut into stages",
    "progressive_layer_drop": "all layers take part in a step",
    "tensor_parallel": "use tensor_parallel_size with backend='fsdp'",
    "torch_autocast": "use bf16=True",
    "zenflow": "updates would be late by some steps",
}
#: What DeepSpeed reads on the top level; anything else it would pass over in silence.
_KNOWN = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "optimizer",
    "scheduler",
    "fp16",
    "bf16",
    "zero_optimization",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
    "activation_checkpointing",
    "aio",
    "comms_logger",
    "communication_data_type",
    "csv_monitor",
    "comet",
    "data_types",
    "disable_allgather",
    "dump_state",
    "flops_profiler",
    "gradient_predivide_factor",
    "memory_breakdown",
    "prescale_gradients",
    "sparse_gradients",
    "steps_per_print",
    "tensorboard",
    "wall_clock_breakdown",
    "wandb",
)
#: Sizes that follow from the width of a model: name, factor, power.
_BY_WIDTH = (
    ("reduce_bucket_size", 1.0, 2),
    ("stage3_prefetch_bucket_size", 0.9, 2),
    ("stage3_param_persistence_threshold", 10.0, 1),
)
#: DeepSpeed's names of optimizers, and how ``optim`` of the same kind begins.
_OPTIMIZERS = {"adam": "adamw", "adamw": "adamw", "sgd": "sgd", "adagrad": "adagrad"}
SCHEDULES = ("WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle", "LRRangeTest")


def stage_of(config: Mapping[str, Any]) -> int:
    """Which of ZeRO's stages: 1 spreads the optimizer's state, 2 gradients too, 3 weights too.

    >>> stage_of({"zero_optimization": {"stage": 3}})
    3
    """
    section = config.get("zero_optimization") or {}
    stage = section.get("stage", 0) if isinstance(section, Mapping) else section
    if stage not in (1, 2, 3):
        raise ConfigError(
            f"deepspeed: zero_optimization.stage={stage!r} spreads nothing: use 1, 2 or 3, or backend='ddp' without "
            "DeepSpeed."
        )
    return int(stage)


def resolved(args: TrainingArguments) -> dict[str, Any]:
    """The configuration with every ``"auto"`` that the arguments decide; contradictions are refused, all at once.

    What only a model or the length of a training tells stays ``"auto"``: see :func:`with_width` and
    :func:`schedule_of`.
    """
    assert not isinstance(args.deepspeed, str)
    config: dict[str, Any] = copy.deepcopy(dict(args.deepspeed or DEFAULT))
    _refuse_sections(config)
    stage_of(config)
    wrong = [text for text in (_settle(config, path, value, name) for path, value, name in _decided(args)) if text]
    wrong += _wrong_optimizer(config, args)
    if wrong:
        listed = "\n".join(f"- {text}" for text in wrong)
        raise ConfigError(
            f"deepspeed= and the other arguments contradict each other:\n{listed}\nCorrect one of the two, or write "
            f'"{AUTO}" in the DeepSpeed configuration.'
        )
    _check_schedule(config)
    _refuse_other_wrapper(config)
    _without_round_robin(config)
    _refuse_unknown_auto(config)
    return config


def _decided(args: TrainingArguments) -> Iterator[tuple[str, Any, str]]:
    """Settings that arguments decide: where in the configuration, the value, and the arguments' names."""
    size, pieces = args.per_device_train_batch_size, args.gradient_accumulation_steps
    yield "train_micro_batch_size_per_gpu", size, "per_device_train_batch_size"
    yield "gradient_accumulation_steps", pieces, "gradient_accumulation_steps"
    whole = size * pieces * args.world_size
    yield "train_batch_size", whole, "per_device_train_batch_size x gradient_accumulation_steps x processes"
    yield "gradient_clipping", float(args.max_grad_norm or 0.0), "max_grad_norm"
    yield "bf16.enabled", bool(args.bf16), "bf16"
    yield "fp16.enabled", bool(args.fp16), "fp16"
    yield "optimizer.params.lr", args.learning_rate, "learning_rate"
    yield "optimizer.params.betas", [args.adam_beta1, args.adam_beta2], "adam_beta1, adam_beta2"
    yield "optimizer.params.eps", args.adam_epsilon, "adam_epsilon"
    yield "optimizer.params.weight_decay", args.weight_decay, "weight_decay"
    yield "scheduler.params.warmup_max_lr", args.learning_rate, "learning_rate"


#: Written into the configuration where it is silent: DeepSpeed's own defaults are others.
_ALWAYS = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping", "bf16.enabled")


def _settle(config: dict[str, Any], path: str, value: object, name: str) -> str | None:
    """Fill one value in; returns what is wrong where another one stands there."""
    *sections, key = path.split(".")
    place: Any = config
    for section in sections:
        if not isinstance(place.get(section), dict):
            if path not in _ALWAYS:
                return None
            place[section] = {}
        place = place[section]
    given = place.get(key)
    if given == AUTO or (given is None and path in _ALWAYS):
        place[key] = value
    elif given is not None and not _same(given, value):
        return f"{path} is {given} there, {name} is {value}"
    return None


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, bool) or isinstance(other, bool):
        return bool(one) == bool(other)
    try:
        return math.isclose(float(one), float(other), rel_tol=1e-9)
    except (TypeError, ValueError):
        return one == other


def _wrong_optimizer(config: dict[str, Any], args: TrainingArguments) -> list[str]:
    """The section names our own optimizer of the same kind, so ``optim`` must be of that kind."""
    section = config.get("optimizer")
    if section is None:
        return []
    kind, chosen = str(section.get("type", "")).lower(), str(getattr(args.optim, "value", args.optim))
    if kind not in _OPTIMIZERS:
        raise ConfigError(
            f"deepspeed: optimizer.type={section.get('type')!r} is not offered ({', '.join(_OPTIMIZERS)} are): leave "
            "the section out and name an optimizer in optim=."
        )
    unknown = set(section.get("params") or {}) - {"lr", "betas", "eps", "weight_decay", "torch_adam", "adam_w_mode"}
    if unknown:
        raise ConfigError(
            f"deepspeed: optimizer.params.{min(unknown)} has no counterpart: leave the section out, and give the "
            "optimizer its options with optim_args= or optimizer_cls_and_kwargs=."
        )
    if kind == "adam" and (section.get("params") or {}).get("adam_w_mode") is False:
        raise ConfigError(
            "deepspeed: Adam with adam_w_mode=false decays through the gradient: leave the section out and pass "
            "optimizer_cls_and_kwargs=(torch.optim.Adam, {...}) to the Trainer."
        )
    if not chosen.startswith(_OPTIMIZERS[kind]):
        return [f"optimizer.type is {section['type']} there, optim is {chosen}"]
    return []


def _refuse_sections(config: Mapping[str, Any]) -> None:
    for name, section in config.items():
        is_on = section.get("enabled", True) if isinstance(section, Mapping) else bool(section)
        if name in _REFUSED and is_on:
            raise ConfigError(f"deepspeed: {name} is not supported: {_REFUSED[name]}.")
        if name not in _KNOWN and name not in _REFUSED:
            warn(f"deepspeed: {name!r} is not known and has no effect{suggestion(name, _KNOWN)}.")
    zero = config.get("zero_optimization") or {}
    for part in ("offload_optimizer", "offload_param"):
        place = zero.get(part) if isinstance(zero, Mapping) else None
        if isinstance(place, Mapping) and place.get("device") == "nvme":
            raise ConfigError(
                f"deepspeed: zero_optimization.{part}.device='nvme' keeps state in files of DeepSpeed's own, which our "
                "checkpoints do not hold: use 'cpu'."
            )


def _check_schedule(config: Mapping[str, Any]) -> None:
    section = config.get("scheduler")
    if section is not None and section.get("type") not in SCHEDULES:
        kind = str(section.get("type"))
        raise ConfigError(f"deepspeed: scheduler.type={kind!r} is not one of DeepSpeed's{suggestion(kind, SCHEDULES)}.")


def _refuse_other_wrapper(config: Mapping[str, Any]) -> None:
    kept_in = (config.get("data_types") or {}).get("grad_accum_dtype")
    if config["bf16"]["enabled"] and kept_in == "fp32" and stage_of(config) == 1:
        raise ConfigError(
            "deepspeed: stage 1 with bf16 and data_types.grad_accum_dtype='fp32' is another optimizer of DeepSpeed's, "
            "which is not supported: use stage 2."
        )


def _without_round_robin(config: dict[str, Any]) -> None:
    """It only spreads work, and with it DeepSpeed's helpers give one weight for another (0.19.0 to 0.19.8)."""
    zero = config["zero_optimization"]
    if isinstance(zero, dict) and zero.get("round_robin_gradients"):
        warn(
            "deepspeed: zero_optimization.round_robin_gradients is switched off: with it DeepSpeed mixes up weights "
            "when they are put together for a checkpoint."
        )
        zero["round_robin_gradients"] = False


def _refuse_unknown_auto(config: Mapping[str, Any]) -> None:
    later = {f"zero_optimization.{name}" for name, _, _ in _BY_WIDTH}
    later |= {f"scheduler.params.{name}" for name in ("total_num_steps", "warmup_num_steps", "warmup_min_lr")}
    left = [path for path in _autos(config, "") if path not in later]
    if left:
        raise ConfigError(
            f'deepspeed: "{AUTO}" is not known for {", ".join(left)}: give a value, or leave it out for DeepSpeed\'s '
            "own default."
        )


def _autos(value: object, path: str) -> Iterator[str]:
    if value == AUTO:
        yield path
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _autos(item, f"{path}.{key}".lstrip("."))


def with_width(config: dict[str, Any], width: int | None) -> dict[str, Any]:
    """``config`` with sizes that follow from a model's width; left to DeepSpeed where the model does not tell it.

    >>> with_width({"zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"}}, 10)
    {'zero_optimization': {'stage': 3, 'reduce_bucket_size': 100}}
    """
    zero = dict(config["zero_optimization"])
    for name, factor, power in _BY_WIDTH:
        if zero.get(name) == AUTO:
            zero[name] = None if width is None else int(factor * width**power)
            if zero[name] is None:
                del zero[name]
    return {**config, "zero_optimization": zero}


def schedule_of(
    config: Mapping[str, Any], args: TrainingArguments, total_steps: int
) -> tuple[str, dict[str, Any]] | None:
    """The learning-rate schedule that the configuration names, with its options; None where it names none."""
    section = config.get("scheduler")
    if section is None:
        return None
    later = {
        "total_num_steps": total_steps,
        # DeepSpeed wants at least one.
        "warmup_num_steps": max(1, args.get_warmup_steps(total_steps)),
        "warmup_min_lr": 0.0,
    }
    params = {name: later[name] if value == AUTO else value for name, value in (section.get("params") or {}).items()}
    return str(section["type"]), params


def check_deepspeed(args: TrainingArguments) -> None:
    """Refuse, before anything runs, what cannot go with DeepSpeed."""
    resolved(args)
    refused = {
        "fp16": (args.fp16, "its loss scale is not in our checkpoints: use bf16=True"),
        "fp16_full_eval": (args.fp16_full_eval, "it evaluates a copy of the model: unset it"),
        "bf16_full_eval": (args.bf16_full_eval, "it evaluates a copy of the model: unset it"),
        "torch_compile": (args.torch_compile, "DeepSpeed's hooks are not in what torch compiles: unset it"),
        "micro_batch": (
            ours(args).micro_batch == AUTO,
            "DeepSpeed cannot take back a step that did not fit: give it a number",
        ),
    }
    wrong = [f"{name}={getattr(args, name)!r}: {reason}" for name, (given, reason) in refused.items() if given]
    if wrong:
        raise ConfigError(f"With DeepSpeed these do not work: {'; '.join(wrong)}.")
