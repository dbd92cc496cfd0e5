"""Second-order pruning without a matrix."""

from typing import Any

from trainwright.compat.sparseml.classes.shipped import Shipped
from trainwright.compat.sparseml.pytorch.sparsification.pruning.modifier_pruning_base import (
    BaseGradualPruningModifier,
)

__all__ = ["MFACPruningModifier"]


class MFACPruningModifier(BaseGradualPruningModifier):
    """As OBSPruningModifier, with gradients kept instead of a matrix."""

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
        global_sparsity: bool = False,
        use_gradient_buffering: bool | None = None,
        num_grads: int | dict[float, int] = 64,
        damp: float = 1e-5,
        grads_device: str | int = "cpu",
        fisher_block_size: int | None = 2000,
        num_pages: int = 1,
        available_devices: list[str] | None = None,
        mask_type: str | list[int] = "unstructured",
        grad_sampler_kwargs: dict[str, Any] | None = None,
    ) -> None:
        Shipped.__init__(self, locals())
