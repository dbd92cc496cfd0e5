"""What classes of pruning have in common."""

from __future__ import annotations

from typing import Any

from trainwright.compat.sparseml.classes.lifecycle import ScheduledUpdateModifier
from trainwright.compat.sparseml.classes.properties import ModifierProp
from trainwright.compat.sparseml.classes.shipped import Shipped

__all__ = ["BaseGradualPruningModifier", "BasePruningModifier"]

_MASK = ".sparsity_mask"


class BasePruningModifier(Shipped, ScheduledUpdateModifier):
    """Puts masks on weights; by itself, without a manager, its state is these masks."""

    @ModifierProp(serializable=False)
    def applied_sparsity(self) -> list[float] | None:
        """The share of zeros in each mask; None before there are any."""
        return [1.0 - float(mask.float().mean()) for mask in self.native.masks.values()] or None

    def state_dict(self) -> dict[str, Any]:
        return {f"{name}{_MASK}": mask.float() for name, mask in self.native.masks.items()}

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        self._require_initialized()
        assert self._site is not None
        weights = self.native.weights(self._site)
        masks = {name.removesuffix(_MASK): mask.bool() for name, mask in state_dict.items()}
        other = sorted(masks.keys() - weights.keys())
        if strict and other:
            raise IndexError(f"These parameters are not pruned here: {', '.join(other)}.")
        self.native.set_masks(self._site, {name: mask for name, mask in masks.items() if name in weights})


class BaseGradualPruningModifier(BasePruningModifier):
    """Sparsity goes from ``init_sparsity`` to ``final_sparsity``."""
