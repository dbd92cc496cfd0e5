"""Metrics of generated texts, by PyMarlin's names."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

_KINDS = ("rouge1", "rouge2", "rougeL", "rougeLsum")


def get_metric_func(metric_name: str) -> Callable[..., dict[str, float]]:
    """The function (predictions, references) -> numbers of that name."""
    if metric_name != "rouge":
        raise ValueError(f"metric={metric_name!r}: there is rouge.")
    _scorer()
    return rouge


def rouge(preds: Sequence[str], labels: Sequence[str]) -> dict[str, float]:
    """The mean F-measure of each kind of ROUGE."""
    scorer = _scorer().RougeScorer(list(_KINDS), use_stemmer=True)
    scores = [scorer.score(wanted, written) for written, wanted in zip(preds, labels, strict=True)]
    return {kind: sum(score[kind].fmeasure for score in scores) / max(len(scores), 1) for kind in _KINDS}


def _scorer() -> Any:
    try:
        return importlib.import_module("rouge_score.rouge_scorer")
    except ImportError:
        raise ValueError("metric='rouge' needs rouge_score (pip install rouge_score).") from None
