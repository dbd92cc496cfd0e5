"""Names of ``sparseml.pytorch.sparsification.distillation``."""

from typing import Any

from trainwright.compat.sparseml.missing import refuse
from trainwright.compat.sparseml.pytorch.sparsification.distillation.modifier_distillation import DistillationModifier
from trainwright.compat.sparseml.pytorch.sparsification.distillation.modifier_per_layer import (
    PerLayerDistillationModifier,
)

__all__ = ["DistillationModifier", "PerLayerDistillationModifier"]


def __getattr__(name: str) -> Any:
    refuse(__name__, name)
