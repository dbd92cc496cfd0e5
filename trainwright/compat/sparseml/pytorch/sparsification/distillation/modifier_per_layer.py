"""Layers that follow a teacher's."""

from trainwright.compat.sparseml.classes.lifecycle import ScheduledUpdateModifier
from trainwright.compat.sparseml.classes.shipped import Shipped

__all__ = ["PerLayerDistillationModifier"]


class PerLayerDistillationModifier(Shipped, ScheduledUpdateModifier):
    """Adds how far outputs of layers are from those of the teacher's."""

    def __init__(
        self,
        gain: float = 1.5,
        start_epoch: float = -1.0,
        end_epoch: float = -1.0,
        update_frequency: float = -1.0,
        normalize: bool = True,
        student_layer_names: list[str] | None = None,
        teacher_layer_names: list[str] | None = None,
        project_features: bool = True,
        epsilon: float = 1e-6,
    ) -> None:
        Shipped.__init__(self, locals())
