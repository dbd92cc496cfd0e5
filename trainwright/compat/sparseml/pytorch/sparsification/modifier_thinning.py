"""Layers that become smaller."""

from typing import Any

from trainwright.compat.sparseml.classes.lifecycle import ScheduledModifier
from trainwright.compat.sparseml.classes.shipped import Shipped

__all__ = ["LayerThinningModifier"]


class LayerThinningModifier(Shipped, ScheduledModifier):
    """Takes filters out that are zero, and what followed them in later layers."""

    def __init__(
        self,
        param_group_dependency_map: str | dict[str, Any],
        structure_type: str = "filter",
        start_epoch: float = -1.0,
        update_epochs: list[float] | None = None,
        strict: bool = True,
        end_epoch: float = -1.0,
    ) -> None:
        Shipped.__init__(self, locals())
