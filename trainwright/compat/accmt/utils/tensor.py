"""Tensors made longer, and shorter."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def pad(tensor: Tensor, to: int, value: float) -> Tensor:
    """``tensor`` with its last dimension filled up to ``to``; a longer one stays as it is."""
    missing = to - tensor.shape[-1]
    return F.pad(tensor, (0, missing), value=value) if missing > 0 else tensor


def drop_duplicates(tensor: Tensor, padded_mask: Tensor | None = None) -> Tensor:
    """The rows for which the mask is true; all of them without one."""
    return tensor if padded_mask is None else tensor[padded_mask.bool()]
