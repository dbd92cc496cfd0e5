"""Whole filters go."""

from trainwright.compat.sparseml.classes.shipped import Shipped
from trainwright.compat.sparseml.pytorch.sparsification.pruning.modifier_pruning_magnitude import GMPruningModifier

__all__ = ["StructuredPruningModifier"]


class StructuredPruningModifier(GMPruningModifier):
    """Whole filters or channels go."""

    def __init__(
        self,
        init_sparsity: float | str,
        final_sparsity: float | dict[float, list[str]],
        start_epoch: float,
        end_epoch: float,
        update_frequency: float,
        param_groups: list[list[str]] | None = None,
        params: str | list[str] = "__ALL_PRUNABLE__",
        leave_enabled: bool = True,
        inter_func: str = "cubic",
        mask_type: str = "filter",
    ) -> None:
        Shipped.__init__(self, locals())
