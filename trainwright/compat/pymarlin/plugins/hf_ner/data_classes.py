"""Sentences and the labels of their words, from files with the columns ``Sentence`` and ``Slot``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.utils.data import Dataset

from trainwright.compat.pymarlin.core.data_interface import DataInterface
from trainwright.compat.pymarlin.plugins.rows import column, read_rows


@dataclass
class DataArguments:
    """The section ``data``."""

    train_filepath: str | None = None
    val_filepath: str | None = None
    #: Labels in the order of the model's outputs.
    labels_list: list[str] | None = None
    has_labels: bool = True
    #: "tsv" or "csv".
    file_format: str = "tsv"


class NERBaseDataset(Dataset[Any]):
    """Rows as (words, labels); rows without a sentence or without labels are left out."""

    def __init__(self, args: DataArguments, input_filepath: str) -> None:
        self.args, self.input_filepath = args, input_filepath
        found = read_rows(input_filepath, args.file_format)
        self.rows = [row for row in found if column(row, "Sentence") and row.get("Slot")]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[list[str], list[str]]:
        words, labels = self.rows[index]["Sentence"].split(" "), self.rows[index]["Slot"].split(" ")
        if len(words) != len(labels):
            raise ValueError(
                f"{self.input_filepath}: {' '.join(words[:5])!r} begins a sentence of {len(words)} words with "
                f"{len(labels)} labels."
            )
        return words, labels


class NERDataInterface(DataInterface):
    """The training and validation files."""

    def __init__(self, args: DataArguments) -> None:
        super().__init__()
        self.args = args
        self.train_dataset: Any = []
        self.val_dataset: Any = []
        self.label_map = {label: place for place, label in enumerate(args.labels_list or ())}

    def setup_datasets(self, *args: Any, **kwargs: Any) -> None:
        """Read the files that are named."""
        if self.args.train_filepath is not None:
            self.train_dataset = NERBaseDataset(self.args, self.args.train_filepath)
        if self.args.val_filepath is not None:
            self.val_dataset = NERBaseDataset(self.args, self.args.val_filepath)

    def get_train_dataset(self, *args: Any, **kwargs: Any) -> Any:
        return self.train_dataset

    def get_val_dataset(self, *args: Any, **kwargs: Any) -> Any:
        return self.val_dataset

    def get_labels(self) -> list[str]:
        """As the configuration names them."""
        return list(self.label_map)
