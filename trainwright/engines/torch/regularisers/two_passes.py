"""R-Drop: two passes with different dropout should say the same."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from trainwright.core.modifier import Passes
from trainwright.engines.torch.loss_functions.base import check_number, in_full, mean_over, next_labels
from trainwright.engines.torch.losses import logits_of
from trainwright.engines.torch.regularisers.base import Regulariser
from trainwright.engines.torch.targets import IGNORED, find_labels


class RDrop(Regulariser):
    """The mean loss of two passes, and ``alpha`` times how far their class probabilities are apart.

    That is the mean of the two Kullback-Leibler divergences, over the labels that count. The two passes differ by
    dropout; each update takes twice the time. Exact under accumulation, as far as dropout draws the same numbers.

    >>> RDrop(alpha=0.7).alpha
    0.7
    """

    passes_again = True

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        check_number("alpha", alpha, 0.0)
        self.alpha = float(alpha)

    def compute_loss(self, passes: Passes, inputs: Any) -> tuple[Tensor, Any]:
        labels = find_labels(inputs)
        if not isinstance(labels, Tensor) or labels.is_floating_point():
            raise ValueError("RDrop compares class probabilities: it needs a batch with class numbers as 'labels'.")
        first, outputs = passes.run(inputs)
        second, again = passes.run(inputs)
        one, other = (F.log_softmax(in_full(logits_of(each)), dim=-1) for each in (outputs, again))
        labels = next_labels(labels) if passes.shifts_labels else labels
        if one.shape[:-1] != labels.shape:
            raise ValueError(
                f"RDrop takes outputs with the classes as last dimension, and got {tuple(one.shape)} for labels of "
                f"shape {tuple(labels.shape)}."
            )
        counts = labels != IGNORED
        apart = ((one.exp() - other.exp()) * (one - other)).sum(-1) / 2
        distance = mean_over(torch.where(counts, apart, 0.0).sum(), counts.sum())
        return (first + second) / 2 + self.alpha * distance, outputs
