"""Values as they arrive from YAML, JSON and command lines, turned into the types the fields declare."""

import json
import os
import typing
from collections.abc import Callable
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any

from trainwright.config.accelerations import ACCELERATION_WORDS, ACCELERATIONS
from trainwright.config.accelerator_options import AcceleratorOptions
from trainwright.config.enums import (
    DebugOption,
    HubStrategy,
    IntervalStrategy,
    OptimizerNames,
    SaveStrategy,
    SchedulerType,
)
from trainwright.config.errors import ConfigError
from trainwright.config.fields import AllFields, is_ours
from trainwright.config.intervals import coerce_cadences
from trainwright.config.limits import coerce_limits
from trainwright.config.registry import check_name

_ENUMS: dict[str, type[Enum]] = {
    "eval_strategy": IntervalStrategy,
    "logging_strategy": IntervalStrategy,
    "save_strategy": SaveStrategy,
    "hub_strategy": HubStrategy,
}
#: Arguments that name something registered; what transformers has too stays a member of its enum.
NAMES: dict[str, tuple[str, type[Enum]]] = {
    "lr_scheduler_type": ("scheduler", SchedulerType),
    "optim": ("optimizer", OptimizerNames),
}
_JSON_FIELDS = (
    "accelerator_config",
    "fsdp_config",
    "deepspeed",
    "gradient_checkpointing_kwargs",
    "lr_scheduler_kwargs",
    "tracker_options",
)
#: Those that may also name a JSON file.
_FILE_FIELDS = ("deepspeed", "fsdp_config")
_LIST_FIELDS = ("label_names", "include_for_metrics", "rescue_on", "tags")
_PATH_FIELDS = ("output_dir", "logging_dir")
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def coerce(args: AllFields) -> None:
    """Bring every field to its declared type, or say which one cannot be."""
    for name, kind in _scalar_kinds().items():
        # Dropped names are read from the raw storage; while arguments are built both agree.
        value = args.__dict__.get(name)
        if value is not None and is_ours(args, name):
            args.__dict__[name] = _CONVERTERS[kind](name, value)
    for name in _JSON_FIELDS:
        if is_ours(args, name):
            setattr(args, name, _from_json(name, getattr(args, name)))
    for name in args.json_fields_of_subclass():
        if name not in _JSON_FIELDS:
            setattr(args, name, _from_json(name, getattr(args, name)))
    args.accelerator_config = _accelerator_options(args.accelerator_config)
    for name in _LIST_FIELDS:
        value = getattr(args, name)
        if isinstance(value, str) and is_ours(args, name):
            setattr(args, name, [value])
    for name in _PATH_FIELDS:
        value = getattr(args, name)
        if value is not None:
            setattr(args, name, os.path.expanduser(os.fspath(value)))
    for name, kind in _ENUMS.items():
        setattr(args, name, _to_enum(name, kind, getattr(args, name)))
    for name in NAMES:
        setattr(args, name, registered_name(name, getattr(args, name)))
    args.debug = _debug_options(args.debug)
    coerce_cadences(args)
    coerce_limits(args)
    _own_words(args)


def plain_value(text: str) -> Any:
    """Read one word as the bool, number or None it spells; anything else stays text."""
    lowered = text.strip().lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    if lowered in ("none", "null"):
        return None
    for reader in (int, float):
        try:
            return reader(text)
        except ValueError:
            continue
    return text


@cache
def _scalar_kinds() -> dict[str, type]:
    """Fields whose type is one of bool, int and float, perhaps with None."""
    kinds: dict[str, type] = {}
    for name, hint in typing.get_type_hints(AllFields).items():
        members = [member for member in (typing.get_args(hint) or (hint,)) if member is not NoneType]
        if len(members) == 1 and members[0] in _CONVERTERS:
            kinds[name] = members[0]
    return kinds


def _to_bool(name: str, value: object) -> bool:
    if isinstance(value, str) and value.strip().lower() in (*_TRUE, *_FALSE):
        return value.strip().lower() in _TRUE
    if isinstance(value, str) or value not in (0, 1):
        raise ValueError(f"{name}={value!r} must be true or false.")
    return bool(value)


def _to_int(name: str, value: object) -> int:
    number = _to_float(name, value)
    if number != int(number):
        raise ValueError(f"{name}={value!r} must be a whole number.")
    return int(value) if isinstance(value, int) else int(number)


def _to_float(name: str, value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"{name}={value!r} must be a number, not true or false.")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{name} is too large a number.") from None
    except (TypeError, ValueError):
        raise ValueError(f"{name}={value!r} must be a number.") from None
    if number != number or number in (float("inf"), float("-inf")):
        raise ValueError(f"{name}={value!r} must be a finite number.")
    return value if type(value) in (int, float) else number  # an int given for a float stays one, as in transformers


_CONVERTERS: dict[type, Callable[[str, Any], Any]] = {bool: _to_bool, int: _to_int, float: _to_float}


def _to_enum(name: str, kind: type[Enum], value: object) -> Enum:
    if value is False and kind in (IntervalStrategy, SaveStrategy):
        value = "no"  # YAML 1.1 reads a bare `no` as false
    try:
        return kind(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def registered_name(argument: str, value: object) -> Any:
    """``value`` as a member of the argument's enum, or the text itself for a name that others registered."""
    kind, enum = NAMES[argument]
    word = getattr(value, "value", value)
    check_name(kind, word, argument)
    return enum(word) if word in enum._value2member_map_ else word


def _from_json(name: str, value: object) -> Any:
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except RecursionError:
            raise ValueError(f"{name} has too many levels inside each other.") from None
        except ValueError as error:
            raise ValueError(f'{name} starts like JSON but is not: {error}. Quote keys and strings with ".') from None
    elif isinstance(value, str) and name in _FILE_FIELDS and Path(value).is_file():
        value = _json_in_file(name, value)
    return _plain_values(value) if isinstance(value, dict) else value


def _json_in_file(name: str, path: str) -> Any:
    from trainwright.config.yaml12 import read_text_file

    try:
        found = json.loads(read_text_file(path))
    except RecursionError:
        raise ValueError(f"{name}={path!r} has too many levels inside each other.") from None
    except ConfigError as error:
        raise ValueError(f"{name} is neither JSON nor a readable file: {error}") from None
    except ValueError as error:
        raise ValueError(f"{name}={path!r} is not JSON: {error}.") from None
    if not isinstance(found, dict):
        raise ValueError(f'{name}={path!r} must hold an object: {{"key": value}}.')
    return found


def _accelerator_options(value: object) -> Any:
    """The options, whether they came as a dict, as a JSON file or as accelerate's own object."""
    if isinstance(value, str):
        value = _plain_values(_json_in_file("accelerator_config", value))
    elif not isinstance(value, AcceleratorOptions) and hasattr(value, "to_dict"):
        value = value.to_dict()
    return AcceleratorOptions(value or {}) if value is None or isinstance(value, dict) else value


def _plain_values(mapping: dict[str, Any]) -> dict[str, Any]:
    """Numbers and booleans that came as text, at any depth (YAML reads 1e-6 as text)."""
    return {key: _plain(value) for key, value in mapping.items()}


def _plain(value: object) -> Any:
    if isinstance(value, dict):
        return _plain_values(value)
    return plain_value(value) if isinstance(value, str) and value.lower() not in ("none", "null") else value


def _debug_options(value: Any) -> list[DebugOption]:
    words = value.split() if isinstance(value, str) else (value or [])
    try:
        return [DebugOption(word) for word in words]
    except ValueError as error:
        raise ValueError(f"debug: {error}") from None


def _accelerations(value: object) -> str | list[str]:
    """One word for all, or names with commas between them, as a command line has them."""
    if not isinstance(value, str):
        raise ValueError(
            f"acceleration={value!r} must be one of {list(ACCELERATION_WORDS)}, or a list of {list(ACCELERATIONS)}."
        )
    names = [name.strip() for name in value.split(",") if name.strip()]
    return value if value in ACCELERATION_WORDS or not names else names


def _workers(value: object) -> int:
    try:
        return _to_int("dataloader_num_workers", value)
    except ValueError as error:
        raise ValueError(f'dataloader_num_workers={value!r} must be a whole number, or "auto".') from error


def _own_words(args: AllFields) -> None:
    """Arguments whose one word may be written in several ways."""
    if isinstance(args.include_num_input_tokens_seen, bool):
        args.include_num_input_tokens_seen = "all" if args.include_num_input_tokens_seen else "no"
    args.train_sampling_strategy = str(args.train_sampling_strategy)
    if is_ours(args, "micro_batch") and isinstance(args.micro_batch, str) and args.micro_batch != "auto":
        args.micro_batch = _to_int("micro_batch", args.micro_batch)
    if args.dataloader_num_workers != "auto":
        args.dataloader_num_workers = _workers(args.dataloader_num_workers)
    if is_ours(args, "acceleration") and not isinstance(args.acceleration, list):
        args.acceleration = _accelerations("auto" if args.acceleration is None else args.acceleration)
    if args.max_grad_norm is None:
        args.max_grad_norm = 0.0  # an explicit None means off
    if args.eval_delay is None:
        args.eval_delay = 0
    # What to_dict shows in place of a secret is not one.
    if args.hub_token == "<HUB_TOKEN>":
        args.hub_token = None
