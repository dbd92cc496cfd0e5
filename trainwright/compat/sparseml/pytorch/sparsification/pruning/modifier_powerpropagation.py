"""Weights that are small become smaller."""

from trainwright.compat.sparseml.classes.lifecycle import ScheduledModifier
from trainwright.compat.sparseml.classes.shipped import Shipped

__all__ = ["PowerpropagationModifier"]


class PowerpropagationModifier(Shipped, ScheduledModifier):
    """Weights act as ``w * |w|^(alpha - 1)``."""

    def __init__(
        self,
        start_epoch: float,
        end_epoch: float,
        params: str | list[str],
        alpha: float = 1.0,
        strict: bool = True,
    ) -> None:
        Shipped.__init__(self, locals())
