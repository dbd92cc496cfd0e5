"""SparseML's interface before trainwright's loop: ``trainwright.compat.sparseml`` where a script says ``sparseml``."""

from typing import Any

from trainwright.compat.sparseml.arguments import TrainingArguments
from trainwright.compat.sparseml.exporting import ModuleExporter
from trainwright.compat.sparseml.manager import ScheduledModifierManager
from trainwright.compat.sparseml.missing import refuse
from trainwright.compat.sparseml.recipe_texts import SPARSEML_VERSION
from trainwright.compat.sparseml.trainer import Trainer
from trainwright.recipes.export.exporting import export_model

__all__ = [
    "ModuleExporter",
    "ScheduledModifierManager",
    "Trainer",
    "TrainingArguments",
    "export_model",
    "reset_session",
    "version",
]

#: In place of SparseML's own: what is written into recipes as ``sparseml_version``.
version = SPARSEML_VERSION


def reset_session() -> None:
    """Nothing to do: nothing is kept between one manager or Trainer and the next."""


def __getattr__(name: str) -> Any:
    refuse(__name__, name)
