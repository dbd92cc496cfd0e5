"""The ``training`` flags of modules between an evaluation and the next step."""

from __future__ import annotations

from torch import nn


class TrainingFlags:
    """Lets a model that is ready to train say that it does not train, so that callbacks find it as it was evaluated.

    Only the flags change. ``train()`` and ``eval()`` may do more (merge adapters, freeze parts), and are called where
    they would be without this: what is saved, and how training goes on, stays the same to the last bit.

    >>> model, flags = nn.Sequential(nn.Dropout(), nn.Linear(1, 1).eval()), TrainingFlags()
    >>> flags.lower(model)
    >>> [part.training for part in model.modules()]
    [False, False, False]
    >>> flags.put_back()
    >>> [part.training for part in model.modules()]
    [True, True, False]
    """

    def __init__(self) -> None:
        self._lowered: list[nn.Module] = []

    def lower(self, model: nn.Module) -> None:
        """Set the flags of all parts that train to False."""
        self._lowered += [part for part in model.modules() if part.training]
        for part in self._lowered:
            part.training = False

    def put_back(self) -> None:
        """Set the flags to True that were so before."""
        for part in self._lowered:
            part.training = True
        self._lowered = []
