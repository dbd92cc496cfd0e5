"""Names of ``sparseml.pytorch.optim``; modifiers stood here before they had a place of their own."""

from typing import Any

from trainwright.compat.sparseml.manager import ScheduledModifierManager
from trainwright.compat.sparseml.missing import refuse
from trainwright.compat.sparseml.pytorch.sparsification import (
    ACDCPruningModifier,
    ConstantPruningModifier,
    DistillationModifier,
    EpochRangeModifier,
    GlobalMagnitudePruningModifier,
    GMPruningModifier,
    GradualParamModifier,
    LayerPruningModifier,
    LayerThinningModifier,
    LearningRateFunctionModifier,
    LearningRateModifier,
    MagnitudePruningModifier,
    MFACPruningModifier,
    MovementPruningModifier,
    OBSPruningModifier,
    PerLayerDistillationModifier,
    PowerpropagationModifier,
    QuantizationModifier,
    RigLPruningModifier,
    SetLearningRateModifier,
    SetParamModifier,
    SetWeightDecayModifier,
    SparsificationLoggingModifier,
    StructuredPruningModifier,
    TopKASTPruningModifier,
    TrainableParamsModifier,
)
from trainwright.compat.sparseml.scheduled_optimizer import ScheduledOptimizer

__all__ = [
    "ACDCPruningModifier",
    "ConstantPruningModifier",
    "DistillationModifier",
    "EpochRangeModifier",
    "GMPruningModifier",
    "GlobalMagnitudePruningModifier",
    "GradualParamModifier",
    "LayerPruningModifier",
    "LayerThinningModifier",
    "LearningRateFunctionModifier",
    "LearningRateModifier",
    "MFACPruningModifier",
    "MagnitudePruningModifier",
    "MovementPruningModifier",
    "OBSPruningModifier",
    "PerLayerDistillationModifier",
    "PowerpropagationModifier",
    "QuantizationModifier",
    "RigLPruningModifier",
    "ScheduledModifierManager",
    "ScheduledOptimizer",
    "SetLearningRateModifier",
    "SetParamModifier",
    "SetWeightDecayModifier",
    "SparsificationLoggingModifier",
    "StructuredPruningModifier",
    "TopKASTPruningModifier",
    "TrainableParamsModifier",
]


def __getattr__(name: str) -> Any:
    refuse(__name__, name)
