"""The fields of ``TrainingArguments``, one small dataclass per topic."""

from argparse import SUPPRESS
from dataclasses import MISSING, dataclass, field
from typing import Any, cast

from trainwright.config.fields.batch import BatchFields
from trainwright.config.fields.data import DataFields
from trainwright.config.fields.distributed import DistributedFields
from trainwright.config.fields.evaluation import EvaluationFields
from trainwright.config.fields.hub import HubFields
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

# Dataclasses collect fields from the last base to the first, so this list reads backwards: saving comes out first.
TOPICS = (
    RemovedFields,
    SurvivalFields,
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
)


@dataclass(kw_only=True)
class AllFields(
    RemovedFields,
    SurvivalFields,
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

    # Bookkeeping for copies, see `resolution`; a field because dataclasses.replace passes nothing else on.
    _resolution: object | None = field(default=None, repr=False, compare=False, metadata={"help": SUPPRESS})


_NATIVE = frozenset((*NativeFields.__dataclass_fields__, *SurvivalFields.__dataclass_fields__))


def is_ours(args: Any, name: str) -> bool:
    """False where a user's subclass has taken one of our native names (say ``engine``) for a field of its own."""
    return name not in _NATIVE or type(args).__dataclass_fields__[name] is AllFields.__dataclass_fields__[name]


def ours(args: Any, name: str) -> Any:
    """The value of one of our native arguments, or its default where a subclass uses the name for something else."""
    own = getattr(type(args), "__dataclass_fields__", {}).get(name)
    spec = AllFields.__dataclass_fields__[name]
    if own is spec or (own is None and hasattr(args, name)):
        return getattr(args, name)
    return spec.default if spec.default is not MISSING else cast(Any, spec.default_factory)()


__all__ = ["TOPICS", "AllFields", "is_ours", "ours"]
