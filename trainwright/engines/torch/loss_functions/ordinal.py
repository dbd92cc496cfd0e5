"""Classes in an order: small, medium, large."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from trainwright.engines.torch.loss_functions.base import Loss, classes_last, in_full, mean_over, refuse_outside
from trainwright.engines.torch.losses import logits_of
from trainwright.engines.torch.targets import IGNORED

OUTPUTS = ("classes", "borders")


class OrdinalLoss(Loss):
    """Whether the class is above each border between two classes, yes or no, summed over the borders.

    A prediction two classes off costs more than one that is one off. ``outputs="classes"``: a logit for each class;
    the chance of being above a border is that of the classes above it, and the likeliest class is the prediction.
    ``outputs="borders"`` (CORAL): K - 1 logits for K classes, each of "above this border".

    >>> import torch
    >>> loss, label = OrdinalLoss(), torch.tensor([0])
    >>> near, far = torch.tensor([[0.0, 5.0, 0.0]]), torch.tensor([[0.0, 0.0, 5.0]])
    >>> bool(loss(near, label) < loss(far, label))
    True
    """

    compares_positions = True

    def __init__(self, outputs: str = "classes") -> None:
        if outputs not in OUTPUTS:
            raise ValueError(f"outputs={outputs!r} should be one of {', '.join(OUTPUTS)}.")
        self.outputs = outputs

    def __call__(self, outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Tensor:
        logits, labels = classes_last(self, logits_of(outputs), labels)
        logits = in_full(logits)
        borders = logits.shape[-1] - (self.outputs == "classes")
        if borders < 1:
            raise ValueError("OrdinalLoss with outputs='classes' needs two outputs or more.")
        refuse_outside(self, labels, borders + 1)
        above, below = self._chances(logits)
        counts = labels != IGNORED
        is_above = labels.unsqueeze(-1) > torch.arange(borders, device=labels.device)
        each = -torch.where(is_above, above, below).sum(-1)
        return mean_over(torch.where(counts, each, 0.0).sum(), counts.sum(), num_items_in_batch)

    def _chances(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Logarithms of the chances to be above each border, and not to be."""
        if self.outputs == "borders":
            return F.logsigmoid(logits), F.logsigmoid(-logits)
        log_chances = F.log_softmax(logits, dim=-1)
        below = torch.logcumsumexp(log_chances, dim=-1)[..., :-1]
        above = torch.logcumsumexp(log_chances.flip(-1), dim=-1)[..., :-1].flip(-1)
        return above, below
