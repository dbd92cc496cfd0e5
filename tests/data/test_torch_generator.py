"""Whether anybody drew is read from the generator's memory: never missed, and the same without that reading."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from trainwright.data import seeding, torch_generator
from trainwright.data.seeding import Generators


def test_this_torchs_generator_can_be_read() -> None:
    assert torch_generator.read_telling()


DRAWS: list[Callable[[], object]] = [
    lambda: torch.rand(()),
    lambda: torch.randn(()),
    lambda: torch.randint(5, (1,)),
    lambda: torch.rand(624),
    lambda: torch.nn.functional.dropout(torch.ones(3)),
    random.random,
    lambda: random.gauss(0, 1),
    np.random.rand,
    lambda: np.random.randn(1),
]


@pytest.mark.parametrize("is_read", [True, False])
@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("before", [0, 1, 7])
def test_every_draw_is_noticed_and_put_back(
    draw: Callable[[], object], before: int, is_read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_read:
        monkeypatch.setattr(seeding, "read_telling", lambda: b"")
    generators = Generators()
    for _ in range(before):
        draw()
    states = generators.capture()
    # What nobody has moved is given again, and is the same.
    assert not generators.moved_since(states)
    again = generators.capture()
    draw()
    assert generators.moved_since(states)
    assert generators.moved_since(again)
    after = generators.capture()
    drawn = random.random(), np.random.rand(), torch.rand(3).tolist()
    generators.restore(states)
    assert not generators.moved_since(again)
    draw()
    assert not generators.moved_since(after)
    assert drawn == (random.random(), np.random.rand(), torch.rand(3).tolist())


def test_a_second_normal_number_that_was_kept_counts_as_a_draw() -> None:
    generators = Generators()
    torch.manual_seed(0)
    torch.randn((), dtype=torch.float64)
    states = generators.capture()
    torch.randn((), dtype=torch.float64)
    assert generators.moved_since(states)


def test_another_layout_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_generator, "_words", lambda generator: bytes(4 * 624))
    assert torch_generator._made_reader()() == b""
