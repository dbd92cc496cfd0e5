"""Passes in which every number is in one format, also where a model asks for single precision by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from trainwright.engines.torch.moving import rebuilt

_NARROWER = (torch.float32, torch.float16, torch.bfloat16)
_CASTS: tuple[Any, ...] = (Tensor.float, Tensor.half, Tensor.bfloat16)


class _Widened(TorchFunctionMode):
    """Puts float64 where a narrower format is asked for: norms and losses of transformers ask for float32."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _CASTS:
            return args[0].to(torch.float64)
        if func is Tensor.backward and len(args) == 1 and not any((kwargs or {}).values()):
            # What is computed again in a backward pass (checkpointing) must be in the same format, and torch's own
            # functions would leave this one before they begin.
            with self:
                engine: Any = torch.autograd.Variable._execution_engine
                start = torch.ones_like(args[0])
                return engine.run_backward(args, (start,), False, False, (), True, True)
        named = {name: _wide(value) for name, value in (kwargs or {}).items()}
        return func(*(_wide(value) for value in args), **named)


def _wide(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in _NARROWER else value


@contextmanager
def all_in(dtype: torch.dtype) -> Iterator[None]:
    """Within it everything is computed in float64, where that is ``dtype``; otherwise as the network says."""
    if dtype != torch.float64:
        yield
        return
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Widened():
            yield
    finally:
        torch.set_default_dtype(before)


def batch_in(value: Any, dtype: torch.dtype | None) -> Any:
    """A batch with tensors and arrays of its own, those of floating point in ``dtype``.

    >>> batch_in({"x": torch.zeros(1), "n": torch.tensor(1)}, torch.float64)
    {'x': tensor([0.], dtype=torch.float64), 'n': tensor(1)}
    """
    if isinstance(value, Tensor):
        is_cast = dtype is not None and value.is_floating_point()
        return value.detach().to(dtype if is_cast else value.dtype, copy=True)
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, Mapping):
        kind: Any = type(value)
        found = {name: batch_in(one, dtype) for name, one in value.items()}
        return found if kind is dict else kind(found)
    if isinstance(value, (list, tuple)):
        return rebuilt(value, [batch_in(one, dtype) for one in value])
    return value
