"""Parameters: whether they learn, and what they are."""

from typing import Any

from trainwright.compat.sparseml.classes.lifecycle import ScheduledModifier, ScheduledUpdateModifier
from trainwright.compat.sparseml.classes.shipped import Shipped

__all__ = ["GradualParamModifier", "SetParamModifier", "TrainableParamsModifier"]


class TrainableParamsModifier(Shipped, ScheduledModifier):
    """Freezes parameters, or lets them learn, until ``end_epoch``."""

    def __init__(
        self,
        params: str | list[str],
        trainable: bool,
        params_strict: bool = True,
        start_epoch: float = -1.0,
        end_epoch: float = -1.0,
    ) -> None:
        Shipped.__init__(self, locals())


class SetParamModifier(Shipped, ScheduledModifier):
    """Sets parameters to a value."""

    def __init__(
        self,
        params: str | list[str],
        val: Any,
        params_strict: bool = True,
        start_epoch: float = -1.0,
        end_epoch: float = -1.0,
    ) -> None:
        Shipped.__init__(self, locals())


class GradualParamModifier(Shipped, ScheduledUpdateModifier):
    """Takes parameters from one value to another."""

    def __init__(
        self,
        params: str | list[str],
        init_val: Any,
        final_val: Any,
        start_epoch: float,
        end_epoch: float,
        update_frequency: float,
        inter_func: str = "linear",
        params_strict: bool = True,
    ) -> None:
        Shipped.__init__(self, locals())
