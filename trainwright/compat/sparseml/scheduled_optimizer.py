"""The older way to give an optimizer a recipe."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Optimizer

from trainwright.compat.sparseml.manager import ScheduledModifierManager
from trainwright.compat.sparseml.stepping import ModifiedOptimizer


def ScheduledOptimizer(
    optimizer: Optimizer,
    module: nn.Module,
    manager: ScheduledModifierManager,
    steps_per_epoch: int,
    loggers: object = None,
    initialize_kwargs: dict[str, Any] | None = None,
) -> ModifiedOptimizer:
    """What ``manager.modify`` returns; ``initialize_kwargs`` are those of ``manager.initialize``.

    >>> import torch
    >>> manager = ScheduledModifierManager.from_yaml({"training_modifiers": [{"SetLearningRateModifier": {
    ...     "learning_rate": 0.5}}]})
    >>> model = nn.Linear(2, 1)
    >>> optimizer = ScheduledOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, manager, steps_per_epoch=4)
    >>> optimizer.step()
    >>> optimizer.param_groups[0]["lr"]
    0.5
    """
    options = dict(initialize_kwargs or {})
    if loggers is not None:
        options["loggers"] = loggers
    return manager.modify(module, optimizer, steps_per_epoch, **options)
