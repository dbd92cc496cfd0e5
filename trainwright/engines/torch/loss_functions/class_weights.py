"""Weights of classes: as they are given, or from how often each occurs in the training data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from trainwright.engines.torch.loss_functions.base import check_number
from trainwright.engines.torch.targets import IGNORED

BALANCED = "balanced"


class ClassWeights:
    """A factor for each class; ``"balanced"`` ones are ``samples / (classes * samples of the class)``.

    So a rare class counts as much as a frequent one, and the mean factor over the training data is 1. A class without
    a sample has the factor 1.

    >>> weights = ClassWeights("balanced", "class_weights")
    >>> weights.count([0, 0, 0, 1])
    >>> [round(weight, 3) for weight in weights.values]
    [0.667, 2.0]
    """

    def __init__(self, given: Any, name: str) -> None:
        self.name, self.given = name, given
        self.values: list[float] | None = None
        self._made: Tensor | None = None
        if given is None or given == BALANCED:
            return
        if isinstance(given, Tensor):
            given = given.tolist()
        if not isinstance(given, (list, tuple)) or not given:
            raise ValueError(f"{name}={given!r} should be a list with a number for each class, or '{BALANCED}'.")
        for place, value in enumerate(given):
            check_number(f"{name}[{place}]", value, 0.0)
        self.values = [float(value) for value in given]

    @property
    def is_balanced(self) -> bool:
        return isinstance(self.given, str)

    def count(self, labels: Iterable[Any]) -> None:
        """Find the weights from class numbers: of each sample one, or a tensor or list of them."""
        found: Counter[int] = Counter()
        for label in labels:
            one = label if isinstance(label, Tensor) else torch.as_tensor(label)
            if one.is_floating_point():
                raise ValueError(f"{self.name}='{BALANCED}' counts class numbers, and the labels are of {one.dtype}.")
            found.update([int(one)] if one.ndim == 0 else one.reshape(-1).tolist())
        del found[IGNORED]
        if not found or min(found) < 0:
            wrong = "none that counts" if not found else f"{min(found)}"
            raise ValueError(f"{self.name}='{BALANCED}' counts class numbers from 0 on, and the labels hold {wrong}.")
        total, classes = found.total(), len(found)
        weights = [total / (classes * found[one]) if found[one] else 1.0 for one in range(max(found) + 1)]
        self.take(weights)

    def take(self, values: list[float]) -> None:
        self.values, self._made = values, None

    def tensor(self, logits: Tensor) -> Tensor | None:
        """A factor for each class of ``logits``, whose last dimension they are; None where none was asked for."""
        if self.given is None:
            return None
        if self.values is None:
            raise ValueError(
                f"{self.name}='{BALANCED}' counts the labels of the training data, which are not there: give the "
                f"Trainer its train_dataset, or {self.name} as a list."
            )
        classes = logits.shape[-1]
        if len(self.values) != classes and not (self.is_balanced and len(self.values) < classes):
            raise ValueError(
                f"{self.name} has {len(self.values)} numbers, and the outputs have {classes} classes: give each one."
            )
        made = self._made
        if made is None or made.device != logits.device or made.dtype != logits.dtype or len(made) != classes:
            values = self.values + [1.0] * (classes - len(self.values))
            made = torch.tensor(values, dtype=logits.dtype, device=logits.device)
            # Copied to the device once, and not kept from a graph that is being captured, where it has no values.
            self._made = made if type(made) is Tensor else None
        return made
