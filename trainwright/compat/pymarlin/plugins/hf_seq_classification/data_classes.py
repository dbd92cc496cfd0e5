"""Texts and labels from files."""

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
    #: Labels in the order of the model's outputs; a single one says that labels are numbers to be predicted.
    labels_list: list[Any] | None = None
    #: "tsv", "csv", or "json" with one object a line.
    file_format: str = "tsv"
    #: Row with the names of the columns; None: columns are named by their numbers.
    header: int | None = None
    text_a_col: int | str | None = None
    text_b_col: int | str | None = None
    label_col: int | str | None = None


class HfSeqClassificationDataset(Dataset[Any]):
    """Rows as (text, label) or (text, second text, label)."""

    def __init__(self, args: DataArguments, input_filepath: str, label_map: dict[str, int] | None) -> None:
        self.args, self.label_map = args, label_map
        self.rows = read_rows(input_filepath, args.file_format, args.header)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        row, args = self.rows[index], self.args
        label = column(row, args.label_col)
        number = float(label) if self.label_map is None else self._number(label)
        texts = [column(row, name) for name in (args.text_a_col, args.text_b_col) if name is not None]
        return (*texts, number)

    def _number(self, label: object) -> int:
        assert self.label_map is not None
        if str(label) not in self.label_map:
            raise ValueError(f"The label {label!r} is not in labels_list, which has {', '.join(self.label_map)}.")
        return self.label_map[str(label)]


class HfSeqClassificationDataInterface(DataInterface):
    """The training and validation files."""

    def __init__(self, args: DataArguments) -> None:
        super().__init__()
        self.args = args
        self.train_dataset: Any = []
        self.val_dataset: Any = []
        if not args.labels_list:
            raise ValueError("data.labels_list must name the labels, in the order of the model's outputs.")
        if args.file_format != "json" and args.header is None:
            for name in ("text_a_col", "text_b_col", "label_col"):
                if getattr(args, name) is not None:
                    setattr(args, name, int(getattr(args, name)))
        several = len(args.labels_list) > 1
        self.label_map = {str(label): place for place, label in enumerate(args.labels_list)} if several else None

    def setup_datasets(self, *args: Any, **kwargs: Any) -> None:
        """Read the files that are named."""
        if self.args.train_filepath is not None:
            self.train_dataset = HfSeqClassificationDataset(self.args, self.args.train_filepath, self.label_map)
        if self.args.val_filepath is not None:
            self.val_dataset = HfSeqClassificationDataset(self.args, self.args.val_filepath, self.label_map)

    def get_train_dataset(self, *args: Any, **kwargs: Any) -> Any:
        return self.train_dataset

    def get_val_dataset(self, *args: Any, **kwargs: Any) -> Any:
        return self.val_dataset

    def get_labels(self) -> list[Any]:
        """As the configuration names them."""
        return list(self.args.labels_list or ())
