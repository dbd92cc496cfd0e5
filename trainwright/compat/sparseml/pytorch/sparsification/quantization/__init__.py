"""Names of ``sparseml.pytorch.sparsification.quantization``."""

from typing import Any

from trainwright.compat.sparseml.missing import refuse
from trainwright.compat.sparseml.pytorch.sparsification.quantization.modifier_quantization import QuantizationModifier
from trainwright.compat.sparseml.pytorch.sparsification.quantization.quantization_scheme import (
    QuantizationArgs,
    QuantizationScheme,
)

__all__ = ["QuantizationArgs", "QuantizationModifier", "QuantizationScheme"]


def __getattr__(name: str) -> Any:
    refuse(__name__, name)
