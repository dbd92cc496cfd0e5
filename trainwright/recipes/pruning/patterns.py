"""Which weights are masked together: each alone, blocks, N of M, whole filters or channels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch.nn import functional

#: What ``mask_type`` may be, for messages.
KNOWN = "'unstructured', 'block4', 'tensorrt', 'N:M' as in '2:4', or a block [rows, columns]"


@dataclass(frozen=True)
class Pattern:
    """The units that masks are made of; by default every weight is one.

    Weights are read as (output, input, position in the kernel...), so blocks and groups run along outputs and inputs.
    """

    #: Rows and columns of a block; -1 is the whole dimension.
    block: tuple[int, int] = (1, 1)
    #: Whether the last block of a row may be smaller.
    padded: bool = False
    #: Of ``group[1]`` neighbours along the inputs ``group[0]`` stay.
    group: tuple[int, int] | None = None
    #: 0: whole filters, 1: whole channels.
    dimension: int | None = None

    @property
    def densest_final(self) -> float | None:
        """The sparsity that N:M ends with."""
        return None if self.group is None else 1 - self.group[0] / self.group[1]

    def check(self, name: str, shape: Sequence[int]) -> None:
        """Refuse a weight that this cannot be cut from."""
        if self.dimension is not None and len(shape) <= self.dimension:
            raise ValueError(f"{name} has no dimension {self.dimension} to prune: leave it out of params.")
        if self.group is not None and (len(shape) < 2 or shape[1] % self.group[1]):
            kept, of = self.group
            raise ValueError(
                f"{name} of shape {list(shape)} cannot be pruned {kept}:{of}: its inputs (dimension 1) must be a "
                f"multiple of {of}. Leave it out of params."
            )
        if self.block == (1, 1) or self.padded:
            return
        if len(shape) < 2:
            raise ValueError(f"{name} has one dimension, blocks {list(self.block)} need two: leave it out of params.")
        for size, step in zip(shape, self.block, strict=False):
            if step != -1 and size % step:
                raise ValueError(
                    f"{name} of shape {list(shape)} cannot be cut into blocks {list(self.block)}: {step} does not "
                    f"divide {size}. Use another block, mask_type: block4, or leave it out of params."
                )

    def unit_scores(self, scores: Tensor) -> Tensor:
        """One score for each unit; +inf where this may not be masked."""
        if self.dimension is not None:
            return torch.linalg.vector_norm(self._slices(scores), dim=1)
        if self.group is not None:
            return scores.masked_fill(~self._candidates(scores), float("inf")).flatten()
        if self.block == (1, 1):
            return scores.flatten()
        blocks = self._blocks(scores)
        size = self._blocks(torch.ones_like(scores)).sum((1, 3)) if self.padded else blocks.shape[1] * blocks.shape[3]
        return (blocks.sum((1, 3)) / size).flatten()

    def any_of(self, mask: Tensor) -> Tensor:
        """Which units have something in ``mask``."""
        if self.dimension is not None:
            return self._slices(mask).any(1)
        if self.group is not None or self.block == (1, 1):
            return mask.flatten()
        return self._blocks(mask).any(3).any(1).flatten()

    def sizes(self, shape: torch.Size) -> Tensor | None:
        """How many weights each unit has, where they differ."""
        if not self.padded or (shape[-1] if len(shape) == 1 else shape[1]) % self.block[1] == 0:
            return None
        return self._blocks(torch.ones(shape, dtype=torch.int64)).sum((1, 3)).flatten()

    def spread(self, units: Tensor, like: Tensor) -> Tensor:
        """A value for each unit -> one for each weight."""
        shape = like.shape
        if self.dimension is not None:
            sizes = [1] * len(shape)
            sizes[self.dimension] = shape[self.dimension]
            return units.view(sizes).expand(shape).contiguous()
        if self.group is not None or self.block == (1, 1):
            return units.view(shape)
        rows, columns, positions = _as_matrix(shape)
        height, width = self._block_for(rows, columns)
        grid = units.view(rows // height, 1, -1, 1, positions)
        whole = grid.expand(-1, height, -1, width, -1).reshape(rows, -1, positions)
        return whole[:, :columns].reshape(shape).contiguous()

    def _slices(self, values: Tensor) -> Tensor:
        assert self.dimension is not None
        return values.transpose(0, self.dimension).reshape(values.shape[self.dimension], -1)

    def _block_for(self, rows: int, columns: int) -> tuple[int, int]:
        height, width = self.block
        return (rows if height == -1 else height), (columns if width == -1 else width)

    def _blocks(self, values: Tensor) -> Tensor:
        rows, columns, positions = _as_matrix(values.shape)
        height, width = self._block_for(rows, columns)
        values = functional.pad(values.reshape(rows, columns, positions), (0, 0, 0, -columns % width))
        return values.view(rows // height, height, -1, width, positions)

    def _candidates(self, scores: Tensor) -> Tensor:
        """The M - N lowest of each group: only these are ever masked, the lowest of them first."""
        assert self.group is not None
        kept, of = self.group
        inputs_last = scores.movedim(1, -1)
        groups = inputs_last.reshape(-1, of)
        order = groups.argsort(dim=1, stable=True)[:, : of - kept]
        chosen = torch.zeros_like(groups, dtype=torch.bool).scatter_(1, order, True)
        return chosen.view(inputs_last.shape).movedim(-1, 1)


def _as_matrix(shape: torch.Size) -> tuple[int, int, int]:
    if len(shape) == 1:
        return 1, shape[0], 1
    return shape[0], shape[1], prod(shape[2:])


def pattern_of(mask_type: str | Sequence[int]) -> Pattern:
    """What a recipe's ``mask_type`` means.

    >>> pattern_of("2:4").group, pattern_of("[1, 4]").block, pattern_of([4, -1]).block
    ((2, 4), (1, 4), (4, -1))
    """
    if not isinstance(mask_type, str):
        return _block_pattern(list(mask_type), mask_type)
    text = mask_type.strip().lower()
    simple = {
        "unstructured": Pattern(),
        "block4": Pattern(block=(1, 4), padded=True),
        "tensorrt": Pattern(group=(2, 4)),
        "filter": Pattern(dimension=0),
        "channel": Pattern(dimension=1),
    }
    if text in simple:
        return simple[text]
    if match := re.fullmatch(r"(\d+)\s*:\s*(\d+)", text):
        kept, of = int(match[1]), int(match[2])
        if not 0 < kept < of:
            raise ValueError(f"mask_type={mask_type!r}: N of M weights stay, so N must be from 1 to M - 1.")
        return Pattern(group=(kept, of))
    if match := re.fullmatch(r"[\[(]\s*(-?\d+)\s*,\s*(-?\d+)\s*[\])]", text):
        return _block_pattern([int(match[1]), int(match[2])], mask_type)
    raise ValueError(f"mask_type={mask_type!r} is not known: use {KNOWN}.")


def _block_pattern(block: list[int], mask_type: object) -> Pattern:
    if len(block) != 2 or not all(isinstance(size, int) and (size > 0 or size == -1) for size in block):
        raise ValueError(f"mask_type={mask_type!r}: a block is [rows, columns], whole numbers above 0 or -1 for all.")
    return Pattern(block=(block[0], block[1]))
