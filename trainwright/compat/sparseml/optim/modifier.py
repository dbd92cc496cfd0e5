"""Names of ``sparseml.optim.modifier``."""

from trainwright.compat.sparseml.classes.acting import ModifierYAML
from trainwright.compat.sparseml.classes.bases import BaseModifier, BaseObject, BaseScheduled, BaseUpdate
from trainwright.compat.sparseml.classes.properties import BaseProp, ModifierProp

__all__ = ["BaseModifier", "BaseObject", "BaseProp", "BaseScheduled", "BaseUpdate", "ModifierProp", "ModifierYAML"]
