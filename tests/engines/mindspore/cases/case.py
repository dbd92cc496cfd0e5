"""One call of one operation, which torch and MindSpore both make."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

aten = torch.ops.aten
_generator = torch.Generator().manual_seed(0)


@dataclass
class Case:
    """``operation(*args, **kwargs)``; ``grad=False`` where torch has no gradient, or one that is not unique."""

    operation: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    grad: bool = True
    #: How many outputs count; the rest is torch's own bookkeeping for its backward pass.
    outputs: int | None = None
    #: Positions, among the tensors, of those that get no gradient.
    still: tuple[int, ...] = ()

    @property
    def id(self) -> str:
        return str(self.operation).removeprefix("aten.")


def case(
    operation: Any,
    *args: Any,
    grad: bool = True,
    outputs: int | None = None,
    still: tuple[int, ...] = (),
    **kwargs: Any,
) -> Case:
    return Case(operation, args, kwargs, grad, outputs, still)


def floats(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=_generator, dtype=torch.float64).to(dtype)


def positive(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return floats(*shape, dtype=dtype).abs() + 0.1


def within(*shape: int) -> torch.Tensor:
    """Between -1 and 1."""
    return floats(*shape).tanh() * 0.9


def whole(*shape: int, low: int = -5, high: int = 6, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=_generator).to(dtype)


def bools(*shape: int) -> torch.Tensor:
    return whole(*shape) > 0
