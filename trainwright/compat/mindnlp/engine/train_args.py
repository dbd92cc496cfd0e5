"""``mindnlp.engine.train_args`` of MindNLP 0.4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainwright.config import arguments

__all__ = ["TrainingArguments"]


@dataclass(repr=False)
class TrainingArguments(arguments.TrainingArguments):
    """Our arguments, with the names that MindNLP 0.4 has instead of Hugging Face's.

    >>> args = TrainingArguments("runs/old", optim="adamw", dataset_drop_last=True, recompute=True)
    >>> args.optim, args.dataloader_drop_last, args.gradient_checkpointing
    ('adamw_torch', True, True)
    """

    dataset_drop_last: bool = False
    """dataloader_drop_last."""

    dataset_num_workers: int = 0
    """dataloader_num_workers."""

    dataset_prefetch_factor: int | None = None
    """dataloader_prefetch_factor."""

    recompute: bool = False
    """gradient_checkpointing."""

    recompute_kwargs: dict[str, Any] | None = None
    """gradient_checkpointing_kwargs."""

    def __post_init__(self) -> None:
        for theirs, ours in _OURS.items():
            given = getattr(self, theirs)
            if given:
                setattr(self, ours, given)
        if self.optim == "adamw":
            self.optim = "adamw_torch"
        super().__post_init__()


_OURS = {
    "dataset_drop_last": "dataloader_drop_last",
    "dataset_num_workers": "dataloader_num_workers",
    "dataset_prefetch_factor": "dataloader_prefetch_factor",
    "recompute": "gradient_checkpointing",
    "recompute_kwargs": "gradient_checkpointing_kwargs",
}
