"""Where a recipe stands at an epoch: what is pruned, what is quantized."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trainwright.compat.sparseml.sparsification.types import SparsificationTypes


def of_type(modifiers: Iterable[Any], kind: SparsificationTypes) -> list[Any]:
    """Those that make this kind of change."""
    return [modifier for modifier in modifiers if kind in getattr(modifier, "sparsification_types", ())]


def phase_at(modifiers: list[Any], epoch: float) -> str | None:
    """What the model is at ``epoch``; None while it is being made something else.

    >>> from trainwright.compat.sparseml.pytorch.sparsification import LayerPruningModifier, QuantizationModifier
    >>> both = [LayerPruningModifier("a", start_epoch=1, end_epoch=2), QuantizationModifier(start_epoch=3)]
    >>> [phase_at(both, epoch) for epoch in (0.5, 1.5, 2.5, 3, 3.5)]
    ['dense', None, 'pruned', None, 'pruned_quantized']
    """
    pruners = of_type(modifiers, SparsificationTypes.pruning)
    quantizers = of_type(modifiers, SparsificationTypes.quantization)
    pruned_from, pruned_by = _span([m.start_epoch for m in pruners], [m.end_epoch for m in pruners])
    quantized_from, quantized_by = _span([m.start_epoch for m in quantizers], [m.start_epoch for m in quantizers])
    if pruned_from <= epoch <= pruned_by or quantized_from <= epoch <= quantized_by:
        return None
    is_pruned, is_quantized = bool(pruners) and epoch > pruned_by, bool(quantizers) and epoch > quantized_by
    if is_pruned and is_quantized:
        return "pruned_quantized" if pruned_by < quantized_by else "quantized_pruned"
    if is_quantized:
        return "dense_quantized"
    return "pruned" if is_pruned else "dense"


def _span(starts: list[float], ends: list[float]) -> tuple[float, float]:
    """From the first start to the last end; empty where there is none."""
    return (min(starts), max(ends)) if starts else (float("inf"), float("-inf"))


def qat_active_at(modifiers: list[Any], epoch: float) -> bool:
    """Whether anything is rounded at the start of this epoch or within it.

    >>> from trainwright.compat.sparseml.pytorch.sparsification import QuantizationModifier
    >>> qat_active_at([QuantizationModifier(start_epoch=2)], 1.5), qat_active_at([QuantizationModifier()], 0)
    (True, True)
    """
    return any(m.start_epoch < epoch + 1 for m in of_type(modifiers, SparsificationTypes.quantization))
