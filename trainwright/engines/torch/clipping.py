"""Clipping by norm on the CPU: torch's kernels without what is around them, and without multiplying by one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_DENSE = torch.strided


def clip_on_cpu(parameters: Sequence[Tensor], most: float) -> Tensor | None:
    """As ``torch.nn.utils.clip_grad_norm_``, bit by bit; None, and nothing done, unless all gradients are plain ones.

    torch sorts gradients by device and format three times and enters five contexts, which takes 30 us of a small
    model's step; and it multiplies by a factor of 1, since asking whether that is needed would wait for a GPU.
    """
    gradients: list[Tensor] = []
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None:
            continue
        if type(gradient) is not Tensor or gradient.dtype is not torch.float32 or not gradient.is_cpu:
            return None
        if gradient.layout is not _DENSE:
            return None
        gradients += (gradient,)
    if not gradients:
        return None
    with torch.no_grad():
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients, 2.0)), 2.0)
        # Well below the limit the factor is 1; near it torch's own arithmetic decides.
        if not norm.item() + 1e-6 <= 0.99 * most:
            torch._foreach_mul_(gradients, torch.clamp(most / (norm + 1e-6), max=1.0))
    return norm
