"""Whole layers go."""

from trainwright.compat.sparseml.classes.lifecycle import ScheduledUpdateModifier
from trainwright.compat.sparseml.classes.shipped import Shipped

__all__ = ["LayerPruningModifier"]


class LayerPruningModifier(Shipped, ScheduledUpdateModifier):
    """Takes layers out of the model."""

    def __init__(
        self,
        layers: str | list[str],
        start_epoch: float = -1.0,
        end_epoch: float = -1.0,
        update_frequency: float = -1.0,
    ) -> None:
        Shipped.__init__(self, locals())
