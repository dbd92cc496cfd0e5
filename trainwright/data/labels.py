"""The labels of a whole dataset, for what has to know how often each occurs before training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    return read_through(dataset, (*names, *_NAMES), "weights given as a list", _no_labels)


def read_through(
    dataset: Any,
    names: Sequence[str],
    instead: str,
    missing: Callable[[str], ValueError],
    *,
    by_place: bool = True,
) -> Iterator[Any]:
    """What each sample has under the first of ``names`` that it has; read sample by sample, which is said.

    Args:
        dataset: With a length.
        names: Keys, or attributes.
        instead: What would make this unnecessary.
        missing: Makes the error of what a sample is instead: "holds x, y".
        by_place: Whether the last of a tuple is it too.
    """
    logger.log(
        logging.INFO if isinstance(dataset, (list, tuple)) else logging.WARNING,
        "Reading all %d samples once to learn their classes; %s would make this unnecessary.",
        len(dataset),
        instead,
    )
    for place in range(len(dataset)):
        sample = dataset[place]
        if by_place and isinstance(sample, (tuple, list)) and len(sample) > 1:
            yield sample[-1]
            continue
        fields = sample if isinstance(sample, Mapping) else getattr(sample, "__dict__", {})
        found = next((name for name in names if name in fields), None)
        if found is None:
            raise missing(f"holds {', '.join(map(str, fields))}" if fields else f"is a {type(sample).__name__}")
        yield fields[found]


def _no_labels(held: str) -> ValueError:
    return ValueError(
        f"Labels are counted in the samples of the training data, and a sample {held}: none of them is 'labels'. Give "
        "the weights as a list."
    )
