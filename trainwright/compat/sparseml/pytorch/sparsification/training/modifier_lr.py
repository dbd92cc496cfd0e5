"""Learning rates."""

from typing import Any

from trainwright.compat.sparseml.classes.lifecycle import ScheduledModifier, ScheduledUpdateModifier
from trainwright.compat.sparseml.classes.properties import ModifierProp
from trainwright.compat.sparseml.classes.shipped import Shipped

__all__ = ["LearningRateFunctionModifier", "LearningRateModifier", "SetLearningRateModifier"]


class SetLearningRateModifier(Shipped, ScheduledModifier):
    """One rate from ``start_epoch`` on."""

    def __init__(
        self,
        learning_rate: float,
        param_groups: list[int] | None = None,
        start_epoch: float = -1.0,
        end_epoch: float = -1.0,
        constant_logging: bool = False,
    ) -> None:
        Shipped.__init__(self, locals())

    @ModifierProp(serializable=False)
    def applied_learning_rate(self) -> float:
        """The rate that it has set; -1 before."""
        return self.argument("learning_rate") if self.native.has_begun else -1.0


class LearningRateFunctionModifier(Shipped, ScheduledUpdateModifier):
    """From ``init_lr`` to ``final_lr``: linear, cosine or cyclic_linear."""

    def __init__(
        self,
        lr_func: str,
        init_lr: float,
        final_lr: float,
        start_epoch: float,
        end_epoch: float,
        cycle_epochs: float = 1.0,
        param_groups: list[int] | None = None,
        update_frequency: float = -1.0,
    ) -> None:
        Shipped.__init__(self, locals())


class LearningRateModifier(Shipped, ScheduledUpdateModifier):
    """A schedule of torch's: StepLR, MultiStepLR, ExponentialLR or CosineAnnealingWarmRestarts."""

    def __init__(
        self,
        lr_class: str,
        lr_kwargs: dict[str, Any],
        init_lr: float,
        start_epoch: float,
        end_epoch: float = -1.0,
        update_frequency: float = -1.0,
        constant_logging: bool = False,
    ) -> None:
        Shipped.__init__(self, locals())
