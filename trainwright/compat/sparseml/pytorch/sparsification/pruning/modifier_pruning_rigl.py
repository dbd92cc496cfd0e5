"""Weights go, and others come back."""

from typing import Any

from trainwright.compat.sparseml.classes.shipped import Shipped
from trainwright.compat.sparseml.pytorch.sparsification.pruning.modifier_pruning_base import BasePruningModifier

__all__ = ["RigLPruningModifier"]


class RigLPruningModifier(BasePruningModifier):
    """The smallest weights go, and those with the largest gradients come back."""

    def __init__(
        self,
        final_sparsity: float | dict[float, list[str]],
        start_epoch: float,
        end_epoch: float,
        update_frequency: float,
        params: str | list[str],
        num_grads: int = 1,
        leave_enabled: bool = True,
        global_sparsity: bool = False,
        momentum_buffer_reset: bool = True,
        mask_type: str | list[int] = "unstructured",
        sparsity_strategy: str = "erdos_renyi_kernel",
        init_update_fraction: float = 0.3,
        grad_sampler_kwargs: dict[str, Any] | None = None,
        **more: Any,
    ) -> None:
        Shipped.__init__(self, locals())
