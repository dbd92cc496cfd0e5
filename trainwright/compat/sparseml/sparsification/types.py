"""Kinds of change that a modifier makes."""

from enum import Enum


class SparsificationTypes(Enum):
    """What a modifier is about; one may be of several kinds."""

    general = "general"
    epoch = "epoch"
    learning_rate = "learning_rate"
    activation_sparsity = "activation_sparsity"
    pruning = "pruning"
    quantization = "quantization"
    distillation = "distillation"
    regularization = "regularization"
    structured = "structured"
