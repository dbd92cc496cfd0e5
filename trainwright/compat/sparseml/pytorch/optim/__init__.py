"""Names of ``sparseml.pytorch.optim``."""

from typing import Any

from trainwright.compat.sparseml.manager import ScheduledModifierManager
from trainwright.compat.sparseml.missing import refuse
from trainwright.compat.sparseml.scheduled_optimizer import ScheduledOptimizer

__all__ = ["ScheduledModifierManager", "ScheduledOptimizer"]


def __getattr__(name: str) -> Any:
    refuse(__name__, name)
