"""Arguments that were built with another class."""

from dataclasses import field, fields, is_dataclass, make_dataclass
from functools import cache
from typing import Any

from trainwright.config.arguments import TrainingArguments
from trainwright.config.fields import NATIVE
from trainwright.config.removal import RULES
from trainwright.config.seq2seq import Seq2SeqTrainingArguments

_MARKS = ("output_dir", "per_device_train_batch_size", "learning_rate")
# transformers fills these in by itself; passing them on would look like a choice of the user's.
_NOT_CARRIED = ("local_rank", "_resolution")


def adopt_arguments(other: object = None) -> TrainingArguments:
    """Our arguments from whatever a Trainer was given.

    Ours are returned as they are; ``None`` gives the defaults with ``output_dir="tmp_trainer"``; an instance of
    transformers' class or of a subclass of it is copied field by field. Fields a subclass added stay readable as
    attributes of the result.
    """
    if isinstance(other, TrainingArguments):
        return other
    if other is None:
        return TrainingArguments("tmp_trainer")
    if isinstance(other, type) or not is_dataclass(other) or not all(hasattr(other, name) for name in _MARKS):
        raise TypeError(f"args must be TrainingArguments, not {other!r}: build one with TrainingArguments(output_dir).")
    cls = Seq2SeqTrainingArguments if hasattr(other, "predict_with_generate") else TrainingArguments
    cls = _with_names_of(type(other), cls)
    ours = {field.name for field in fields(cls) if field.init}
    values = {field.name: getattr(other, field.name) for field in fields(other) if hasattr(other, field.name)}
    args = cls(**{name: value for name, value in values.items() if name in ours and _is_said(name, value, values)})
    for name, value in values.items():
        if name not in ours:
            setattr(args, name, value)
    return args


@cache
def _with_names_of(theirs: Any, cls: type[TrainingArguments]) -> type[TrainingArguments]:
    """``cls``, or one like it where ``theirs`` uses names of ours otherwise: as in a subclass, they stay so."""
    taken = [(one.name, one.type, field(default=None)) for one in fields(theirs) if one.name in NATIVE]
    return make_dataclass(cls.__name__, taken, bases=(cls,), repr=False) if taken else cls


def _is_said(name: str, value: object, values: dict[str, Any]) -> bool:
    """Whether a value was the user's and not merely what an older release stores when nothing is set."""
    if name in _NOT_CARRIED:
        return False
    if name == "logging_dir":
        return "tensorboard" in (values.get("report_to") or [])  # v4 always invents a directory
    if name == "fsdp_config":
        return bool(values.get("fsdp"))  # v4 fills it in for everybody
    return name not in RULES or value != RULES[name].v4_default
