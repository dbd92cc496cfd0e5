"""Outputs that follow a teacher's."""

from typing import Any

from trainwright.compat.sparseml.classes.lifecycle import ScheduledUpdateModifier
from trainwright.compat.sparseml.classes.shipped import Shipped

__all__ = ["DistillationModifier"]


class DistillationModifier(Shipped, ScheduledUpdateModifier):
    """``(1 - hardness) * loss + hardness * T² * KL(teacher || student)``."""

    def __init__(
        self,
        start_epoch: float = -1.0,
        end_epoch: float = -1.0,
        distill_output_keys: list[Any] | None = None,
        teacher_input_keys: list[Any] | None = None,
        update_frequency: float = -1.0,
        hardness: float = 0.5,
        temperature: float = 2.0,
    ) -> None:
        Shipped.__init__(self, locals())
