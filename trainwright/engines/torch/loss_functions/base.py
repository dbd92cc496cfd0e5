"""What losses that are chosen by name have in common: what they count, what they need, how they refuse."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from trainwright.engines.torch.targets import IGNORED

_HALF = (torch.float16, torch.bfloat16)


class Loss:
    """A loss with settings, for ``Trainer(compute_loss_func=...)``; subclass it for one of your own.

    It is called with the model's outputs and the batch's labels, and returns the mean over what :meth:`count_targets`
    counts: then the Trainer's weights make an update the same however its batch was cut.

    >>> import torch
    >>> class Absolute(Loss):
    ...     def __call__(self, outputs, labels, num_items_in_batch=None):
    ...         return mean_over((outputs - labels).abs().sum(), len(labels), num_items_in_batch)
    >>> Absolute()(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 4.0]))
    tensor(1.5000)
    """

    #: Why the loss of a batch is not the mean of the losses of its parts; None where it is.
    joins_samples: str | None = None
    #: Whether it cannot do without labels.
    needs_labels = True
    #: Whether a label stands for one position of the outputs, so that a language model's labels are shifted for it.
    compares_positions: ClassVar[bool] = False

    def __call__(self, outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} needs a __call__ that returns the loss.")

    def count_targets(self, batch: Any, usual: Callable[[Any], Any]) -> Any:
        """What the mean over ``batch`` is taken over; ``usual`` counts labels that are not ignored, or samples."""
        return usual(batch)

    @property
    def counts_labels(self) -> bool:
        """Whether it wants to see the labels of the training data first."""
        return False

    def take_labels(self, labels: Iterable[Any]) -> None:
        """Look at the labels of all samples of the training data."""

    @property
    def found_weights(self) -> list[float] | None:
        """The weights that :meth:`take_labels` has found, for whoever uses this loss without the training data."""
        return None

    def take_weights(self, weights: list[float]) -> None:
        """Go by weights that were found before."""


def mean_over(total: Tensor, count: Any, given: Any = None) -> Tensor:
    """Divide ``total`` by what the Trainer has counted, else by ``count``; of nothing the mean is 0."""
    number = count if given is None else given
    return total / (number.clamp(min=1) if isinstance(number, Tensor) else max(number, 1))


def next_labels(labels: Any) -> Any:
    """For each position the label of the next one, as a language model learns it; the last one learns nothing.

    >>> next_labels(torch.tensor([[1, 2, 3]]))
    tensor([[   2,    3, -100]])
    """
    return F.pad(labels[..., 1:], (0, 1), value=IGNORED) if isinstance(labels, Tensor) else labels


def in_full(values: Tensor) -> Tensor:
    """``values`` in a format in which exponentials do not overflow."""
    return values.float() if values.dtype in _HALF else values


def may_be_read(values: Tensor) -> bool:
    """Whether looking at ``values`` makes nobody wait, and they are there: not on a GPU, not in a captured graph."""
    return type(values) is Tensor and values.is_cpu and not torch.compiler.is_compiling()


def refuse_missing(loss: Loss, labels: Any) -> Tensor:
    """The labels; ValueError where a batch has none."""
    if not isinstance(labels, Tensor):
        raise ValueError(
            f"{type(loss).__name__} compares outputs with labels, and the batch has none: give it 'labels', or make "
            "them its last element."
        )
    return labels


def classes_last(loss: Loss, logits: Tensor, labels: Any) -> tuple[Tensor, Tensor]:
    """Logits with the classes as last dimension, and the labels that belong to them, which are class numbers."""
    labels = refuse_missing(loss, labels)
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise ValueError(
            f"{type(loss).__name__} takes class numbers as labels, and these are of {labels.dtype}: give whole numbers "
            "(labels.long()), or take BinaryCrossEntropyLoss ('bce') for several classes at once."
        )
    if logits.ndim > 1 and logits.shape[:-1] == labels.shape:
        return logits, labels
    if logits.ndim > 2 and logits.shape[:1] + logits.shape[2:] == labels.shape:
        return logits.movedim(1, -1), labels
    raise ValueError(
        f"{type(loss).__name__}: outputs of shape {tuple(logits.shape)} do not go with labels of shape "
        f"{tuple(labels.shape)}: they need one dimension more, the classes, as last or as second one."
    )


def refuse_outside(loss: Loss, labels: Tensor, classes: int) -> None:
    """ValueError for a label that is no class; on a GPU torch says so itself."""
    if not labels.numel() or not may_be_read(labels):
        return
    counted = labels[labels != IGNORED]
    if counted.numel() and (counted.min() < 0 or counted.max() >= classes):
        wrong = sorted({int(one) for one in counted if not 0 <= one < classes})
        raise ValueError(
            f"{type(loss).__name__}: the labels hold {', '.join(map(str, wrong[:5]))}, and the outputs have {classes} "
            f"classes, 0 to {classes - 1}: number the labels from 0, mark what does not count with {IGNORED}, or give "
            "the model more outputs."
        )


def check_number(name: str, value: Any, lowest: float, highest: float = math.inf, *, above: bool = False) -> None:
    """ValueError where ``value`` is no number from ``lowest`` to ``highest``; ``above`` leaves ``lowest`` out."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and math.isfinite(value) and lowest <= value <= highest and not (above and value == lowest):
        return
    least = f"more than {lowest:g}" if above else f"at least {lowest:g}"
    most = "" if highest == math.inf else f" and at most {highest:g}"
    raise ValueError(f"{name}={value!r} should be a number, {least}{most}.")
