"""Sparsity in the log."""

from trainwright.compat.sparseml.classes.lifecycle import ScheduledUpdateModifier
from trainwright.compat.sparseml.classes.shipped import Shipped

__all__ = ["SparsificationLoggingModifier"]


class SparsificationLoggingModifier(Shipped, ScheduledUpdateModifier):
    """Logs how sparse the model is."""

    def __init__(self, start_epoch: float, end_epoch: float = -1.0, update_frequency: float = 1.0) -> None:
        Shipped.__init__(self, locals())
