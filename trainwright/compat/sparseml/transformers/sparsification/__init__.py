"""Names of ``sparseml.transformers.sparsification``."""

from typing import Any

from trainwright.compat.sparseml.arguments import TrainingArguments
from trainwright.compat.sparseml.missing import refuse
from trainwright.compat.sparseml.trainer import Trainer

__all__ = ["Trainer", "TrainingArguments"]


def __getattr__(name: str) -> Any:
    refuse(__name__, name)
