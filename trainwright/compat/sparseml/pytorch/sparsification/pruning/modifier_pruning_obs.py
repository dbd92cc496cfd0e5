"""Second-order pruning."""

from typing import Any

from trainwright.compat.sparseml.classes.shipped import Shipped
from trainwright.compat.sparseml.pytorch.sparsification.pruning.modifier_pruning_base import (
    BaseGradualPruningModifier,
)

__all__ = ["OBSPruningModifier"]


class OBSPruningModifier(BaseGradualPruningModifier):
    """Weights go whose loss costs least, by gradients of samples; others are corrected."""

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
        global_sparsity: bool = True,
        mask_type: str | list[int] = "unstructured",
        num_grads: int = 1024,
        damp: float = 1e-7,
        fisher_block_size: int = 1,
        grad_sampler_kwargs: dict[str, Any] | None = None,
        num_recomputations: int = 1,
    ) -> None:
        Shipped.__init__(self, locals())
