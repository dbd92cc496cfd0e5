"""Losses of embeddings: what belongs together should lie together, what does not should lie apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from trainwright.engines.torch.losses import logits_of
from trainwright.engines.torch.targets import IGNORED, count_rows, is_mapping

_OTHERS = "the other samples of the batch are what a sample is told apart from"


def together(loss: Loss, outputs: Any, count: int) -> list[Tensor]:
    """``count`` embeddings of each sample: as a tuple, by name, or as the second of a tensor's three dimensions."""
    if isinstance(outputs, Mapping) or is_mapping(outputs):
        outputs = [value for name, value in outputs.items() if name != "loss" and isinstance(value, Tensor)]
    elif isinstance(outputs, Tensor) and outputs.ndim == 3:
        outputs = list(outputs.unbind(1))
    found = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    shapes = [tuple(one.shape) if isinstance(one, Tensor) else type(one).__name__ for one in found]
    if len(found) != count or len(set(shapes)) > 1 or len(shapes[0]) != 2:
        raise ValueError(
            f"{type(loss).__name__} takes {count} embeddings for each sample, as {count} tensors of shape (samples, "
            f"size) or one of shape (samples, {count}, size), and the model returned {shapes}."
        )
    return [in_full(one) for one in found]


def distance(one: Tensor, other: Tensor) -> Tensor:
    """How far two embeddings are from each other; its slope at 0 is 0."""
    return torch.linalg.vector_norm(one - other, dim=-1)


def refuse_labels(loss: Loss, labels: Any, instead: str) -> None:
    if labels is not None:
        raise ValueError(f"{type(loss).__name__} goes by the embeddings alone: take the labels out, or {instead}.")


def embedded(loss: Loss, outputs: Any, labels: Any) -> tuple[Tensor, Tensor]:
    """An embedding for each sample, and its class."""
    found, labels = in_full(logits_of(outputs)), refuse_missing(loss, labels)
    if found.ndim != 2 or labels.shape != found.shape[:1] or labels.is_floating_point():
        raise ValueError(
            f"{type(loss).__name__} takes an embedding for each sample and a class number, shapes (samples, size) and "
            f"(samples,), and got {tuple(found.shape)} and {tuple(labels.shape)} of {labels.dtype}."
        )
    return found, labels


class ContrastiveLoss(Loss):
    """Of pairs: squared distance where the label is 1, else what is missing from ``margin``, squared.

    The model returns two embeddings; a label of 1 means that they belong together, 0 that they do not.

    >>> import torch
    >>> one, other = torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]])
    >>> [ContrastiveLoss(margin=6.0)((one, other), torch.tensor([label])).item() for label in (1, 0)]
    [25.0, 1.0]
    """

    def __init__(self, margin: float = 1.0) -> None:
        check_number("margin", margin, 0.0, above=True)
        self.margin = margin

    def count_targets(self, batch: Any, usual: Callable[[Any], Any]) -> Any:
        return count_rows(batch)

    def __call__(self, outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Tensor:
        one, other = together(self, outputs, 2)
        labels = refuse_missing(self, labels)
        if labels.shape != one.shape[:1] or (may_be_read(labels) and not bool(((labels == 0) | (labels == 1)).all())):
            raise ValueError(
                "ContrastiveLoss takes a label for each pair, 1 where both belong together and 0 where they do not, "
                f"and got {tuple(labels.shape)} of {labels.dtype} for {len(one)} pairs."
            )
        apart = distance(one, other)
        each = torch.where(labels == 1, (one - other).square().sum(-1), (self.margin - apart).clamp(min=0).square())
        return mean_over(each.sum(), len(each), num_items_in_batch)


class InfoNCELoss(Loss):
    """Of pairs that belong together: cross-entropy of finding the partner among all of the batch, in both directions.

    The model returns two embeddings of each sample, whose cosine is divided by ``temperature``. The others of the
    batch are what each is told apart from: a larger batch is a harder task, and with accumulation or on several
    processes it is the micro-batch that counts, which is said once; ``micro_batch`` is refused.

    >>> import torch
    >>> one = torch.eye(2)
    >>> round(InfoNCELoss(temperature=1.0)((one, one), None).item(), 4)
    0.3133
    """

    joins_samples = _OTHERS
    needs_labels = False

    def __init__(self, temperature: float = 0.07, both_ways: bool = True) -> None:
        check_number("temperature", temperature, 0.0, above=True)
        self.temperature, self.both_ways = temperature, both_ways

    def count_targets(self, batch: Any, usual: Callable[[Any], Any]) -> Any:
        return count_rows(batch)

    def __call__(self, outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Tensor:
        refuse_labels(self, labels, "take SupConLoss ('sup_con'), which goes by them")
        one, other = (F.normalize(each, dim=-1) for each in together(self, outputs, 2))
        alike = one @ other.T / self.temperature
        found = F.log_softmax(alike, dim=1).diagonal()
        if self.both_ways:
            found = (found + F.log_softmax(alike, dim=0).diagonal()) / 2
        return mean_over(-found.sum(), len(found), num_items_in_batch)


class SupConLoss(Loss):
    """Of one embedding and a class for each sample: those of the same class are to be found among all of the batch.

    For each sample the mean, over the others of its class, of the cross-entropy of finding that one among all others;
    then the mean over samples with another of their class. Labels of -100 take no part. As with
    :class:`InfoNCELoss` the batch decides what is compared, so accumulation changes it.

    >>> import torch
    >>> round(SupConLoss(temperature=1.0)(torch.eye(3), torch.tensor([0, 0, 1])).item(), 4)
    0.6931
    """

    joins_samples = _OTHERS

    def __init__(self, temperature: float = 0.1) -> None:
        check_number("temperature", temperature, 0.0, above=True)
        self.temperature = temperature

    def __call__(self, outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Tensor:
        found, labels = embedded(self, outputs, labels)
        found = F.normalize(found, dim=-1)
        counts = labels != IGNORED
        others = ~torch.eye(len(found), dtype=torch.bool, device=found.device) & counts
        alike = (found @ found.T / self.temperature).masked_fill(~others, float("-inf"))
        partners = (labels.unsqueeze(0) == labels.unsqueeze(1)) & others
        log_chances = torch.where(partners, F.log_softmax(alike, dim=1), 0.0)
        has_partner = partners.any(1) & counts
        each = -log_chances.sum(1) / partners.sum(1).clamp(min=1)
        # Not by the Trainer's count, which knows nothing of partners.
        return mean_over(torch.where(has_partner, each, 0.0).sum(), has_partner.sum())
