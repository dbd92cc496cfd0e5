"""What a model, or a Module's step method, returned: loss, predictions, labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trainwright.engines.torch.module import loss_in


def parts_of(outputs: Any, *, with_loss: bool) -> tuple[Tensor | None, Any, Any]:
    """(loss, the other outputs, labels) among what a Module's step method returned; each may be None."""
    if outputs is None:
        return None, None, None
    if isinstance(outputs, Tensor):
        return (outputs, None, None) if with_loss and outputs.ndim == 0 else (None, outputs, None)
    if isinstance(outputs, Mapping):
        rest = {name: value for name, value in outputs.items() if name not in ("loss", "labels")}
        return loss_in(outputs) if with_loss else None, rest or None, outputs.get("labels")
    loss = loss_in(outputs) if with_loss else None
    if loss is None or loss.ndim:
        return None, outputs or None, None
    return loss, tuple(outputs[1:]) or None, None


def predictions_in(outputs: object, ignored: Iterable[str]) -> Any:
    """Everything a model returned but the loss: one tensor, or a tuple of several."""
    skipped = {*ignored, "loss"}
    if dataclasses.is_dataclass(outputs) and not isinstance(outputs, (type, Mapping)):
        outputs = {f.name: getattr(outputs, f.name) for f in dataclasses.fields(outputs)}
    if isinstance(outputs, Mapping):
        values = tuple(value for name, value in outputs.items() if name not in skipped and value is not None)
    elif isinstance(outputs, (tuple, list)):
        begins_with_loss = isinstance(outputs[0], Tensor) and outputs[0].ndim == 0
        values = tuple(outputs[1:] if begins_with_loss else outputs)
    else:
        values = (outputs,)
    values = tuple(_detached(value) for value in values)
    return values[0] if len(values) == 1 else values


def _detached(value: object) -> Any:
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, (tuple, list)):
        return tuple(_detached(item) for item in value)
    return value


def mean_of(outputs: Sequence[Any]) -> Any:
    """Mean over several outputs of the same structure."""
    first = outputs[0]
    if first is None:
        return None
    if isinstance(first, tuple):
        return tuple(mean_of(column) for column in zip(*outputs, strict=True))
    return torch.stack(list(outputs)).mean(0)
