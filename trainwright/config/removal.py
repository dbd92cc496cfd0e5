"""Names that transformers dropped since v4, or has twice, and what becomes of each.

A dropped name is a data descriptor on the arguments class. While arguments are being built it holds what the user gave
(``None`` when nothing was given). Afterwards reading it shows what a v4 script expects to read, computed from the name
that replaced it, and writing it translates at once, so neither direction can fall out of step.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from trainwright.config.warnings import warn

if TYPE_CHECKING:
    from trainwright.config.fields import AllFields

READY = "_ready"
"""Key in an instance's ``__dict__``: set once ``__post_init__`` has finished."""


@dataclass(frozen=True)
class Rule:
    """What to do with one dropped name."""

    advice: str
    """What to write instead, or why nothing is needed; ends the sentence "`name` was removed: ..."."""

    apply: Callable[[Any, str, Any], None]
    """(arguments, name, value): carry the value over, or refuse it."""

    read: Callable[[Any, str], Any]
    """(arguments, name): the value a v4 script would read."""

    v4_default: Any
    """What the name held in v4 when nobody set it."""

    status: Literal["alias", "no effect", "refused"] = "alias"
    """For the table in ``hf_fields``."""

    is_removed: bool = True
    """False for a second name that transformers has beside the other."""


def default_of(args: AllFields, name: str) -> Any:
    """The default of a field of the arguments' own class (a subclass may have changed it)."""
    spec = type(args).__dataclass_fields__[name]
    if spec.default is not MISSING:
        return spec.default
    return None if spec.default_factory is MISSING else spec.default_factory()


def carry(args: AllFields, old: str, new: str, value: object) -> None:
    """Set ``new``, unless the user gave it a different value under its own name."""
    current = getattr(args, new)
    # Two values in one call contradict each other; later assignments and copies simply replace.
    if args.__dict__.get("_resolution") is None and current not in (value, default_of(args, new)):
        gone = " (removed)" if RULES[old].is_removed else ""
        raise ValueError(
            f"`{old}`{gone} asks for {new}={_shown(new, value)}, but {new}={_shown(new, current)} was given too: "
            f"keep only `{new}`."
        )
    setattr(args, new, value)


def _shown(name: str, value: object) -> str:
    return f"<{name.upper()}>" if name.endswith("token") else repr(value)


def _remembered(args: AllFields, name: str) -> Any:
    value = args.__dict__.get(name)
    return RULES[name].v4_default if value is None else value


def _renamed(new: str, v4_default: object) -> Rule:
    """The value moves to another name as it is."""
    return Rule(
        advice=f"use `{new}`",
        apply=lambda args, old, value: carry(args, old, new, value),
        read=lambda args, _: getattr(args, new),
        v4_default=v4_default,
    )


def _second_name(new: str) -> Rule:
    """Both names are in use, and always show the same value."""
    return replace(_renamed(new, None), advice=f"the same as `{new}`", is_removed=False)


def _overriding(new: str) -> Rule:
    """Like ``_renamed``, but v4 kept None under the old name until somebody set it."""
    return Rule(f"use `{new}`", lambda args, old, value: carry(args, old, new, value), _remembered, None)


def _switch(new: str, word: object, advice: str) -> Rule:
    """A flag that became one word of another argument; False only forbids that word."""

    def apply(args: AllFields, old: str, value: object) -> None:
        if value or getattr(args, new) == word:
            carry(args, old, new, word if value else type(args).__dataclass_fields__[new].default)

    return Rule(
        advice=advice,
        apply=apply,
        read=lambda args, _: getattr(args, new) == word,
        v4_default=False,
    )


def _inert(v4_default: object, advice: str) -> Rule:
    """Accepted and remembered; there is nothing left for it to do."""
    return Rule(advice=advice, apply=lambda *_: None, read=_remembered, v4_default=v4_default, status="no effect")


def _refused(v4_default: object, advice: str, harmless: tuple[Any, ...] = ()) -> Rule:
    """Accepted only in a value that asks for nothing."""

    def apply(args: AllFields, name: str, value: object) -> None:
        if value != v4_default and value not in harmless:
            raise ValueError(f"{name}={value!r} cannot be honoured: {advice}.")

    return Rule(advice=advice, apply=apply, read=_remembered, v4_default=v4_default, status="refused")


def _apply_tpu_cores(args: AllFields, old: str, value: int) -> None:
    carry(args, old, "engine", "jax")
    if value != 1:
        carry(args, old, "engine_devices", value)


def _apply_warmup_ratio(args: AllFields, old: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"warmup_ratio={value!r} must lie in [0, 1]; for a number of steps use `warmup_steps`.")
    # v4 scripts spell out warmup_ratio=0.0 beside warmup_steps; a share of nothing asks for nothing.
    if value > 0 or READY in args.__dict__:
        # 1.0 would read as one step; the largest share below it still rounds up to every step.
        carry(args, old, "warmup_steps", min(value, math.nextafter(1.0, 0.0)))


def _apply_include_inputs(args: AllFields, old: str, value: object) -> None:
    if value and "inputs" not in args.include_for_metrics:
        args.include_for_metrics = [*args.include_for_metrics, "inputs"]


def _apply_hub_name(args: AllFields, old: str, value: object) -> None:
    """Both halves of the old repository name end in hub_model_id."""
    owner = args.__dict__.get("push_to_hub_organization")
    name = args.__dict__.get("push_to_hub_model_id") or os.path.basename(os.path.normpath(args.output_dir or "."))
    carry(args, old, "hub_model_id", f"{owner}/{name}" if owner and "/" not in name else name)


def _apply_backend(args: AllFields, old: str, value: object) -> None:
    if value == "apex":
        raise ValueError(f"{old}='apex' cannot be honoured: torch's own mixed precision replaced it; use fp16=True.")


_IN_CONFIG = "say it in fsdp_config, as transformers does now"

RULES: dict[str, Rule] = {
    "activation_checkpointing": _second_name("gradient_checkpointing"),
    "activation_checkpointing_kwargs": _second_name("gradient_checkpointing_kwargs"),
    "evaluation_strategy": _renamed("eval_strategy", "no"),
    "warmup_ratio": Rule(
        "use `warmup_steps` with a number below 1",
        _apply_warmup_ratio,
        lambda args, _: float(args.warmup_steps) if 0 < args.warmup_steps < 1 else 0.0,
        0.0,
    ),
    "group_by_length": _switch(
        "train_sampling_strategy", "group_by_length", 'use train_sampling_strategy="group_by_length"'
    ),
    "no_cuda": _renamed("use_cpu", False),
    "per_gpu_train_batch_size": _overriding("per_device_train_batch_size"),
    "per_gpu_eval_batch_size": _overriding("per_device_eval_batch_size"),
    "adafactor": _switch("optim", "adafactor", 'use optim="adafactor"'),
    "torchdynamo": _renamed("torch_compile_backend", None),
    "include_inputs_for_metrics": Rule(
        'use include_for_metrics=["inputs"]',
        _apply_include_inputs,
        lambda args, _: "inputs" in args.include_for_metrics,
        False,
    ),
    "include_tokens_per_second": Rule(
        'use include_num_input_tokens_seen="all", which also reports tokens per second',
        lambda args, old, value: carry(args, old, "include_num_input_tokens_seen", "all") if value else None,
        lambda args, _: args.include_num_input_tokens_seen != "no",
        False,
    ),
    "push_to_hub_token": _renamed("hub_token", None),
    "push_to_hub_model_id": Rule("use `hub_model_id`", _apply_hub_name, _remembered, None),
    "push_to_hub_organization": Rule('use hub_model_id="organization/name"', _apply_hub_name, _remembered, None),
    "overwrite_output_dir": _inert(False, "nothing is needed, an existing output_dir is never emptied"),
    "save_safetensors": _inert(True, "nothing is needed, weights are always saved as safetensors"),
    "half_precision_backend": Rule("use `fp16` or `bf16`", _apply_backend, _remembered, "auto", "no effect"),
    "fp16_backend": Rule("use `fp16` or `bf16`", _apply_backend, _remembered, "auto", "no effect"),
    "fp16_opt_level": _inert("O1", "it belonged to apex; use `fp16` or `bf16`"),
    "use_mps_device": _inert(False, "nothing is needed, an Apple GPU is used when there is one"),
    "jit_mode_eval": _inert(False, "use `torch_compile` for faster evaluation"),
    "use_legacy_prediction_loop": _inert(False, "nothing is needed, there is one prediction loop"),
    "ray_scope": _inert("last", "it only chose how Ray Tune ranks trials"),
    "past_index": _refused(-1, "models that pass memory from batch to batch are not supported"),
    "mp_parameters": _refused("", "SageMaker model parallelism is not supported", harmless=({}, "{}")),
    "tpu_num_cores": Rule(
        advice='use `engine="jax"` with `engine_devices`; on a TPU it is untested',
        apply=_apply_tpu_cores,
        read=_remembered,
        v4_default=None,
    ),
    "tpu_metrics_debug": _refused(False, 'those metrics are torch_xla\'s, and TPUs are reached through engine="jax"'),
    "fsdp_min_num_params": _refused(0, _IN_CONFIG),
    "fsdp_transformer_layer_cls_to_wrap": _refused(None, _IN_CONFIG),
}


class RemovedName:
    """The descriptor behind a dropped name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        if instance is None:
            return None  # dataclasses read the default this way: None means "not given"
        if READY in instance.__dict__:
            return RULES[self.name].read(instance, self.name)
        return instance.__dict__.get(self.name)

    def __set__(self, instance: Any, value: Any) -> None:
        instance.__dict__[self.name] = value
        if READY in instance.__dict__ and value is not None:
            translate(instance, (self.name,))


def removed() -> Any:
    """Declare a dropped name. Typed ``Any`` so that the field keeps its v4 type for parsers and readers."""
    return RemovedName()


def second_name() -> Any:
    """Declare another name for a field."""
    return RemovedName()


def translate(args: AllFields, names: Iterable[str] = tuple(RULES)) -> None:
    """Carry every dropped name that was given to its replacement, with one warning for all of them."""
    given = {name: args.__dict__[name] for name in names if args.__dict__.get(name) is not None}
    for name, value in given.items():
        RULES[name].apply(args, name, value)
    for name in given:
        if RULES[name].read is not _remembered:
            args.__dict__[name] = None  # its replacement holds the value from here on
    gone = [name for name in given if RULES[name].is_removed]
    if gone:
        warn("; ".join(f"`{name}` was removed: {RULES[name].advice}" for name in gone) + ".", FutureWarning)
