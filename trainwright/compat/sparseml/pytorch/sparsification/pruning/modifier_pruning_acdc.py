"""Dense and sparse in turn."""

from trainwright.compat.sparseml.classes.shipped import Shipped
from trainwright.compat.sparseml.pytorch.sparsification.pruning.modifier_pruning_base import BasePruningModifier

__all__ = ["ACDCPruningModifier"]


class ACDCPruningModifier(BasePruningModifier):
    """Trains all weights and a sparse part of them in turn."""

    def __init__(
        self,
        compression_sparsity: float,
        start_epoch: int | float,
        end_epoch: int | float,
        update_frequency: int | float,
        params: str | list[str],
        global_sparsity: bool = True,
        leave_enabled: bool = True,
        momentum_buffer_reset: bool = True,
        mask_type: str | list[int] = "unstructured",
    ) -> None:
        Shipped.__init__(self, locals())
