"""Batches of conversations: padded at the end, whatever token pads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from trainwright.data.collators_text import round_up

_IGNORED = -100


@dataclass
class ChatCollator:
    """Pads ``input_ids`` and ``labels``; what is padding follows from lengths, so a pad token that also ends answers
    is trained where it is an end.

    >>> rows = [{"input_ids": torch.tensor([5, 2]), "labels": torch.tensor([-100, 2])}]
    >>> rows.append({"input_ids": torch.tensor([5, 6, 2]), "labels": torch.tensor([-100, 6, 2])})
    >>> batch = ChatCollator(pad_token_id=2)(rows)
    >>> batch["labels"].tolist(), batch["attention_mask"].tolist()
    ([[-100, 2, -100], [-100, 6, 2]], [[1, 1, 0], [1, 1, 1]])
    """

    pad_token_id: int
    pad_to_multiple_of: int | None = None

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        tokens = [torch.as_tensor(row["input_ids"]) for row in rows]
        labels = [torch.as_tensor(row["labels"]) for row in rows]
        masks = [torch.ones_like(row) for row in tokens]
        found = {
            "input_ids": pad_sequence(tokens, batch_first=True, padding_value=self.pad_token_id),
            "attention_mask": pad_sequence(masks, batch_first=True, padding_value=0),
            "labels": pad_sequence(labels, batch_first=True, padding_value=_IGNORED),
        }
        missing = round_up(found["input_ids"].shape[1], self.pad_to_multiple_of) - found["input_ids"].shape[1]
        fill = {"input_ids": self.pad_token_id, "attention_mask": 0, "labels": _IGNORED}
        return {name: torch.nn.functional.pad(rows, (0, missing), value=fill[name]) for name, rows in found.items()}
