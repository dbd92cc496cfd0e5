"""Tables: numbers and categories in columns, one column to predict."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainwright.config.loading import Loaded
from trainwright.experiment import measures
from trainwright.experiment.models import build_local
from trainwright.experiment.sources import columns_of, expect_columns, pick_column
from trainwright.experiment.tasks.base import Given, MissingValues, Prepared, TensorRows, classes_of, labels_of

_TARGETS = ("target", "label", "labels", "y", "class")
#: Whole numbers with more values than this are amounts, not classes.
MOST_CLASSES = 20
#: A column of words with more values than this is text or a name, and of no use to a table's network.
MOST_CATEGORIES = 200


class Tabular:
    """Classification or regression, decided by the task or, without one, by the target's values."""

    reads = ("target", "features")
    kind: str | None = None

    def defaults(self, loaded: Loaded) -> dict[str, Any]:
        return {
            "learning_rate": 1e-3,
            "per_device_train_batch_size": 32,
            "per_device_eval_batch_size": 256,
            "num_train_epochs": 20,
            "load_best_model_at_end": True,
            "metric_for_best_model": "loss",
        }

    def prepare(self, given: Given) -> Prepared:
        facts = given.facts or self._facts(given)
        encode = _Encoder(facts)
        classes: list[str] | None = facts["classes"]
        outputs = 1 if classes is None else len(classes)
        model = build_local(given.loaded, inputs=encode.width, outputs=outputs)
        target = facts["target_scale"]
        metrics = measures.classification if classes else measures.regression(target["mean"], target["scale"])
        return Prepared(
            model=model,
            encode=encode,
            describe=lambda predictions: _described(predictions, facts),
            facts=facts,
            metrics=metrics,
            notes=[_summary(facts)],
            target=facts["target"],
            dropped=facts["dropped"],
        )

    def _facts(self, given: Given) -> dict[str, Any]:
        data, rows = given.loaded.experiment.data, given.train
        target = pick_column(given.loaded, "target", data.target, rows, _TARGETS, "to be predicted")
        for name in data.features or []:
            pick_column(given.loaded, "features", name, rows, (), "a feature")
        if target in (data.features or []):
            raise given.loaded.error(("data", "features"), f"{target!r} is the target: it cannot predict itself.")
        names = data.features or [name for name in columns_of(rows) if name != target]
        found = [_column(name, rows[name]) for name in names]
        values = [value for value in rows[target] if value is not None]
        is_class = self.kind == "classification" or (self.kind is None and _are_classes(values))
        if not is_class and not all(isinstance(value, (int, float)) for value in values):
            raise given.loaded.error(
                ("data", "target"), f"{target!r} holds words: use model.task: tabular-classification."
            )
        if not any(column is not None for column in found):
            raise ValueError("No column is of use: each is empty, always the same, or a name of its own in every row.")
        classes = classes_of(list(rows[target]), target) if is_class else None
        numbers = np.asarray([0.0] if is_class else finite(rows[target], target), dtype=np.float64)
        return {
            "target": target,
            "classes": classes,
            "target_scale": {"mean": float(numbers.mean()), "scale": float(numbers.std()) or 1.0},
            "columns": [column for column in found if column is not None],
            "dropped": [name for name, column in zip(names, found, strict=True) if column is None],
        }


class TabularClassification(Tabular):
    """A class is to be predicted, whatever the target's values look like."""

    kind = "classification"


class TabularRegression(Tabular):
    """An amount is to be predicted."""

    kind = "regression"


def finite(values: Any, column: str) -> list[float]:
    """The numbers to predict; none may be missing or infinite."""
    wrong = [value for value in values if _is_no_number(value)]
    if wrong:
        text = f"{len(wrong)} of {len(values)} rows have no finite number in {column!r} (such as {wrong[0]!r})"
        raise MissingValues(column, text, _is_no_number)
    return [float(value) for value in values]


def _is_no_number(value: Any) -> bool:
    return not isinstance(value, (int, float)) or not math.isfinite(value)


def _are_classes(values: list[Any]) -> bool:
    if all(isinstance(value, (int, bool)) for value in values):
        return len(set(values)) <= MOST_CLASSES
    return not all(isinstance(value, (int, float)) for value in values)


def _column(name: str, values: list[Any]) -> dict[str, Any] | None:
    """How one column is read: its mean and spread, or its categories; None where it is of no use."""
    present = [value for value in values if value is not None]
    if present and all(isinstance(value, (int, float)) for value in present):
        numbers = np.asarray(present, dtype=np.float64)
        numbers = numbers[np.isfinite(numbers)]
        spread = float(numbers.std()) if len(numbers) else 0.0
        return {"name": name, "mean": float(numbers.mean()), "scale": spread} if spread else None
    categories = labels_of([str(value) for value in present])
    return {"name": name, "categories": categories} if 1 < len(categories) <= MOST_CATEGORIES else None


class _Encoder:
    """Rows to standardized numbers; a missing number is the mean, an unknown category none of them."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.facts = facts
        self.width = sum(len(column.get("categories", [0])) for column in facts["columns"])

    def __call__(self, rows: Any) -> TensorRows:
        expect_columns(rows, [column["name"] for column in self.facts["columns"]])
        parts = [_encoded(column, rows[column["name"]]) for column in self.facts["columns"]]
        features = torch.from_numpy(np.concatenate(parts, axis=1).astype(np.float32))
        has_target = self.facts["target"] in columns_of(rows)
        return TensorRows(features=features, labels=self._labels(rows[self.facts["target"]]) if has_target else None)

    def _labels(self, values: list[Any]) -> Tensor:
        classes, scale = self.facts["classes"], self.facts["target_scale"]
        if classes is None:
            numbers = (np.asarray(finite(values, self.facts["target"])) - scale["mean"]) / scale["scale"]
            return torch.from_numpy(numbers.astype(np.float32))
        known = {name: index for index, name in enumerate(classes)}
        unknown = sorted({"nothing" if value is None else str(value) for value in values} - set(known))
        if unknown:
            more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
            raise ValueError(
                f"{self.facts['target']!r} has {', '.join(unknown[:5])}{more}, which the training data had not."
            )
        return torch.tensor([known[str(value)] for value in values])


def _encoded(column: dict[str, Any], values: list[Any]) -> np.ndarray:
    if "categories" in column:
        codes = {name: index for index, name in enumerate(column["categories"])}
        table = np.zeros((len(values), len(codes)))
        for row, value in enumerate(values):
            if str(value) in codes:
                table[row, codes[str(value)]] = 1.0
        return table
    try:
        numbers = np.asarray([math.nan if value is None else value for value in values], dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{column['name']!r} holds numbers in the training data, and here something else.") from None
    return np.nan_to_num((numbers - column["mean"]) / column["scale"], posinf=0.0, neginf=0.0)[:, None]


def _described(predictions: object, facts: dict[str, Any]) -> list[dict[str, Any]]:
    logits = np.asarray(predictions, dtype=np.float64)
    if facts["classes"] is None:
        scale = facts["target_scale"]
        return [{"prediction": float(value * scale["scale"] + scale["mean"])} for value in logits.reshape(-1)]
    return described_classes(logits, facts["classes"])


def described_classes(logits: np.ndarray, classes: list[str]) -> list[dict[str, Any]]:
    """The class of each row, and how sure the model is."""
    chances = np.exp(logits - logits.max(-1, keepdims=True))
    chances /= chances.sum(-1, keepdims=True)
    return [
        {
            "prediction": classes[int(row.argmax())],
            "probability": round(float(row.max()), 6),
            "probabilities": {name: round(float(chance), 6) for name, chance in zip(classes, row, strict=True)},
        }
        for row in chances
    ]


def _summary(facts: dict[str, Any]) -> str:
    words = sum("categories" in column for column in facts["columns"])
    kind = f"{len(facts['classes'])} classes" if facts["classes"] else "a number"
    return f"predicts {facts['target']} ({kind}) from {len(facts['columns']) - words} numbers and {words} categories"
