"""Clipping by norm on the CPU: torch's kernels without what is around them, and without multiplying by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

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


def clipping_of(
    model: nn.Module, parameters: Sequence[Tensor], clip: Callable[..., Tensor]
) -> tuple[Callable[..., Tensor], Sequence[Any]]:
    """What clips the gradients of a step, and what it is called with: ``clip`` and all ``parameters``.

    A model whose ``clipped_apart`` names several parts has each of them clipped by its own norm.
    """
    said = getattr(model, "clipped_apart", None)
    if not callable(said):
        return clip, parameters
    trained = set(parameters)
    parts = [[one for one in part if one in trained] for part in said()]
    rest = trained.difference(*parts)
    parts.append([one for one in parameters if one in rest])
    return partial(clip_parts, clip), [part for part in parts if part]


def clip_parts(clip: Callable[..., Tensor], parts: Sequence[Sequence[Tensor]], most: float) -> Tensor:
    """Clip each part by its own norm; returns the norm over all."""
    return torch.linalg.vector_norm(torch.stack([clip(part, most) for part in parts]), 2.0)
