"""Lines of ``train.source`` and ``train.target``, ``val.source`` and ``val.target``, in one folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from trainwright.compat.pymarlin.core.data_interface import DataInterface


@dataclass
class DataInterfaceArguments:
    """The section ``data``."""

    data_dir: str | None = None


class HfSeq2SeqDataset(Dataset[Any]):
    """Rows as (source, target)."""

    def __init__(self, source: str | Path, target: str | Path) -> None:
        # Not splitlines(), which also breaks at characters that stand inside a text.
        self.source, self.target = (Path(path).read_text(encoding="utf-8").split("\n") for path in (source, target))
        for lines in (self.source, self.target):
            if lines and not lines[-1]:
                lines.pop()
        if len(self.source) != len(self.target):
            raise ValueError(f"{source} has {len(self.source)} lines and {target} {len(self.target)}.")

    def __len__(self) -> int:
        return len(self.target)

    def __getitem__(self, index: int) -> tuple[str, str]:
        return self.source[index].strip(), self.target[index].strip()


class HfSeq2SeqData(DataInterface):
    """The training and validation files."""

    def __init__(self, args: DataInterfaceArguments) -> None:
        super().__init__()
        self.args = args
        self.train_ds: Any = []
        self.val_ds: Any = []

    def setup_datasets(self, *args: Any, **kwargs: Any) -> None:
        """Read the four files."""
        if self.args.data_dir is None:
            raise ValueError("data.data_dir must name the folder with train.source, train.target and the same of val.")
        folder = Path(self.args.data_dir)
        self.train_ds = HfSeq2SeqDataset(folder / "train.source", folder / "train.target")
        self.val_ds = HfSeq2SeqDataset(folder / "val.source", folder / "val.target")

    def get_train_dataset(self, *args: Any, **kwargs: Any) -> Any:
        return self.train_ds

    def get_val_dataset(self, *args: Any, **kwargs: Any) -> Any:
        return self.val_ds
