"""Rare classes more often: each sample drawn with a weight that its class decides."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from trainwright.data.labels import read_through
from trainwright.data.lengths import column_values
from trainwright.data.order import DrawnOrder

#: Where the class of a sample stands, unless it is said.
_USUAL = ("labels", "label", "label_ids", "target")


def balanced_order(
    dataset: Any, seed: int, column: str | None, temperature: float | None, label_names: Sequence[str] | None
) -> DrawnOrder:
    """Draw a class of the share p with a probability in proportion to p^(1/temperature); without one, all alike."""
    classes = classes_by_sample(dataset, column, [*(label_names or ()), *_USUAL])
    return DrawnOrder(weights_by_class(classes, temperature), seed)


def weights_by_class(
    classes: Sequence[Any], temperature: float | None, counts: Mapping[Any, float] | None = None
) -> Tensor:
    """How likely each sample is, compared with the others.

    Args:
        classes: Of each sample.
        temperature: 1 leaves the shares of the classes as they are, a high one makes them nearly alike; None, alike.
        counts: Samples of each class, where those of the data do not count.
    """
    here = Counter(classes)
    counts = here if counts is None else counts
    power = 0.0 if temperature is None else 1 / temperature
    most = max(counts[name] for name in here)
    # The share of a class, compared with the largest so that a small temperature leaves that one, among its samples.
    weight = {name: (counts[name] / most) ** power / here[name] for name in here}
    return torch.tensor([weight[name] for name in classes], dtype=torch.float64)


def classes_by_sample(dataset: Any, column: str | None, usual: Sequence[str]) -> list[Any]:
    """The class of each sample, read from a column where there are columns."""
    columns = getattr(dataset, "column_names", None)
    names = (column,) if column is not None else tuple(usual)
    if isinstance(columns, list):
        found = next((name for name in names if name in columns), None)
        if found is None:
            raise _no_class(column, f"The columns of the training data are {', '.join(columns)}")
        values = column_values(dataset, found)
    elif column is None and len(targets := _targets_of(dataset)) == len(dataset):
        found, values = "targets", list(targets)
    else:
        found, instead = column or "the label", "a Hugging Face dataset, or a list named targets beside the samples,"
        missing = partial(_no_class_in_sample, column)
        values = read_through(dataset, names, instead, missing, by_place=column is None)
    return [_as_class(value, row, found) for row, value in enumerate(values)]


def _targets_of(dataset: object) -> Any:
    """What datasets of torchvision keep beside their images."""
    targets = getattr(dataset, "targets", ())
    return targets if isinstance(targets, (list, tuple, Tensor)) else ()


def _as_class(value: Any, row: int, column: str) -> Any:
    if isinstance(getattr(value, "ndim", None), int) and not value.ndim:
        value = value.item()
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, (str, int)):
        is_nothing = value is None or (isinstance(value, float) and math.isnan(value))
        shown = "nothing" if is_nothing else f"{value!r:.60}"
        raise ValueError(
            f"train_sampling_strategy='balanced' needs one class for each sample, a whole number or a word; row {row} "
            f"has {shown} ({column}). Name another column with sampling_column, or use 'random'."
        )
    return value


def _no_class(column: str | None, found: str) -> ValueError:
    asked = "name the one with the class with sampling_column" if column is None else f"there is no {column!r}"
    return ValueError(f"{found}: {asked} (train_sampling_strategy='balanced').")


def _no_class_in_sample(column: str | None, held: str) -> ValueError:
    return _no_class(column, f"A sample of the training data {held}")
