"""What the numbers in data and predictions stand for, for people who look at them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DataWords:
    """Set as ``trainer.data_words``: reports, sample predictions, logs by class and ``show_batch`` speak with it.

    >>> words = DataWords(classes=["cat", "dog"])
    >>> words.class_name(1), words.class_name(7)
    ('dog', '7')

    Where numbers to predict were standardized, ``mean`` and ``scale`` lead back; ``columns`` do so for rows of a table:

    >>> words = DataWords(mean=100.0, scale=20.0, columns=[{"name": "rooms", "mean": 4.0, "scale": 2.0}])
    >>> words.amount(0.5), words.row([-0.5])
    (110.0, 'rooms 3')
    """

    #: Names of classes, by number.
    classes: Sequence[str] = ()
    #: An amount is the number times ``scale``, plus ``mean``.
    mean: float = 0.0
    scale: float = 1.0
    #: Columns of a table in the order of a row's numbers: ``name`` with ``mean`` and ``scale``, or with ``categories``,
    #: of which each has a number that is 1 where it is meant.
    columns: Sequence[Mapping[str, Any]] = ()

    def class_name(self, number: int) -> str:
        return str(self.classes[number]) if 0 <= number < len(self.classes) else str(number)

    def amount(self, number: float) -> float:
        return number * self.scale + self.mean

    def row(self, numbers: Sequence[float]) -> str:
        """The columns of one row with their values; empty where these are not its numbers."""
        if not self.columns or len(numbers) != sum(len(column.get("categories", [0])) for column in self.columns):
            return ""
        found, place = [], 0
        for column in self.columns:
            categories = column.get("categories")
            if categories is None:
                value = f"{numbers[place] * column.get('scale', 1.0) + column.get('mean', 0.0):.6g}"
                place += 1
            else:
                part = list(numbers[place : place + len(categories)])
                value = str(categories[part.index(max(part))]) if max(part) > 0.5 else "(none)"
                place += len(categories)
            found.append(f"{column['name']} {value}")
        return ", ".join(found)
