"""Anchor, positive, negative: the anchor should be nearer to the positive, by a margin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trainwright.engines.torch.loss_functions.base import Loss, check_number, mean_over
from trainwright.engines.torch.loss_functions.embeddings import distance, embedded, refuse_labels, together
from trainwright.engines.torch.targets import IGNORED, count_rows

MINING = ("given", "hard", "all")


class TripletLoss(Loss):
    """``max(0, distance to the positive - distance to the negative + margin)``, the mean over anchors.

    ``mining="given"``: the model returns three embeddings, anchor, positive and negative, and there are no labels.
    Else it returns one, with a class as label, and triplets are made of the batch: "hard" takes for each anchor the
    farthest of its class and the nearest of the others, "all" the mean over all triplets of the batch. These two
    depend on how a batch is cut.

    >>> import torch
    >>> anchor, positive, negative = torch.tensor([[0.0]]), torch.tensor([[2.0]]), torch.tensor([[2.5]])
    >>> TripletLoss(margin=1.0)((anchor, positive, negative), None)
    tensor(0.5000)
    """

    def __init__(self, margin: float = 1.0, mining: str = "given") -> None:
        check_number("margin", margin, 0.0)
        if mining not in MINING:
            raise ValueError(f"mining={mining!r} should be one of {', '.join(MINING)}.")
        self.margin, self.mining = margin, mining
        self.needs_labels = mining != "given"
        if self.needs_labels:
            self.joins_samples = f"mining={mining!r} makes triplets of the samples of a batch"

    def count_targets(self, batch: Any, usual: Callable[[Any], Any]) -> Any:
        return usual(batch) if self.needs_labels else count_rows(batch)

    def __call__(self, outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Tensor:
        if self.mining == "given":
            refuse_labels(self, labels, "let mining='hard' or 'all' make triplets of them")
            anchor, positive, negative = together(self, outputs, 3)
            each = (distance(anchor, positive) - distance(anchor, negative) + self.margin).clamp(min=0)
            return mean_over(each.sum(), len(each), num_items_in_batch)
        found, labels = embedded(self, outputs, labels)
        apart = distance(found.unsqueeze(1), found.unsqueeze(0))
        counts = labels != IGNORED
        both = counts.unsqueeze(0) & counts.unsqueeze(1)
        same = (labels.unsqueeze(0) == labels.unsqueeze(1)) & both
        positives = same & ~torch.eye(len(found), dtype=torch.bool, device=found.device)
        negatives = ~same & both
        return (
            self._hard(apart, positives, negatives) if self.mining == "hard" else self._all(apart, positives, negatives)
        )

    def _hard(self, apart: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
        # Anchors without another of their class, or without one of another, have no triplet.
        has_both = positives.any(1) & negatives.any(1)
        farthest = apart.masked_fill(~positives, float("-inf")).amax(1)
        nearest = apart.masked_fill(~negatives, float("inf")).amin(1)
        each = torch.where(has_both, farthest, 0.0) - torch.where(has_both, nearest, 0.0) + self.margin
        return mean_over(torch.where(has_both, each.clamp(min=0), 0.0).sum(), has_both.sum())

    def _all(self, apart: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
        triplets = positives.unsqueeze(2) & negatives.unsqueeze(1)
        each = (apart.unsqueeze(2) - apart.unsqueeze(1) + self.margin).clamp(min=0)
        return mean_over(torch.where(triplets, each, 0.0).sum(), triplets.sum())
