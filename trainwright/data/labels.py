"""The labels of a whole dataset, for what has to know how often each occurs before training."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainwright.data.iterables import is_iterable
from trainwright.data.lengths import column_values, makes_columns_on_the_fly

logger = logging.getLogger("trainwright")

_NAMES = ("labels", "label", "label_ids")


def labels_in(dataset: Any, names: Sequence[str] = _NAMES) -> Iterator[Any]:
    """The label of each sample, in order; ValueError where they cannot be known before training.

    A column of them is read as a whole, anything else sample by sample, which is said where it may take long.

    >>> list(labels_in([{"x": 1, "labels": 0}, {"x": 2, "labels": 1}]))
    [0, 1]
    """
    if dataset is None or is_iterable(dataset) or not hasattr(dataset, "__len__"):
        raise ValueError("Labels cannot be counted in a stream, or in no data: give the weights as a list.")
    columns = getattr(dataset, "column_names", None)
    if isinstance(columns, list) and not makes_columns_on_the_fly(dataset):
        found = next((name for name in (*names, *_NAMES) if name in columns), None)
        if found is None:
            raise _no_labels(f"has the columns {', '.join(columns)}")
        return iter(column_values(dataset, found))
    logger.log(
        logging.INFO if isinstance(dataset, (list, tuple)) else logging.WARNING,
        "Reading all %d samples once to count their labels; weights given as a list would make this unnecessary.",
        len(dataset),
    )
    return (_label_of(dataset[index], (*names, *_NAMES)) for index in range(len(dataset)))


def _label_of(sample: Any, names: Sequence[str]) -> Any:
    if isinstance(sample, Mapping):
        found = next((name for name in names if name in sample), None)
        if found is None:
            raise _no_labels(f"holds {', '.join(map(str, sample))}")
        return sample[found]
    if isinstance(sample, (tuple, list)) and len(sample) > 1:
        return sample[-1]
    raise _no_labels(f"is a {type(sample).__name__}")


def _no_labels(held: str) -> ValueError:
    return ValueError(
        f"Labels are counted in the samples of the training data, and a sample {held}: none of them is 'labels'. Give "
        "the weights as a list."
    )
