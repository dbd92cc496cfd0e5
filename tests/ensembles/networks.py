"""Networks that members of the tests' ensembles are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Net(nn.Module):
    """A network of two layers in double precision, with what ``between`` puts between them."""

    def __init__(self, *between: nn.Module, outputs: int = 3) -> None:
        super().__init__()
        self.first, self.between, self.last = nn.Linear(4, 6), nn.Sequential(*between), nn.Linear(6, outputs)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(torch.tanh(self.first(x))))


def rows(count: int, seed: int = 0) -> list[dict[str, Tensor]]:
    """Points of three classes that overlap a little."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (count,), generator=generator)
    points = torch.randn(count, 4, dtype=torch.float64, generator=generator)
    points[:, :3] += 1.5 * nn.functional.one_hot(labels, 3)
    return [{"x": point, "labels": label} for point, label in zip(points, labels, strict=True)]


def numbers(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """The same points with amounts."""
    return [{"x": row["x"], "labels": row["x"].sum() * 2} for row in rows(count, seed)]
