"""A part of PyMarlin's loop that is replaced: the rest stays as with the loop of the Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.compat.marlin_modules import Images, build
from trainwright.compat.pymarlin import SingleProcess, Trainer


class Own(SingleProcess):
    """Replaces a part, and does the same there."""

    def _clip_gradients(self) -> None:
        super()._clip_gradients()


def seen_in_an_epoch(folder: Path, kind: Any, seed: int) -> list[int]:
    arguments, module = build(Images(), folder / f"{kind.__name__}{seed}", epochs=1).args, Images()
    torch.manual_seed(seed)
    Trainer(module, arguments, kind()).train()
    return module.seen


def test_the_seed_orders_the_samples_of_every_backend(tmp_path: Path) -> None:
    own = [seen_in_an_epoch(tmp_path, Own, seed) for seed in (1, 2)]
    assert own[0] != own[1]
    assert own == [seen_in_an_epoch(tmp_path, SingleProcess, seed) for seed in (1, 2)]
