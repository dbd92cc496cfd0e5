"""Names of ``sparseml.pytorch.sparsification``."""

from typing import Any

from trainwright.compat.sparseml.missing import refuse
from trainwright.compat.sparseml.pytorch.sparsification.distillation import (
    DistillationModifier,
    PerLayerDistillationModifier,
)
from trainwright.compat.sparseml.pytorch.sparsification.modifier import (
    PYTORCH_FRAMEWORK,
    Modifier,
    ModifierProp,
    PyTorchModifierYAML,
    ScheduledModifier,
    ScheduledUpdateModifier,
)
from trainwright.compat.sparseml.pytorch.sparsification.modifier_thinning import LayerThinningModifier
from trainwright.compat.sparseml.pytorch.sparsification.pruning import (
    ACDCPruningModifier,
    BaseGradualPruningModifier,
    BasePruningModifier,
    ConstantPruningModifier,
    GlobalMagnitudePruningModifier,
    GMPruningModifier,
    LayerPruningModifier,
    MagnitudePruningModifier,
    MFACPruningModifier,
    MovementPruningModifier,
    OBSPruningModifier,
    PowerpropagationModifier,
    RigLPruningModifier,
    StructuredPruningModifier,
    TopKASTPruningModifier,
)
from trainwright.compat.sparseml.pytorch.sparsification.quantization import (
    QuantizationArgs,
    QuantizationModifier,
    QuantizationScheme,
)
from trainwright.compat.sparseml.pytorch.sparsification.training import (
    EpochRangeModifier,
    GradualParamModifier,
    LearningRateFunctionModifier,
    LearningRateModifier,
    SetLearningRateModifier,
    SetParamModifier,
    SetWeightDecayModifier,
    SparsificationLoggingModifier,
    TrainableParamsModifier,
)

__all__ = [
    "PYTORCH_FRAMEWORK",
    "ACDCPruningModifier",
    "BaseGradualPruningModifier",
    "BasePruningModifier",
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
    "Modifier",
    "ModifierProp",
    "MovementPruningModifier",
    "OBSPruningModifier",
    "PerLayerDistillationModifier",
    "PowerpropagationModifier",
    "PyTorchModifierYAML",
    "QuantizationArgs",
    "QuantizationModifier",
    "QuantizationScheme",
    "RigLPruningModifier",
    "ScheduledModifier",
    "ScheduledUpdateModifier",
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
