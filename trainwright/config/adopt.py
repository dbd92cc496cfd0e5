"""Arguments that were built with another class."""

from dataclasses import field, fields, is_dataclass, make_dataclass
from functools import cache
from typing import Any

from trainwright.config.arguments import TrainingArguments
from trainwright.config.fields import NATIVE
from trainwright.config.origin import library_of
from trainwright.config.removal import RULES
from trainwright.config.seq2seq import Seq2SeqTrainingArguments

_MARKS = ("output_dir", "per_device_train_batch_size", "learning_rate")
# transformers fills these in by itself; passing them on would look like a choice of the user's.
_NOT_CARRIED = ("local_rank", "_resolution")


def adopt_arguments(other: object = None) -> TrainingArguments:
    """Our arguments from whatever a Trainer was given.

    Ours are returned as they are; ``None`` gives the defaults with ``output_dir="tmp_trainer"``; an instance of
    transformers' class or of a subclass of it is copied field by field. What comes from a subclass is still an instance
    of it, with its fields, properties and methods.
    """
    if isinstance(other, TrainingArguments):
        return other
    if other is None:
        return TrainingArguments("tmp_trainer")
    if isinstance(other, type) or not is_dataclass(other) or not all(hasattr(other, name) for name in _MARKS):
        raise TypeError(f"args must be TrainingArguments, not {other!r}: build one with TrainingArguments(output_dir).")
    cls = Seq2SeqTrainingArguments if hasattr(other, "predict_with_generate") else TrainingArguments
    cls = _with_names_of(type(other), cls)
    known = {field.name for field in fields(cls) if field.init}
    values = {field.name: getattr(other, field.name) for field in fields(other) if hasattr(other, field.name)}
    args = cls(**{name: value for name, value in values.items() if name in known and _is_said(name, value, values)})
    for name, value in vars(other).items():
        # What a subclass keeps besides its fields.
        if name not in values and not hasattr(TrainingArguments, name) and not name.startswith("__"):
            args.__dict__[name] = value
    return args


@cache
def _with_names_of(theirs: Any, cls: type[TrainingArguments]) -> type[TrainingArguments]:
    """``cls``, or for a subclass of transformers' arguments a class that is both: ours in what training reads.

    Names of ours that ``theirs`` uses for fields of its own stay its own, as in a subclass of ours.
    """
    taken = [(one.name, one.type, field(default=None)) for one in fields(theirs) if one.name in NATIVE]
    own = [kind for kind in theirs.__mro__ if library_of(kind) not in ("transformers", "builtins")]
    if not own:
        return make_dataclass(cls.__name__, taken, bases=(cls,), repr=False) if taken else cls
    written: dict[str, Any] = {}
    for kind in reversed(own):
        plain = {name: value for name, value in vars(kind).items() if not name.startswith("__")}
        written |= {name: value for name, value in plain.items() if name not in theirs.__dataclass_fields__}
    written["__reduce__"] = lambda self: (_unfilled, (theirs, cls), vars(self))
    both = make_dataclass(theirs.__name__, taken, bases=(cls, theirs), namespace=written, repr=False, eq=False)
    both.__module__, both.__qualname__ = theirs.__module__, theirs.__qualname__
    return both


def _unfilled(theirs: type, cls: type[TrainingArguments]) -> TrainingArguments:
    """Arguments of a class that is made here, for a pickle of the user's own to fill."""
    return object.__new__(_with_names_of(theirs, cls))


def _is_said(name: str, value: object, values: dict[str, Any]) -> bool:
    """Whether a value was the user's and not merely what an older release stores when nothing is set."""
    if name in _NOT_CARRIED:
        return False
    if name == "logging_dir":
        return "tensorboard" in (values.get("report_to") or [])  # v4 always invents a directory
    if name == "fsdp_config":
        return bool(values.get("fsdp"))  # v4 fills it in for everybody
    return name not in RULES or value != RULES[name].v4_default
