"""Names of ``sparseml.pytorch.sparsification.modifier``."""

from trainwright.compat.sparseml.classes.acting import PyTorchModifierYAML
from trainwright.compat.sparseml.classes.lifecycle import Modifier, ScheduledModifier, ScheduledUpdateModifier
from trainwright.compat.sparseml.classes.properties import ModifierProp
from trainwright.compat.sparseml.classes.texts import PYTORCH_FRAMEWORK

__all__ = [
    "PYTORCH_FRAMEWORK",
    "Modifier",
    "ModifierProp",
    "PyTorchModifierYAML",
    "ScheduledModifier",
    "ScheduledUpdateModifier",
]
