"""Data that SparseML's loops hand over: gradients for second-order pruning, batches for calibration."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from trainwright.recipes.oneshot import gradients_of


def gradients_from(model: nn.Module, grad_sampler: dict[str, Any] | None) -> Callable[[int], Iterator[None]] | None:
    """``grad_sampler`` has ``data_loader_builder``, which gives (args, kwargs, target), and ``loss_function``.

    >>> import torch
    >>> model = nn.Linear(2, 1)
    >>> sampler = {
    ...     "data_loader_builder": lambda options: iter([([torch.ones(1, 2)], {}, torch.zeros(1, 1))]),
    ...     "loss_function": nn.functional.mse_loss,
    ... }
    >>> sum(1 for _ in gradients_from(model, sampler)(3))
    3
    """
    if grad_sampler is None:
        return None
    missing = [name for name in ("data_loader_builder", "loss_function") if name not in grad_sampler]
    if missing:
        raise ValueError(f"grad_sampler has no {' and no '.join(missing)}: pass a dict with both.")
    build, loss_function = grad_sampler["data_loader_builder"], grad_sampler["loss_function"]

    def loss(sample: Any) -> Tensor:
        arguments, keywords, target = sample
        return loss_function(model(*arguments, **keywords), target)

    return gradients_of(model, lambda: _built(build), loss)


def _built(build: Callable[..., Any]) -> Any:
    """Batches: a builder takes options as one argument, as keywords, or not at all."""
    parameters = inspect.signature(build).parameters.values()
    is_asked = any(one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) for one in parameters)
    return build(None) if is_asked else build()


def calibration_of(model: nn.Module, loader: Any, function: Callable[..., Any] | None) -> Callable[[Any], Any] | None:
    """How one batch of a ``calibration_dataloader``, an (args, kwargs) pair, goes through the model."""
    if loader is None or function is not None:
        return None if function is None else lambda batch: function(batch, module=model)

    def run(batch: Any) -> Any:
        is_pair = isinstance(batch, (tuple, list)) and len(batch) == 2
        if is_pair and isinstance(batch[0], (tuple, list)) and isinstance(batch[1], dict):
            return model(*batch[0], **batch[1])
        if isinstance(batch, dict):
            return model(**batch)
        # (inputs, labels), as loaders of images give them.
        return model(batch[0] if is_pair else batch)

    return run
