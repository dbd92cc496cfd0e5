"""The modifiers a recipe may name, and where each is defined; nothing is imported until it is used."""

from __future__ import annotations

#: Name in a recipe -> module of ``trainwright.recipes`` that defines a class of that name.
HOMES: dict[str, str] = {
    "EpochRangeModifier": "scheduling.epochs",
    "SetLearningRateModifier": "scheduling.learning_rate",
    "LearningRateModifier": "scheduling.learning_rate",
    "LearningRateFunctionModifier": "scheduling.learning_rate",
    "SetWeightDecayModifier": "scheduling.weight_decay",
    "TrainableParamsModifier": "scheduling.parameters",
    "SetParamModifier": "scheduling.parameters",
    "GradualParamModifier": "scheduling.parameters",
    "SparsificationLoggingModifier": "scheduling.reporting",
    "GMPruningModifier": "pruning.magnitude",
    "MagnitudePruningModifier": "pruning.magnitude",
    "GlobalMagnitudePruningModifier": "pruning.magnitude",
    "ConstantPruningModifier": "pruning.constant",
    "MovementPruningModifier": "pruning.movement",
    "OBSPruningModifier": "pruning.obs",
    "MFACPruningModifier": "pruning.mfac",
    "ACDCPruningModifier": "pruning.acdc",
    "RigLPruningModifier": "pruning.rigl",
    "TopKASTPruningModifier": "pruning.topkast",
    "PowerpropagationModifier": "pruning.powerpropagation",
    "StructuredPruningModifier": "pruning.structured",
    "LayerThinningModifier": "pruning.thinning",
    "LayerPruningModifier": "pruning.layers",
    "QuantizationModifier": "quantization.modifier",
    "DistillationModifier": "distillation.output",
    "OutputDistillationModifier": "distillation.per_output",
    "PerLayerDistillationModifier": "distillation.per_layer",
}
