"""A recipe without a training: pruning at its final sparsity, quantization, layers taken out, all at once."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trainwright.config.warnings import warn
from trainwright.core.modifier import Modifier, Site
from trainwright.recipes.building import build_modifiers
from trainwright.recipes.distillation.base import LearnsFromTeacher
from trainwright.recipes.language.reading import read_recipe
from trainwright.recipes.pruning.powerpropagation import PowerpropagationModifier
from trainwright.recipes.quantization.modifier import QuantizationModifier
from trainwright.recipes.quantization.quantizers import ActivationQuantizer
from trainwright.recipes.scheduling.epochs import EpochRangeModifier
from trainwright.recipes.scheduling.parameters import TrainableParamsModifier
from trainwright.recipes.scheduling.reporting import SparsificationLoggingModifier
from trainwright.recipes.scheduling.weight_decay import SetWeightDecayModifier

logger = logging.getLogger("trainwright")

Gradients = Callable[[int], Iterator[None]]
#: Behind the end of everything.
AFTER_ALL = 1e6
#: What only a training can follow.
_FOR_TRAINING = (
    EpochRangeModifier,
    LearnsFromTeacher,
    PowerpropagationModifier,
    SetWeightDecayModifier,
    SparsificationLoggingModifier,
    TrainableParamsModifier,
)


def apply_recipe(
    model: nn.Module,
    recipe: Any,
    gradients: Gradients | None = None,
    calibrate: Iterable[Any] | None = None,
    *,
    recipe_args: Any = None,
    run: Callable[[Any], Any] | None = None,
) -> list[Modifier]:
    """Do to ``model`` what ``recipe`` would have done to it by the end of a training; returns its modifiers.

    ``gradients`` is what OBS and M-FAC judge weights by (:func:`gradients_of` makes it). ``calibrate`` are batches
    that ranges of activations are taken from; ``run(batch)`` passes one through the model where keywords or arguments
    will not do. What only a training can follow (rates, teachers) is skipped, which the log says.

    >>> model = nn.Linear(10, 10)
    >>> _ = apply_recipe(model, {"pruning_modifiers": [{"MagnitudePruningModifier": {
    ...     "params": "__ALL_PRUNABLE__", "init_sparsity": 0.05, "final_sparsity": 0.8, "end_epoch": 5}}]})
    >>> int((model.weight == 0).sum())
    80
    """
    modifiers = build_modifiers(read_recipe(recipe, recipe_args))
    apply_modifiers(model, modifiers, gradients=gradients, calibrate=calibrate, run=run)
    return modifiers


def apply_modifiers(
    model: nn.Module,
    modifiers: list[Modifier],
    *,
    gradients: Gradients | None = None,
    calibrate: Iterable[Any] | None = None,
    run: Callable[[Any], Any] | None = None,
    epoch: float = AFTER_ALL,
    finish: bool = True,
) -> None:
    """The same for modifiers that are there already, up to ``epoch``; without ``finish`` training may go on."""
    acting = [modifier for modifier in modifiers if acts_at_once(modifier)]
    if skipped := [type(modifier).__name__ for modifier in modifiers if modifier not in acting]:
        logger.info("Skipped, for there is no training: %s.", ", ".join(dict.fromkeys(skipped)))

    def rebuild(mapping: dict[Any, tuple[Any, Callable[[Any], Any] | None]]) -> None:
        for modifier in acting:
            modifier.replaced(mapping)

    site = Site(model, None, 1.0, gradients=gradients, rebuild=rebuild)
    for modifier in acting:
        modifier.prepare_model(model)
    for modifier in acting:
        if isinstance(modifier, QuantizationModifier) and calibrate is not None and epoch >= modifier.start_epoch:
            modifier.calibrate(model, calibrate, run)
        else:
            modifier.advance(site, epoch)
    _say_what_is_unknown(model)
    for modifier in acting if finish else []:
        modifier.finish_model(model)


def acts_at_once(modifier: Modifier) -> bool:
    """Whether a modifier can do its work without a training.

    >>> acts_at_once(EpochRangeModifier(start_epoch=0, end_epoch=3))
    False
    """
    return not (modifier.sets_learning_rate or isinstance(modifier, _FOR_TRAINING))


def _say_what_is_unknown(model: nn.Module) -> None:
    found = [layer for layer in model.modules() if isinstance(layer, ActivationQuantizer) and not layer.rule.dynamic]
    if any(bool(layer.low > layer.high) for layer in found):
        warn(
            "Activations are not quantized: their ranges come from data, and there was none to calibrate with. Give "
            "some, or use a scheme without activations, or with dynamic ones."
        )


def gradients_of(
    model: nn.Module, batches: Callable[[], Iterable[Any]], loss: Callable[[Any], Tensor]
) -> Callable[[int], Iterator[None]]:
    """``count -> iterator`` as modifiers ask for it, each step of which leaves the gradients of one batch in ``.grad``.

    ``batches()`` begins anew each time, and again where there are too few. Afterwards gradients, buffers and random
    numbers are as before.

    >>> model = nn.Linear(2, 1)
    >>> sampled = gradients_of(model, lambda: [torch.ones(1, 2)], lambda batch: model(batch).sum())
    >>> [model.weight.grad.tolist() for _ in sampled(2)], model.weight.grad
    ([[[1.0, 1.0]], [[1.0, 1.0]]], None)
    """

    def gradients(count: int) -> Iterator[None]:
        before = [(parameter, parameter.grad) for parameter in model.parameters()]
        buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
        was_training = [(module, module.training) for module in model.modules()]
        with _random_numbers_kept():
            try:
                model.train()
                for batch in islice(_again_and_again(batches), count):
                    model.zero_grad(set_to_none=True)
                    with torch.enable_grad():
                        loss(batch).backward()
                    yield
            finally:
                for parameter, gradient in before:
                    parameter.grad = gradient
                with torch.no_grad():
                    for buffer, value in buffers:
                        buffer.copy_(value)
                for module, training in was_training:
                    module.training = training

    return gradients


def _again_and_again(batches: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    while True:
        is_empty = True
        for batch in batches():
            is_empty = False
            yield batch
        if is_empty:
            raise ValueError("There was no batch to take gradients from.")


@contextmanager
def _random_numbers_kept() -> Iterator[None]:
    of_python, of_numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)
