"""Tensors in the precision of the run."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainwright.compat.accmt.this_process import ThisProcess

_PRECISIONS = {"no": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def precision() -> torch.dtype:
    """What ``launch --strat`` computes in.

    >>> precision()
    torch.float32
    """
    return _PRECISIONS[ThisProcess().mixed_precision]


def autocast(*tensors: Tensor) -> Any:
    """Tensors in the precision of the run: one for one, a tuple for several."""
    cast = tuple(tensor.to(precision()) for tensor in tensors)
    return cast[0] if len(cast) == 1 else cast


def autocast_(*tensors: Tensor) -> None:
    """As :func:`autocast`, in place."""
    for tensor in tensors:
        tensor.data = tensor.data.to(precision())
