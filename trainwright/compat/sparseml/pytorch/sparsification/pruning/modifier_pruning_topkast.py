"""One mask for the answer, a wider one for what is learned."""

from trainwright.compat.sparseml.classes.shipped import Shipped
from trainwright.compat.sparseml.pytorch.sparsification.pruning.modifier_pruning_base import BasePruningModifier

__all__ = ["TopKASTPruningModifier"]


class TopKASTPruningModifier(BasePruningModifier):
    """Forward passes are sparser than what is learned."""

    def __init__(
        self,
        forward_sparsity: float,
        backward_sparsity: float,
        start_epoch: float,
        end_epoch: float,
        update_frequency: float,
        params: str | list[str],
        global_sparsity: bool = True,
        leave_enabled: bool = True,
        mask_type: str | list[int] = "unstructured",
        active_weight_decay: float = 0.0001,
    ) -> None:
        Shipped.__init__(self, locals())
