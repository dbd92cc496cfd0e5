"""Rounding to a grid and back, on torchao's primitives; gradients go straight through where nothing was cut off."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from trainwright.config.errors import MissingPackage
from trainwright.recipes.quantization.schemes import Rule


@contextmanager
def _without_chatter(*names: str) -> Iterator[None]:
    """Torchao tells of GPU kernels that it cannot load; nothing here uses them."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


try:
    with _without_chatter("torchao", "torch.utils._pytree"):
        from torchao.quantization.quant_primitives import (
            MappingType,
            _fake_quantize_affine,
            choose_qparams_affine,
            quantize_affine,
        )
except ImportError:
    # Models without a quantized layer are looked at too, and need nothing of it.
    _IS_MISSING = True
else:
    _IS_MISSING = False

FLOAT8 = torch.float8_e4m3fn
_LARGEST_FLOAT8 = torch.finfo(FLOAT8).max
_SMALLEST_SCALE = torch.finfo(torch.float32).eps


def require_torchao() -> None:
    """Refuse to quantize where the package that does it is missing."""
    if _IS_MISSING:
        raise MissingPackage("Quantization needs the package torchao: pip install 'trainwright[recipes]'.")


#: Scale and zero point, one for each block.
Grid = tuple[Tensor, Tensor]


def blocks_of_weight(rule: Rule, weight: Tensor) -> tuple[int, ...]:
    """The size of what shares a scale; dimension 0 of ``weight`` are its outputs."""
    if rule.strategy == "tensor":
        return tuple(weight.shape)
    if rule.strategy == "channel":
        return (1, *weight.shape[1:])
    assert rule.group_size is not None
    return (*(1 for _ in weight.shape[1:]), rule.group_size)


def blocks_of_activation(rule: Rule, values: Tensor, *, by_sample: bool = False) -> tuple[int, ...]:
    """The same for what goes through a layer; a token is what the last dimension describes, or a whole picture."""
    if rule.strategy == "token" and by_sample:
        return (1, *values.shape[1:])
    if rule.strategy == "token":
        return (*(1 for _ in values.shape[:-1]), values.shape[-1])
    return tuple(values.shape)


@torch.no_grad()
def grid_of(values: Tensor, rule: Rule, blocks: tuple[int, ...]) -> Grid:
    """The grid that covers ``values``.

    >>> scale, zero = grid_of(torch.tensor([[-1.0, 0.5]]), Rule(symmetric=True), (1, 2))
    >>> round(float(scale) * 127.5, 6), int(zero)
    (1.0, 0)
    """
    values = values.detach().float()
    if rule.type == "float":
        largest = _largest_of_blocks(values, blocks)
        scale = (largest / _LARGEST_FLOAT8).clamp_min(_SMALLEST_SCALE)
        return scale, torch.zeros_like(scale, dtype=torch.int32)
    scale, zero = choose_qparams_affine(
        values,
        MappingType.SYMMETRIC if rule.symmetric else MappingType.ASYMMETRIC,
        blocks,  # type: ignore[bad-argument-type]
        torch.int8,
        quant_min=rule.lowest,
        quant_max=rule.highest,
        scale_dtype=torch.float32,
        zero_point_dtype=torch.int32,
        keepdim=True,
    )
    return scale, zero


def grid_of_range(low: Tensor, high: Tensor, rule: Rule) -> Grid:
    """The grid that covers everything from ``low`` to ``high``, and zero."""
    low, high = low.clamp_max(0.0), high.clamp_min(0.0)
    if rule.symmetric or rule.type == "float":
        half = _LARGEST_FLOAT8 if rule.type == "float" else (rule.highest - rule.lowest) / 2
        scale = (torch.maximum(-low, high) / half).clamp_min(_SMALLEST_SCALE)
        return scale, torch.zeros_like(scale, dtype=torch.int32)
    scale = ((high - low) / (rule.highest - rule.lowest)).clamp_min(_SMALLEST_SCALE)
    zero = (rule.lowest - torch.round(low / scale)).clamp(rule.lowest, rule.highest)
    return scale, zero.to(torch.int32)


def rounded(values: Tensor, rule: Rule, grid: Grid, blocks: tuple[int, ...]) -> Tensor:
    """``values`` as the nearest points of the grid, in their own number format; computed in float32.

    >>> rounded(torch.tensor([0.0, 0.26]), Rule(num_bits=2), (torch.tensor([0.25]), torch.tensor([0])), (2,))
    tensor([0.0000, 0.2500])
    """
    scale, zero = grid
    wide = values.float()
    if rule.type == "float":
        done: Tensor = _Float8.apply(wide, _spread(scale, blocks, wide))  # type: ignore[assignment]
    else:
        done = _fake_quantize_affine(wide, blocks, scale, zero, torch.int8, rule.lowest, rule.highest)
    return done.to(values.dtype)


@torch.no_grad()
def codes_of(values: Tensor, rule: Rule, grid: Grid, blocks: tuple[int, ...]) -> Tensor:
    """What is stored for ``values``: whole numbers, or 8-bit floating point."""
    scale, zero = grid
    wide = values.detach().float()
    if rule.type == "float":
        return (wide / _spread(scale, blocks, wide)).clamp(-_LARGEST_FLOAT8, _LARGEST_FLOAT8).to(FLOAT8)
    return quantize_affine(wide, blocks, scale, zero, torch.int8, rule.lowest, rule.highest)


class _Float8(torch.autograd.Function):
    """Cast to 8 bits and back. Autograd's own cast would cast the gradients too."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, scale: Tensor) -> Tensor:
        scaled = values / scale
        ctx.save_for_backward(scaled.abs() <= _LARGEST_FLOAT8)
        return scaled.clamp(-_LARGEST_FLOAT8, _LARGEST_FLOAT8).to(FLOAT8).float() * scale

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (is_inside,) = ctx.saved_tensors
        return gradients[0] * is_inside, None


def _largest_of_blocks(values: Tensor, blocks: tuple[int, ...]) -> Tensor:
    whole = [at for at, size in enumerate(blocks) if size == values.shape[at]]
    return values.abs().amax(whole, keepdim=True) if whole else values.abs()


def _spread(scale: Tensor, blocks: tuple[int, ...], values: Tensor) -> Tensor:
    """``scale`` so that it can be divided by: floating point has one per tensor, row or token."""
    return scale if scale.dim() in (0, values.dim()) else scale.reshape(-1, *(1 for _ in blocks[1:]))
