"""Metrics of classification and regression, by PyMarlin's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Metric = Callable[[Any, Any], dict[str, float]]


def get_metric_func(metric_name: str) -> Metric:
    """The function (labels, predictions) -> numbers of that name."""
    known: dict[str, Metric] = {
        "acc": simple_accuracy,
        "acc_and_f1": acc_and_f1,
        "pcc_and_scc": pearson_and_spearman,
        "mcc": mcc,
    }
    if metric_name not in known:
        raise ValueError(f"metric={metric_name!r}: there are {', '.join(known)}.")
    return known[metric_name]


def simple_accuracy(labels: Any, preds: Any) -> dict[str, float]:
    return {"acc": float(np.mean(np.asarray(labels) == np.asarray(preds)))}


def acc_and_f1(labels: Any, preds: Any) -> dict[str, float]:
    """Precision, recall and F1 of each label, weighted by how often it is right."""
    labels, preds = np.asarray(labels), np.asarray(preds)
    sums = np.zeros(3)
    for label in np.unique(labels):
        is_true, is_said = labels == label, preds == label
        both = np.sum(is_true & is_said)
        precision, recall = both / max(np.sum(is_said), 1), both / np.sum(is_true)
        f1 = 2 * precision * recall / (precision + recall) if both else 0.0
        sums += np.array([f1, precision, recall]) * np.mean(is_true)
    named = dict(zip(("f1", "precision", "recall"), map(float, sums), strict=True))
    return {**named, **simple_accuracy(labels, preds)}


def mcc(labels: Any, preds: Any) -> dict[str, float]:
    """Matthews' correlation, for any number of labels; 0 where one side has a single one."""
    classes, numbers = np.unique([labels, preds], return_inverse=True)
    true, said = np.eye(len(classes))[numbers.reshape(2, -1)]
    true, said = true - true.mean(0), said - said.mean(0)
    scale = float(np.sqrt((true * true).sum() * (said * said).sum()))
    return {"mcc": float((true * said).sum()) / scale if scale else 0.0}


def pearson_and_spearman(labels: Any, preds: Any) -> dict[str, float]:
    """The correlation of the numbers, of their ranks, and the mean of both."""
    pearson = float(np.corrcoef(preds, labels)[0, 1])
    spearman = float(np.corrcoef(_ranks(preds), _ranks(labels))[0, 1])
    return {"pearson": pearson, "spearmanr": spearman, "corr": (pearson + spearman) / 2}


def _ranks(values: Any) -> Any:
    """Equal values share the mean of their ranks."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[places]
