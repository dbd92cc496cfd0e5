"""Names of ``sparseml.pytorch.sparsification.pruning``."""

from typing import Any

from trainwright.compat.sparseml.missing import refuse
from trainwright.compat.sparseml.pytorch.sparsification.pruning.modifier_powerpropagation import (
    PowerpropagationModifier,
)
from trainwright.compat.sparseml.pytorch.sparsification.pruning.modifier_pruning_acdc import ACDCPruningModifier
from trainwright.compat.sparseml.pytorch.sparsification.pruning.modifier_pruning_base import (
    BaseGradualPruningModifier,
    BasePruningModifier,
)
from trainwright.compat.sparseml.pytorch.sparsification.pruning.modifier_pruning_constant import ConstantPruningModifier
from trainwright.compat.sparseml.pytorch.sparsification.pruning.modifier_pruning_layer import LayerPruningModifier
from trainwright.compat.sparseml.pytorch.sparsification.pruning.modifier_pruning_magnitude import (
    GlobalMagnitudePruningModifier,
    GMPruningModifier,
    MagnitudePruningModifier,
)
from trainwright.compat.sparseml.pytorch.sparsification.pruning.modifier_pruning_mfac import MFACPruningModifier
from trainwright.compat.sparseml.pytorch.sparsification.pruning.modifier_pruning_movement import MovementPruningModifier
from trainwright.compat.sparseml.pytorch.sparsification.pruning.modifier_pruning_obs import OBSPruningModifier
from trainwright.compat.sparseml.pytorch.sparsification.pruning.modifier_pruning_rigl import RigLPruningModifier
from trainwright.compat.sparseml.pytorch.sparsification.pruning.modifier_pruning_structured import (
    StructuredPruningModifier,
)
from trainwright.compat.sparseml.pytorch.sparsification.pruning.modifier_pruning_topkast import TopKASTPruningModifier

__all__ = [
    "ACDCPruningModifier",
    "BaseGradualPruningModifier",
    "BasePruningModifier",
    "ConstantPruningModifier",
    "GMPruningModifier",
    "GlobalMagnitudePruningModifier",
    "LayerPruningModifier",
    "MFACPruningModifier",
    "MagnitudePruningModifier",
    "MovementPruningModifier",
    "OBSPruningModifier",
    "PowerpropagationModifier",
    "RigLPruningModifier",
    "StructuredPruningModifier",
    "TopKASTPruningModifier",
]


def __getattr__(name: str) -> Any:
    refuse(__name__, name)
