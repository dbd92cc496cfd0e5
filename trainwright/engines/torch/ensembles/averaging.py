"""Weights of several checkpoints as one: their average, and the statistics that belong to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from trainwright.engines.torch.targets import is_mapping


def average_of(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of each tensor, summed in double precision; whole numbers are those of the last.

    >>> average_of([{"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([3.0, 2.0])}])
    {'w': tensor([2., 2.])}
    """
    found: dict[str, Tensor] = {}
    for name, last in states[-1].items():
        if not last.is_floating_point():
            found[name] = last.clone()
            continue
        total = torch.zeros_like(last, dtype=torch.float64)
        for state in states:
            total += state[name].double()
        found[name] = (total / len(states)).to(last.dtype)
    return found


def normalizations(model: nn.Module) -> list[_BatchNorm]:
    """Layers whose statistics are of the weights that they were taken with."""
    return [one for one in model.modules() if isinstance(one, _BatchNorm) and one.track_running_stats]


@torch.no_grad()
def take_statistics(model: nn.Module, batches: Iterable[Any]) -> None:
    """Take the statistics of batch normalization anew, as means over ``batches``; nothing else of ``model`` changes."""
    layers = normalizations(model)
    was_training = model.training
    model.eval()
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        # None is the mean over all batches, and not a moving one.
        layer.momentum = None
        layer.train()
    try:
        for batch in batches:
            if is_mapping(batch):
                model(**{name: value for name, value in batch.items() if name != "labels"})
            else:
                model(*batch[:-1])
    finally:
        model.train(was_training)
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
