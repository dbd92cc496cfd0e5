"""Several classes at once, each of which may hold or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from trainwright.engines.torch.loss_functions.base import (
    Loss,
    check_number,
    in_full,
    may_be_read,
    mean_over,
    refuse_missing,
)
from trainwright.engines.torch.loss_functions.class_weights import BALANCED, ClassWeights
from trainwright.engines.torch.losses import logits_of
from trainwright.engines.torch.targets import IGNORED, find_labels


class BinaryCrossEntropyLoss(Loss):
    """Yes or no for each class: labels are 0, 1 or between, in the shape of the outputs; -100 does not count.

    ``pos_weight`` is the factor of a yes: a number, a list with one for each class, or "balanced": how many no there
    are in the training data for each yes. ``smoothing`` e makes 1 - e / 2 of a 1, and e / 2 of a 0. The mean is over
    all labels that count, of all classes.

    >>> import torch
    >>> loss = BinaryCrossEntropyLoss(pos_weight=3.0)
    >>> loss(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 0.0]]))
    tensor(1.3863)
    """

    def __init__(self, pos_weight: Any = None, smoothing: float = 0.0) -> None:
        if isinstance(pos_weight, (int, float)) and not isinstance(pos_weight, bool):
            check_number("pos_weight", pos_weight, 0.0)
            self.factor, pos_weight = float(pos_weight), None
        else:
            self.factor = 1.0
        self.pos_weight = ClassWeights(pos_weight, "pos_weight")
        check_number("smoothing", smoothing, 0.0, 1.0)
        self.smoothing = smoothing

    def count_targets(self, batch: Any, usual: Callable[[Any], Any]) -> Any:
        labels = find_labels(batch)
        if not isinstance(labels, Tensor):
            return usual(batch)
        count = torch.count_nonzero(labels != IGNORED)
        return int(count) if labels.is_cpu else count

    @property
    def counts_labels(self) -> bool:
        return self.pos_weight.is_balanced

    def take_labels(self, labels: Iterable[Any]) -> None:
        yes: Any = 0
        no: Any = 0
        for label in labels:
            one = torch.as_tensor(label, dtype=torch.float64)
            one = one.reshape(-1, one.shape[-1]) if one.ndim else one.reshape(1, 1)
            counts = one != IGNORED
            yes = yes + torch.where(counts, one, 0.0).sum(0)
            no = no + torch.where(counts, 1 - one, 0.0).sum(0)
        if not isinstance(yes, Tensor):
            raise ValueError(f"pos_weight='{BALANCED}' counts the labels of the training data, and there are none.")
        # A class that never holds, or always: nothing to balance.
        self.pos_weight.take(torch.where((yes > 0) & (no > 0), no / yes, 1.0).tolist())

    @property
    def found_weights(self) -> list[float] | None:
        return self.pos_weight.values if self.counts_labels else None

    def take_weights(self, weights: list[float]) -> None:
        self.pos_weight.take(weights)

    def __call__(self, outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Tensor:
        logits, labels = in_full(logits_of(outputs)), refuse_missing(self, labels)
        if logits.shape != labels.shape:
            raise ValueError(
                f"BinaryCrossEntropyLoss: outputs of shape {tuple(logits.shape)} and labels of shape "
                f"{tuple(labels.shape)} should have the same: a 0 or 1 for each class; for class numbers take "
                "CrossEntropyLoss ('cross_entropy')."
            )
        counts = labels != IGNORED
        if may_be_read(labels) and bool((counts & ((labels < 0) | (labels > 1))).any()):
            raise ValueError("BinaryCrossEntropyLoss: labels are 0, 1 or between, and -100 where none counts.")
        wanted = torch.where(counts, labels, 0).to(logits.dtype)
        if self.smoothing:
            wanted = wanted * (1 - self.smoothing) + self.smoothing / 2
        weights = self.pos_weight.tensor(logits)
        yes = -wanted * F.logsigmoid(logits) * (self.factor if weights is None else weights)
        each = yes - (1 - wanted) * F.logsigmoid(-logits)
        return mean_over(torch.where(counts, each, 0.0).sum(), counts.sum(), num_items_in_batch)
