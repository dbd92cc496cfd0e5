"""How far a predicted area and the true one overlap: segmentation."""

from __future__ import annotations

from collections.abc import Callable
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
    refuse_missing,
    refuse_outside,
)
from trainwright.engines.torch.losses import logits_of
from trainwright.engines.torch.targets import IGNORED, find_labels


class DiceLoss(Loss):
    """1 - 2 * overlap / (predicted area + true area), the mean over classes and then over samples.

    Labels are class numbers, one per pixel, or 0 and 1 as floats in the shape of the outputs, for areas that may
    overlap; pixels with -100 do not count. ``smooth`` is added above and below the line. ``background=False`` leaves
    class 0 out. ``cross_entropy`` adds that many times the cross-entropy, of each sample the mean over its pixels
    ("dice_ce" is this with 1). ``over_batch=True`` takes areas over the batch as one: steadier where areas are
    small, but no mean over samples any more, so the gradient depends on how a batch is cut.

    >>> import torch
    >>> logits, labels = torch.tensor([[[9.0, -9.0], [-9.0, 9.0]]]), torch.tensor([[0, 1]])
    >>> round(DiceLoss()(logits, labels).item(), 4)
    0.0
    """

    def __init__(
        self, smooth: float = 1.0, cross_entropy: float = 0.0, background: bool = True, over_batch: bool = False
    ) -> None:
        check_number("smooth", smooth, 0.0)
        check_number("cross_entropy", cross_entropy, 0.0)
        self.smooth, self.cross_entropy = smooth, cross_entropy
        self.background, self.over_batch = background, over_batch
        if over_batch:
            self.joins_samples = "over_batch=True takes areas over all samples of a batch"

    def count_targets(self, batch: Any, usual: Callable[[Any], Any]) -> Any:
        labels = find_labels(batch)
        if not isinstance(labels, Tensor) or labels.ndim < 2:
            return usual(batch)
        count = torch.count_nonzero((labels != IGNORED).flatten(1).any(1))
        return int(count) if labels.is_cpu else count

    def __call__(self, outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Tensor:
        logits, labels = in_full(logits_of(outputs)), refuse_missing(self, labels)
        areas = self._separate if labels.is_floating_point() else self._one_class
        chances, wanted, counts, entropy = areas(logits, labels)
        has_any = counts.flatten(1).any(1)
        per_sample = torch.where(has_any, self.cross_entropy * entropy, 0.0)
        wanted, chances = wanted * counts, chances * counts
        if not self.background:
            wanted, chances = wanted[..., 1:], chances[..., 1:]
        if self.over_batch:
            chances, wanted = chances.flatten(0, 1).unsqueeze(0), wanted.flatten(0, 1).unsqueeze(0)
        overlap, area = (chances * wanted).sum(1), (chances + wanted).sum(1)
        dice = (2 * overlap + self.smooth) / (area + self.smooth).clamp(min=1e-12)
        apart = 1 - dice.mean(-1)
        mean_entropy = mean_over(per_sample.sum(), has_any.sum(), num_items_in_batch)
        if self.over_batch:
            return apart.squeeze(0) + mean_entropy
        return mean_over(torch.where(has_any, apart, 0.0).sum(), has_any.sum(), num_items_in_batch) + mean_entropy

    def _one_class(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Chances and truth as samples x pixels x classes, which pixels count, and the cross-entropy of each sample."""
        logits, labels = classes_last(self, logits, labels)
        classes = logits.shape[-1]
        if classes < 2:
            raise ValueError(
                f"{type(self).__name__}: one output cannot tell classes apart: give the labels as floats in the shape "
                "of the outputs, or the model an output for each class."
            )
        if labels.ndim < 2:
            raise ValueError(f"{type(self).__name__} needs a label for each pixel: give CrossEntropyLoss one a sample.")
        refuse_outside(self, labels, classes)
        counts = (labels != IGNORED).flatten(1)
        log_chances = F.log_softmax(logits, dim=-1).reshape(len(labels), -1, classes)
        index = torch.where(counts, labels.flatten(1), 0).long()
        entropy = torch.where(counts, -log_chances.gather(-1, index.unsqueeze(-1)).squeeze(-1), 0.0).sum(1)
        wanted = F.one_hot(index, classes).to(logits.dtype)
        return log_chances.exp(), wanted, counts.unsqueeze(-1), entropy / counts.sum(1).clamp(min=1)

    def _separate(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The same for areas that may overlap: the classes are the second dimension, if there are three or more."""
        if logits.shape != labels.shape or logits.ndim < 2:
            raise ValueError(
                f"{type(self).__name__}: labels as floats have the shape of the outputs, and these are "
                f"{tuple(labels.shape)} and {tuple(logits.shape)}."
            )
        if logits.ndim == 2:
            logits, labels = logits.unsqueeze(1), labels.unsqueeze(1)
        logits, labels = logits.flatten(2).movedim(1, -1), labels.flatten(2).movedim(1, -1)
        counts = labels != IGNORED
        wanted = torch.where(counts, labels, 0.0).to(logits.dtype)
        each = -wanted * F.logsigmoid(logits) - (1 - wanted) * F.logsigmoid(-logits)
        entropy = torch.where(counts, each, 0.0).sum((1, 2)) / counts.sum((1, 2)).clamp(min=1)
        return logits.sigmoid(), wanted, counts, entropy


class DiceCrossEntropyLoss(DiceLoss):
    """:class:`DiceLoss` with cross-entropy beside it, by default as much of it.

    >>> import torch
    >>> DiceCrossEntropyLoss()(torch.zeros(1, 2, 2), torch.tensor([[0, 1]]))
    tensor(1.0265)
    """

    def __init__(
        self, cross_entropy: float = 1.0, smooth: float = 1.0, background: bool = True, over_batch: bool = False
    ) -> None:
        super().__init__(smooth, cross_entropy, background, over_batch)
