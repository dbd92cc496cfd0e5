"""What classes of pruning are, to ``isinstance``."""

from trainwright.compat.sparseml.classes.lifecycle import ScheduledUpdateModifier
from trainwright.compat.sparseml.classes.properties import ModifierProp
from trainwright.compat.sparseml.classes.shipped import Shipped

__all__ = ["BaseGradualPruningModifier", "BasePruningModifier"]


class BasePruningModifier(Shipped, ScheduledUpdateModifier):
    """Puts masks on weights."""


class BaseGradualPruningModifier(BasePruningModifier):
    """Sparsity goes from ``init_sparsity`` to ``final_sparsity``."""

    @ModifierProp(serializable=False)
    def applied_sparsity(self) -> list[float] | None:
        """The share of zeros in each mask; None before there are any."""
        masks = self.native.masks
        return [1.0 - float(mask.float().mean()) for mask in masks.values()] or None
