"""The column by which losses are told apart (``log_loss_per``): beside a batch, where the model does not see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

#: Where a batch keeps the group of each of its samples.
GROUPS = "log_loss_per:groups"
_LONGEST_NAME = 60


class GroupColumnCollator:
    """Collates all but ``column``, and puts its values beside what ``collate`` made.

    ``is_wanted=False`` leaves them out, for evaluation; ``stays`` lets ``collate`` have the column too.

    >>> collate = GroupColumnCollator(lambda rows: {"x": [row["x"] for row in rows]}, "source")
    >>> collate([{"x": 1, "source": "web"}, {"x": 2, "source": "books"}])
    {'x': [1, 2], 'log_loss_per:groups': ['web', 'books']}
    """

    def __init__(
        self, collate: Callable[[list[Any]], Any], column: str, *, is_wanted: bool = True, stays: bool = False
    ) -> None:
        self.collate, self.column, self.is_wanted, self.stays = collate, column, is_wanted, stays

    def __call__(self, features: list[Any]) -> Any:
        if self.is_wanted and not all(isinstance(row, Mapping) and self.column in row for row in features):
            raise ValueError(
                f"log_loss_per={self.column!r}: a sample of the training data has no column of that name; "
                "choose one that all have, or 'class'."
            )
        groups = [row[self.column] for row in features] if self.is_wanted else []
        if not self.stays:
            features = [_without(row, self.column) for row in features]
        batch = self.collate(features)
        return {**batch, GROUPS: [_name(group) for group in groups]} if self.is_wanted else batch


def _without(row: Any, column: str) -> Any:
    if not isinstance(row, Mapping) or column not in row:
        return row
    return {name: value for name, value in row.items() if name != column}


def _name(value: Any) -> str:
    return str(value.item() if hasattr(value, "item") else value)[:_LONGEST_NAME]


def without_groups(inputs: Any) -> tuple[Any, list[str] | None]:
    """A batch as the model takes it, and the group of each of its samples."""
    if not isinstance(inputs, Mapping) or GROUPS not in inputs:
        return inputs, None
    return {name: value for name, value in inputs.items() if name != GROUPS}, inputs[GROUPS]
