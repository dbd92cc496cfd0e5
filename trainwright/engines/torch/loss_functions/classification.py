"""Losses of one class per sample or position: cross-entropy, smoothed and weighted, and focal loss."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from trainwright.engines.torch.loss_functions.base import (
    Loss,
    check_number,
    classes_last,
    in_full,
    mean_over,
    refuse_outside,
)
from trainwright.engines.torch.loss_functions.class_weights import ClassWeights
from trainwright.engines.torch.losses import logits_of
from trainwright.engines.torch.targets import IGNORED


class _OneClass(Loss):
    """A loss of log-probabilities and one class number each, perhaps with a weight for each class."""

    compares_positions = True

    def __init__(self, class_weights: Any) -> None:
        self.class_weights = ClassWeights(class_weights, "class_weights")

    @property
    def counts_labels(self) -> bool:
        return self.class_weights.is_balanced

    def take_labels(self, labels: Iterable[Any]) -> None:
        self.class_weights.count(labels)

    @property
    def found_weights(self) -> list[float] | None:
        return self.class_weights.values if self.counts_labels else None

    def take_weights(self, weights: list[float]) -> None:
        self.class_weights.take(weights)

    def __call__(self, outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Tensor:
        logits, labels = classes_last(self, logits_of(outputs), labels)
        refuse_outside(self, labels, logits.shape[-1])
        counts = labels != IGNORED
        log_chances = F.log_softmax(in_full(logits), dim=-1)
        index = torch.where(counts, labels, 0).long().unsqueeze(-1)
        each = self.each(log_chances, index, self.class_weights.tensor(log_chances))
        return mean_over(torch.where(counts, each, 0.0).sum(), counts.sum(), num_items_in_batch)

    def each(self, log_chances: Tensor, index: Tensor, weights: Tensor | None) -> Tensor:
        """The loss of each position; ``index`` has one more dimension, of size 1."""
        raise NotImplementedError


class CrossEntropyLoss(_OneClass):
    """Cross-entropy, with ``smoothing`` of the labels and a factor for each class.

    With ``smoothing`` e and K classes a label counts as 1 - e for its class and e / K for every class.
    ``class_weights`` is a list, or "balanced": from the labels of the training data. The sum is divided by the number
    of labels and not, as torch does, by the sum of their weights, which depends on how a batch is cut; balanced
    weights are 1 in the mean over the training data, so there both are alike.

    >>> import torch
    >>> loss = CrossEntropyLoss(smoothing=0.1, class_weights=[1.0, 2.0])
    >>> loss(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1]))
    tensor(0.8425)
    """

    def __init__(self, smoothing: float = 0.0, class_weights: Any = None) -> None:
        super().__init__(class_weights)
        check_number("smoothing", smoothing, 0.0, 1.0)
        self.smoothing = smoothing

    def each(self, log_chances: Tensor, index: Tensor, weights: Tensor | None) -> Tensor:
        weighted = log_chances if weights is None else log_chances * weights
        hit = -weighted.gather(-1, index).squeeze(-1)
        return hit if not self.smoothing else (1 - self.smoothing) * hit - self.smoothing * weighted.mean(-1)


class FocalLoss(_OneClass):
    """Cross-entropy times ``(1 - p) ** gamma``, where p is the probability of the label: what is easy counts less.

    ``gamma=0`` is cross-entropy. ``class_weights`` is a list (alpha in the paper), or "balanced".

    >>> import torch
    >>> FocalLoss(gamma=2.0)(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
    tensor(0.1733)
    """

    def __init__(self, gamma: float = 2.0, class_weights: Any = None) -> None:
        super().__init__(class_weights)
        check_number("gamma", gamma, 0.0)
        self.gamma = gamma

    def each(self, log_chances: Tensor, index: Tensor, weights: Tensor | None) -> Tensor:
        log_chance = log_chances.gather(-1, index).squeeze(-1)
        # 1 - p, exactly 0 at most: a power of it has no gradient there that is not finite for gamma below 1.
        missing = -torch.expm1(log_chance.clamp(max=-1e-7))
        loss = -(missing**self.gamma) * log_chance
        return loss if weights is None else loss * weights[index.squeeze(-1)]
