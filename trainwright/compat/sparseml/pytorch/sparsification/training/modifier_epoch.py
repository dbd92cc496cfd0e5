"""How long the training is."""

from trainwright.compat.sparseml.classes.lifecycle import ScheduledModifier
from trainwright.compat.sparseml.classes.shipped import Shipped

__all__ = ["EpochRangeModifier"]


class EpochRangeModifier(Shipped, ScheduledModifier):
    """Says between which epochs the training is."""

    def __init__(self, start_epoch: float, end_epoch: float) -> None:
        Shipped.__init__(self, locals())
