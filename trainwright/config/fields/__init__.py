"""The fields of ``TrainingArguments``, one small dataclass per topic."""

from __future__ import annotations

import logging
from argparse import SUPPRESS
from dataclasses import MISSING, dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from trainwright.config.fields.batch import BatchFields
from trainwright.config.fields.data import DataFields
from trainwright.config.fields.distributed import DistributedFields
from trainwright.config.fields.evaluation import EvaluationFields
from trainwright.config.fields.hub import HubFields
from trainwright.config.fields.limits import LimitFields
from trainwright.config.fields.logs import LogFields
from trainwright.config.fields.memory import MemoryFields
from trainwright.config.fields.misc import MiscFields
from trainwright.config.fields.native import NativeFields
from trainwright.config.fields.optimizer import OptimizerFields
from trainwright.config.fields.precision import PrecisionFields
from trainwright.config.fields.removed import RemovedFields
from trainwright.config.fields.saving import SavingFields
from trainwright.config.fields.schedule import ScheduleFields
from trainwright.config.fields.survival import SurvivalFields

if TYPE_CHECKING:
    from trainwright.config.arguments import TrainingArguments


# Dataclasses collect fields from the last base to the first, so this list reads backwards: saving comes out first.
@dataclass(kw_only=True)
class AllFields(
    RemovedFields,
    SurvivalFields,
    LimitFields,
    NativeFields,
    MiscFields,
    HubFields,
    MemoryFields,
    DistributedFields,
    DataFields,
    LogFields,
    EvaluationFields,
    PrecisionFields,
    ScheduleFields,
    OptimizerFields,
    BatchFields,
    SavingFields,
):
    """Every argument, without behaviour."""

    #: Whether accelerate's own record of the processes is kept beside ours: underneath other libraries only.
    has_accelerate_state = False
    #: Arguments that a command line gives as JSON text, by transformers' name; a subclass adds its own.
    _VALID_DICT_FIELDS = [  # noqa: RUF012 (annotated, it would be among the fields)
        "accelerator_config",
        "fsdp_config",
        "deepspeed",
        "gradient_checkpointing_kwargs",
        "lr_scheduler_kwargs",
    ]

    # Bookkeeping for copies, see `resolution`; a field because dataclasses.replace passes nothing else on.
    _resolution: object | None = field(default=None, repr=False, compare=False, metadata={"help": SUPPRESS})

    def json_fields_of_subclass(self) -> list[str]:
        """Fields that may hold JSON text, those that a subclass has added among them."""
        return self._VALID_DICT_FIELDS


TOPICS = AllFields.__bases__

NATIVE = frozenset(name for topic in (NativeFields, LimitFields, SurvivalFields) for name in topic.__dataclass_fields__)


def is_ours(args: Any, name: str) -> bool:
    """False where a user's subclass has taken one of our native names (say ``engine``) for a field of its own."""
    if name not in NATIVE or isinstance(args, _View):
        return True
    return type(args).__dataclass_fields__[name] is AllFields.__dataclass_fields__[name]


def ours(args: Any) -> TrainingArguments:
    """Arguments of any class, with our names in them: typed, and read through to the live object.

    Where a subclass uses one of our native names for something else, or somebody else's arguments do not have it, it
    has its default.

    >>> from types import SimpleNamespace
    >>> args = ours(SimpleNamespace(logging_steps=5))
    >>> args.logging_steps, args.preempted_exit_code
    (5, 75)
    """
    return args if _has_all_names(type(args)) else cast(Any, _View(args))


@cache
def _has_all_names(kind: type) -> bool:
    fields = getattr(kind, "__dataclass_fields__", {})
    return all(fields.get(name) is AllFields.__dataclass_fields__[name] for name in NATIVE)


@cache
def say_which_names_are_taken(kind: type) -> None:
    """Once for each class, in case that somebody only meant to change a default."""
    known = getattr(kind, "__dataclass_fields__", {})
    taken = [
        name for name in sorted(NATIVE) if name in known and known[name] is not AllFields.__dataclass_fields__[name]
    ]
    if taken:
        logging.getLogger("trainwright").warning(
            "%s has fields of its own called %s: trainwright's arguments of these names keep their defaults.",
            kind.__name__,
            ", ".join(taken),
        )


class _View:
    """Somebody's arguments, seen with our native names."""

    def __init__(self, args: object) -> None:
        self.__dict__["_args"] = args

    def __getattr__(self, name: str) -> Any:
        args = self.__dict__["_args"]
        known = getattr(type(args), "__dataclass_fields__", {}).get(name)
        spec = AllFields.__dataclass_fields__.get(name)
        if name not in NATIVE or spec is None or known is spec or (known is None and hasattr(args, name)):
            return getattr(args, name)
        return spec.default if spec.default is not MISSING else cast(Any, spec.default_factory)()

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.__dict__["_args"], name, value)


__all__ = ["NATIVE", "TOPICS", "AllFields", "is_ours", "ours", "say_which_names_are_taken"]
