"""Ranges of activations from data, without training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

import torch
from torch import nn

from trainwright.recipes.quantization.quantizers import ActivationQuantizer


@torch.no_grad()
def calibrate(
    model: nn.Module, batches: Iterable[Any], run: Callable[[Any], Any] | None = None, *, steps: int | None = None
) -> int:
    """Let the observers of a quantized ``model`` see ``batches``; returns how many there were.

    ``run(batch)`` passes one through the model; without it, a mapping is passed as keywords, a tuple as arguments. Only
    the observers are in training mode: dropout and batch normalization are as they are when predicting.

    >>> from trainwright.recipes.quantization.modifier import QuantizationModifier
    >>> model, modifier = nn.Sequential(nn.Linear(4, 2)), QuantizationModifier()
    >>> modifier.calibrate(model, [torch.tensor([[-1.0, 0.0, 1.0, 2.0]])])
    >>> model[0].input_fake_quantizer.high
    tensor(2.)
    """
    observers = [module for module in model.modules() if isinstance(module, ActivationQuantizer)]
    was_training = {module: module.training for module in model.modules()}
    model.eval()
    for observer in observers:
        observer.training = observer.is_observing = True
    count = 0
    try:
        for batch in islice(iter(batches), steps):
            _pass(model, batch, run)
            count += 1
    finally:
        for module, training in was_training.items():
            module.training = training
        for observer in observers:
            observer.is_observing = False
    if count == 0 and any(not observer.rule.dynamic for observer in observers):
        raise ValueError("There was no batch to learn the ranges of activations from: pass some, or a dynamic scheme.")
    return count


def _pass(model: nn.Module, batch: object, run: Callable[[Any], Any] | None) -> None:
    if run is not None:
        run(batch)
    elif isinstance(batch, Mapping):
        model(**batch)
    elif isinstance(batch, (list, tuple)):
        model(*batch)
    else:
        model(batch)
