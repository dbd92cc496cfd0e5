"""Names of ``sparseml.pytorch.optim.manager``."""

from trainwright.compat.sparseml.manager import ScheduledModifierManager

__all__ = ["ScheduledModifierManager"]
