"""Weights that move to zero go."""

from trainwright.compat.sparseml.classes.shipped import Shipped
from trainwright.compat.sparseml.pytorch.sparsification.pruning.modifier_pruning_magnitude import GMPruningModifier

__all__ = ["MovementPruningModifier"]


class MovementPruningModifier(GMPruningModifier):
    """Weights that training moves towards zero go."""

    def __init__(
        self,
        init_sparsity: float | str,
        final_sparsity: float | dict[float, list[str]],
        start_epoch: float,
        end_epoch: float,
        update_frequency: float,
        params: str | list[str],
        leave_enabled: bool = True,
        inter_func: str = "cubic",
        mask_type: str | list[int] = "unstructured",
    ) -> None:
        Shipped.__init__(self, locals())
