"""Weight decay."""

from trainwright.compat.sparseml.classes.lifecycle import ScheduledModifier
from trainwright.compat.sparseml.classes.shipped import Shipped

__all__ = ["SetWeightDecayModifier"]


class SetWeightDecayModifier(Shipped, ScheduledModifier):
    """One weight decay from ``start_epoch`` on."""

    def __init__(
        self,
        weight_decay: float,
        start_epoch: float = -1.0,
        param_groups: list[int] | None = None,
        end_epoch: float = -1.0,
        constant_logging: bool = False,
    ) -> None:
        Shipped.__init__(self, locals())
