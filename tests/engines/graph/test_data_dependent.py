"""A model that looks at its own values is told where, and what to write instead."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from trainwright.engines.graph.capture import capture


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)


class Branches(Model):
    def forward(self, x: Tensor) -> Tensor:
        if self.layer(x).sum() > 0:  # here
            return x.sum() * 2
        return self.layer(x).sum()


class ReadsANumber(Model):
    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        scale = y.abs().max().item()  # here
        return (y * scale).sum()


class Counts(Model):
    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return y.flatten()[: int((y > 0).sum())].sum()  # here


class Picks(Model):
    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return y[y > 0].sum()  # here


class GoesToNumpy(Model):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tensor(self.layer(x).detach().numpy()).sum()  # here


class Prints(Model):
    def forward(self, x: Tensor) -> Tensor:
        print("seen", file=sys.stderr)
        y = self.layer(x)
        return torch.where(y.sum() > 0, y * 2, y).sum()


@pytest.mark.parametrize("kind", [Branches, ReadsANumber, Counts, Picks, GoesToNumpy])
def test_the_line_is_named(kind: type[Model], capsys: pytest.CaptureFixture[str]) -> None:
    lines = Path(__file__).read_text().splitlines()
    begin = lines.index(f"class {kind.__name__}(Model):")
    number = next(at for at in range(begin, len(lines)) if lines[at].endswith("# here")) + 1
    with pytest.raises(ValueError, match=r"Write it with tensors: torch\.where") as refused:
        capture(kind(), lambda model, x: model(x), torch.ones(2, 3))
    words = str(refused.value)
    assert f"`{lines[number - 1].strip()}` ({__file__}, line {number}, in forward)" in words
    assert "Or train with engine='torch'" in words
    assert not capsys.readouterr().err


def test_what_a_model_prints_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    capture(Prints(), lambda model, x: model(x), torch.ones(2, 3))
    assert "seen" in capsys.readouterr().err
