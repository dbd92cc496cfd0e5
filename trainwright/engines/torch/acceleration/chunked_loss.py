"""A linear layer and cross-entropy in one, some tokens at a time: their logits never exist together."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

#: How many logits there are at a time. On a GPU larger pieces gain nothing; caches of a CPU are small.
LOGITS_ON_GPU = 2**30
LOGITS_ON_CPU = 2**24
MOST_ROWS = 16384


def rows_at_a_time(vocabulary: int, device: str) -> int:
    """The largest power of two whose logits stay within bounds.

    >>> rows_at_a_time(50304, "cuda"), rows_at_a_time(128256, "cuda"), rows_at_a_time(10**12, "cuda")
    (16384, 8192, 16)
    """
    most = (LOGITS_ON_CPU if device == "cpu" else LOGITS_ON_GPU) // max(vocabulary, 1)
    return min(MOST_ROWS, max(16, 1 << max(most.bit_length() - 1, 0)))


def linear_cross_entropy(
    states: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, target: Tensor, ignored: int = -100
) -> tuple[Tensor, Tensor]:
    """Sum of the losses of ``target`` under ``states @ weight.T + bias``, and how many there are.

    The product is taken in ``dtype``, the loss in single precision or better. Rows without a target are left out before
    anything is computed of them.

    >>> states, weight, target = torch.randn(6, 4), torch.randn(9, 4), torch.tensor([0, 8, -100, 3, -100, 1])
    >>> total, count = linear_cross_entropy(states, weight, None, torch.float32, target)
    >>> torch.allclose(total / count, F.cross_entropy(states @ weight.T, target)), int(count)
    (True, 4)
    """
    wanted = (target != ignored).nonzero().squeeze(1)
    count = torch.full((), len(wanted), dtype=torch.float32, device=states.device)
    total: Any = _LinearCrossEntropy.apply(states, weight, bias, target, wanted, dtype)
    return total, count


class _LinearCrossEntropy(torch.autograd.Function):
    """Gradients are made on the way forward, where a piece's logits are at hand."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        wanted: Tensor,
        dtype: torch.dtype,
    ) -> Tensor:
        """Of the rows that are ``wanted``."""
        has_all = len(wanted) == len(target)
        with torch.autocast(states.device.type, enabled=False):
            low = states.to(dtype) if has_all else states[wanted].to(dtype)
            total, gradients = _sums(
                low, weight, bias, target if has_all else target[wanted], dtype, ctx.needs_input_grad
            )
        ctx.save_for_backward(*gradients, None if has_all else wanted)
        ctx.shape, ctx.dtypes = states.shape, (states.dtype, weight.dtype, None if bias is None else bias.dtype)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        *found, wanted = ctx.saved_tensors
        of_states, of_weight, of_bias = (
            None if one is None else (one * gradient).to(dtype) for one, dtype in zip(found, ctx.dtypes, strict=True)
        )
        if of_states is not None and wanted is not None:
            of_states = of_states.new_zeros(ctx.shape).index_copy_(0, wanted, of_states)
        return of_states, of_weight, of_bias, None, None, None


def _sums(
    low: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, dtype: torch.dtype, needed: tuple[bool, ...]
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """The sum of losses and its gradients by states, weight and bias, where they are ``needed``."""
    sums = torch.promote_types(dtype, torch.float32)
    low_weight, low_bias = weight.to(dtype), None if bias is None else bias.to(dtype)
    of_states = torch.empty_like(low) if needed[0] else None
    of_weight = torch.zeros_like(weight, dtype=sums) if needed[1] else None
    of_bias = torch.zeros_like(weight[:, 0], dtype=sums) if needed[2] else None
    total = torch.zeros((), dtype=sums, device=low.device)
    size = rows_at_a_time(weight.shape[0], low.device.type)
    loss_and_gradient = _piece_on_gpu if low.is_cuda and _has_triton() and sums == torch.float32 else _piece
    for start in range(0, len(target), size):
        piece = low[start : start + size]
        loss, gradient = loss_and_gradient(F.linear(piece, low_weight, low_bias), target[start : start + size])
        total += loss
        if of_states is not None:
            torch.mm(gradient, low_weight, out=of_states[start : start + size])
        if of_weight is not None:
            of_weight += gradient.T @ piece
        if of_bias is not None:
            of_bias += gradient.sum(0, dtype=sums)
    return total, (of_states, of_weight, of_bias)


def _piece(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of losses, and its gradient by the logits."""
    x = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    largest = x.amax(-1, keepdim=True)
    shares = (x - largest).exp()
    sum_of_shares = shares.sum(-1, keepdim=True)
    losses = (sum_of_shares.log() + largest).squeeze(-1) - x.gather(1, target[:, None]).squeeze(1)
    is_target = torch.arange(x.shape[1], device=x.device)[None, :] == target[:, None]
    return losses.sum(), (shares / sum_of_shares - is_target.to(x.dtype)).to(logits.dtype)


def _piece_on_gpu(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The same in one kernel."""
    from trainwright.engines.torch.acceleration.cross_entropy_kernel import losses_and_gradients

    return losses_and_gradients(logits, target).sum(), logits


@cache
def _has_triton() -> bool:
    """It comes with torch for NVIDIA and AMD on Linux."""
    return importlib.util.find_spec("triton") is not None
