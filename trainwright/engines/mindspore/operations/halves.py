"""Half precision on the CPU: each operation computed in float32 and rounded once, as torch's own kernels do it.

MindSpore has no bfloat16 kernels for the CPU, and its float16 products are summed in float16. On other devices its own
kernels are used.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from mindspore import Tensor as Array

from trainwright.engines.mindspore.arrays import torch_type
from trainwright.engines.mindspore.operations.types import cast, computes_on_cpu

_HALF = (torch.float16, torch.bfloat16)


def rounded_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, which sees float32 where it is given half precision, and whose results are rounded to that."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        half = _common_half([*args, *kwargs.values()])
        if half is None or not computes_on_cpu():
            return function(*args, **kwargs)
        wide = function(*(_wide(value, half) for value in args), **{n: _wide(v, half) for n, v in kwargs.items()})
        # Somebody who names a type gets it.
        return wide if kwargs.get("dtype") is not None else _narrow(wide, half)

    return run


def _common_half(values: list[Any]) -> torch.dtype | None:
    """The half precision in which torch combines ``values``; None where none is half, or one is wider."""
    arrays = [value for value in values if isinstance(value, Array)]
    arrays += [each for value in values if isinstance(value, list | tuple) for each in value if isinstance(each, Array)]
    types = {torch_type(array) for array in arrays if torch_type(array).is_floating_point}
    halves = types.intersection(_HALF)
    # One number of another type does not decide; it is 0-d.
    wider = {torch_type(array) for array in arrays if array.ndim and torch_type(array).is_floating_point} - halves
    return halves.pop() if len(halves) == 1 and not wider else None


def _wide(value: Any, half: torch.dtype) -> Any:
    if isinstance(value, Array):
        if not torch_type(value).is_floating_point:
            return value
        # A single number of a wider type is rounded too: it, and its gradient.
        return cast(cast(value, half), torch.float32)
    return type(value)(_wide(each, half) for each in value) if type(value) in (list, tuple) else value


def _narrow(value: Any, half: torch.dtype) -> Any:
    if isinstance(value, Array):
        return cast(value, half) if torch_type(value) is torch.float32 else value
    return type(value)(_narrow(each, half) for each in value) if type(value) in (list, tuple) else value
