"""Rows that say which of the data they are."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset

#: The column that is added.
SAMPLE_NUMBER = "sample_number"


class Numbered(Dataset):
    """Rows of a dataset, each a dict, with their number beside them."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self.rows[index]
        if not isinstance(row, dict):
            raise ValueError(f"Rows are numbered where they are dicts, and this one is a {type(row).__name__}.")
        return {**row, SAMPLE_NUMBER: index}


def numbered(rows: Any) -> Any:
    """``rows`` with the number of each in the column ``sample_number``, by which bags of an ensemble are drawn.

    >>> numbered([{"x": 3.0}, {"x": 5.0}])[1]
    {'x': 5.0, 'sample_number': 1}
    """
    if not hasattr(rows, "__len__"):
        raise ValueError(f"Only data with a length has numbers of its rows: {type(rows).__name__} is a stream.")
    if callable(getattr(rows, "add_column", None)):
        # Of Hugging Face: its columns stay known.
        return rows.add_column(SAMPLE_NUMBER, list(range(len(rows))))
    return Numbered(rows)
