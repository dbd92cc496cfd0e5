"""Names of ``sparseml.pytorch.sparsification.training``."""

from typing import Any

from trainwright.compat.sparseml.missing import refuse
from trainwright.compat.sparseml.pytorch.sparsification.training.modifier_epoch import EpochRangeModifier
from trainwright.compat.sparseml.pytorch.sparsification.training.modifier_logging import SparsificationLoggingModifier
from trainwright.compat.sparseml.pytorch.sparsification.training.modifier_lr import (
    LearningRateFunctionModifier,
    LearningRateModifier,
    SetLearningRateModifier,
)
from trainwright.compat.sparseml.pytorch.sparsification.training.modifier_params import (
    GradualParamModifier,
    SetParamModifier,
    TrainableParamsModifier,
)
from trainwright.compat.sparseml.pytorch.sparsification.training.modifier_regularizer import SetWeightDecayModifier

__all__ = [
    "EpochRangeModifier",
    "GradualParamModifier",
    "LearningRateFunctionModifier",
    "LearningRateModifier",
    "SetLearningRateModifier",
    "SetParamModifier",
    "SetWeightDecayModifier",
    "SparsificationLoggingModifier",
    "TrainableParamsModifier",
]


def __getattr__(name: str) -> Any:
    refuse(__name__, name)
