"""The shapes of a batch, and another batch in the same shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trainwright.engines.torch.moving import rebuilt


def shapes_of(batch: object) -> Any:
    """Shapes of the tensors in nested dicts and lists, as JSON has them; None for anything else.

    >>> shapes_of({"x": torch.zeros(2, 3), "name": "a"})
    {'x': {'shape': [2, 3]}, 'name': None}
    """
    if isinstance(batch, Tensor):
        return {"shape": list(batch.shape)}
    if isinstance(batch, Mapping):
        return {str(key): shapes_of(value) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [shapes_of(value) for value in batch]
    return None


def resized(batch: Any, shapes: Any) -> Any:
    """``batch`` with its tensors in ``shapes``: their entries are repeated or left out. What does not match stays.

    >>> resized({"x": torch.arange(3)}, {"x": {"shape": [5]}})
    {'x': tensor([0, 1, 2, 0, 1])}
    """
    if isinstance(batch, Tensor):
        wanted = shapes.get("shape") if isinstance(shapes, dict) else None
        if not isinstance(wanted, list) or len(wanted) != batch.ndim or 0 in batch.shape:
            return batch
        for dimension, size in enumerate(wanted):
            if size != batch.shape[dimension]:
                index = torch.arange(size, device=batch.device) % batch.shape[dimension]
                batch = batch.index_select(dimension, index)
        return batch
    if isinstance(batch, Mapping):
        known = shapes if isinstance(shapes, dict) else {}
        found = {key: resized(value, known.get(str(key))) for key, value in batch.items()}
        kind: Any = type(batch)
        return found if kind is dict else kind(found)
    if isinstance(batch, (list, tuple)):
        given = shapes if isinstance(shapes, list) and len(shapes) == len(batch) else [None] * len(batch)
        return rebuilt(batch, [resized(value, shape) for value, shape in zip(batch, given, strict=True)])
    return batch
