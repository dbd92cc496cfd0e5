"""The smallest weights go."""

from trainwright.compat.sparseml.classes.shipped import Shipped
from trainwright.compat.sparseml.pytorch.sparsification.pruning.modifier_pruning_base import (
    BaseGradualPruningModifier,
)

__all__ = ["GMPruningModifier", "GlobalMagnitudePruningModifier", "MagnitudePruningModifier"]


class GMPruningModifier(BaseGradualPruningModifier):
    """The smallest weights of each layer go, or of all with ``global_sparsity``."""

    unwritten = ("phased", "score_type")

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
        global_sparsity: bool = False,
        phased: bool = False,
        score_type: str = "magnitude",
    ) -> None:
        Shipped.__init__(self, locals())


class MagnitudePruningModifier(GMPruningModifier):
    """The smallest weights of each layer go."""

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


class GlobalMagnitudePruningModifier(GMPruningModifier):
    """The smallest weights go, wherever they are."""

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
