"""What is zero stays zero."""

from trainwright.compat.sparseml.classes.shipped import Shipped
from trainwright.compat.sparseml.pytorch.sparsification.pruning.modifier_pruning_base import BasePruningModifier

__all__ = ["ConstantPruningModifier"]


class ConstantPruningModifier(BasePruningModifier):
    """What is zero at the start stays zero."""

    def __init__(
        self,
        params: str | list[str],
        start_epoch: float = -1.0,
        end_epoch: float = -1.0,
        update_frequency: float = -1,
    ) -> None:
        Shipped.__init__(self, locals())
