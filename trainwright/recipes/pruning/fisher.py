"""The empirical Fisher matrix in blocks along its diagonal, and products with its inverse.

``F = damp * I + mean of g g^T`` over sampled gradients ``g``. Two ways to hold it: :class:`DenseFisher` keeps the
blocks (memory: weights x block size), :class:`GradientFisher` keeps the gradients (weights x samples). Both give the
same numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

#: How many numbers an intermediate result may have.
_AT_ONCE = 2**24


class DenseFisher:
    """Blocks of ``size`` x ``size`` over a flat weight of ``count`` elements.

    >>> fisher = DenseFisher(3, 2, samples=1, damp=1.0, like=torch.zeros(3))
    >>> fisher.add(torch.tensor([1.0, 1.0, 2.0]))
    >>> fisher.invert()
    >>> fisher.diagonal()
    tensor([0.6667, 0.6667, 0.2000])
    """

    def __init__(self, count: int, size: int, *, samples: int, damp: float, like: Tensor) -> None:
        self.count, self.size = count, min(size, count)
        self.damp, self._share = damp, 1 / samples
        self._padding = -count % self.size
        blocks = (count + self._padding) // self.size
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        self.blocks = torch.zeros(blocks, self.size, self.size, dtype=dtype, device=like.device)

    def _cut(self, values: Tensor) -> Tensor:
        return functional.pad(values.to(self.blocks.dtype), (0, self._padding)).view(-1, self.size)

    def add(self, gradient: Tensor) -> None:
        """One sample."""
        parts = self._cut(gradient)
        self.blocks.baddbmm_(parts.unsqueeze(2), parts.unsqueeze(1), alpha=self._share)

    def invert(self) -> None:
        """Every block becomes its inverse; some at a time, in double precision."""
        for part in self.blocks.split(max(1, _AT_ONCE // self.size**2)):
            part.copy_(_inverse(part.double(), self.damp))

    def diagonal(self) -> Tensor:
        """Of the inverse."""
        return self.blocks.diagonal(dim1=1, dim2=2).flatten()[: self.count]

    def times(self, values: Tensor) -> Tensor:
        """The inverse times ``values``."""
        return torch.bmm(self.blocks, self._cut(values).unsqueeze(2)).flatten()[: self.count]

    def corners(self, width: int) -> Tensor:
        """The ``width`` x ``width`` blocks along the diagonal of the inverse."""
        side = self.size // width
        parts = self.blocks.view(-1, side, width, side, width).diagonal(dim1=1, dim2=3)
        return parts.permute(0, 3, 1, 2).reshape(-1, width, width)[: self.count // width]


def _inverse(blocks: Tensor, damp: float) -> Tensor:
    damped = blocks + damp * torch.eye(blocks.shape[-1], dtype=blocks.dtype, device=blocks.device)
    if blocks.shape[-1] == 1:
        return 1 / damped
    factor, failed = torch.linalg.cholesky_ex(damped)
    answer = torch.cholesky_inverse(factor)
    bad = (failed != 0).nonzero().flatten()
    if bad.numel():
        # Sums in single precision can lie below zero by more than a tiny damp.
        values, vectors = torch.linalg.eigh(blocks[bad])
        answer[bad] = (vectors / (values.clamp_min(0) + damp).unsqueeze(-2)) @ vectors.mT
    return answer


class GradientFisher:
    """The same from stored gradients (``samples`` x weights), by the Woodbury identity; ``size`` None is one block."""

    def __init__(self, gradients: Tensor, size: int | None, damp: float, device: torch.device) -> None:
        self._gradients, self.damp, self._device = gradients, damp, device
        self.samples, self.count = gradients.shape
        self.size = min(size or self.count, self.count)
        self._inner: list[Tensor] | None = None

    def _blocks(self) -> list[Tensor]:
        return list(self._gradients.split(self.size, dim=1))

    def inner_products(self) -> list[Tensor]:
        """For each block the gradients' products with each other; in slices, so that little is held at a time."""
        return [_gram(block, self._device) for block in self._blocks()]

    def use(self, inner: list[Tensor]) -> None:
        """Take ``inner`` for the products: this weight's own, or the sum over weights that are one block."""
        eye = torch.eye(self.samples, dtype=torch.float64, device=self._device)
        self._inner = [torch.linalg.inv(self.samples * self.damp * eye + products) for products in inner]

    def diagonal(self) -> Tensor:
        """Of the inverse."""
        assert self._inner is not None
        parts = []
        for block, inner in zip(self._blocks(), self._inner, strict=True):
            for piece in block.split(max(1, _AT_ONCE // self.samples), dim=1):
                rows = piece.to(self._device, torch.float64)
                parts.append((1 - (rows * (inner @ rows)).sum(0)) / self.damp)
        return torch.cat(parts)

    def projections(self, values: Tensor) -> list[Tensor]:
        """For each block the products of the gradients with ``values``."""
        parts = values.double().split(self.size)
        return [_products(block, part, self._device) for block, part in zip(self._blocks(), parts, strict=True)]

    def times(self, values: Tensor, projections: list[Tensor]) -> Tensor:
        """The inverse times ``values``."""
        assert self._inner is not None
        answers = []
        for block, inner, products in zip(self._blocks(), self._inner, projections, strict=True):
            weights = inner @ products
            for piece in block.split(max(1, _AT_ONCE // self.samples), dim=1):
                answers.append(weights @ piece.to(self._device, torch.float64))
        return (values.double() - torch.cat(answers)) / self.damp


def _gram(block: Tensor, device: torch.device) -> Tensor:
    total = torch.zeros(len(block), len(block), dtype=torch.float64, device=device)
    for piece in block.split(max(1, _AT_ONCE // len(block)), dim=1):
        rows = piece.to(device, torch.float64)
        total += rows @ rows.T
    return total


def _products(block: Tensor, values: Tensor, device: torch.device) -> Tensor:
    total = torch.zeros(len(block), dtype=torch.float64, device=device)
    width = max(1, _AT_ONCE // len(block))
    for piece, part in zip(block.split(width, dim=1), values.split(width), strict=True):
        total += piece.to(device, torch.float64) @ part
    return total
