"""What the user said. Standard library only: no torch, no transformers."""

from trainwright.config.adopt import adopt_arguments
from trainwright.config.arguments import TrainingArguments
from trainwright.config.enums import (
    DebugOption,
    ExplicitStrEnum,
    HubStrategy,
    IntervalStrategy,
    OptimizerNames,
    ParallelMode,
    SamplingStrategy,
    SaveStrategy,
    SchedulerType,
)
from trainwright.config.help import help_for
from trainwright.config.hf_fields import FIELDS
from trainwright.config.profile import parse_profile
from trainwright.config.seq2seq import Seq2SeqTrainingArguments
from trainwright.config.validate import check_device
from trainwright.config.warnings import TrainwrightWarning

__all__ = [
    "FIELDS",
    "DebugOption",
    "ExplicitStrEnum",
    "HubStrategy",
    "IntervalStrategy",
    "OptimizerNames",
    "ParallelMode",
    "SamplingStrategy",
    "SaveStrategy",
    "SchedulerType",
    "Seq2SeqTrainingArguments",
    "TrainingArguments",
    "TrainwrightWarning",
    "adopt_arguments",
    "check_device",
    "help_for",
    "parse_profile",
]
