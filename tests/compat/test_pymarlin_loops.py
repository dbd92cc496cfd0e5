"""A part of PyMarlin's loop that is replaced: the rest stays as with the loop of the Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.compat.marlin_modules import Images, build
from trainwright.compat.pymarlin import SingleProcess, Trainer
from trainwright.config.warnings import TrainwrightWarning


class Own(SingleProcess):
    """Replaces a part, and does the same there."""

    def _clip_gradients(self) -> None:
        super()._clip_gradients()


def seen_in_an_epoch(folder: Path, kind: Any, seed: int) -> list[int]:
    arguments, module = build(Images(), folder / f"{kind.__name__}{seed}", epochs=1).args, Images()
    torch.manual_seed(seed)
    Trainer(module, arguments, kind()).train()
    return module.seen


@pytest.mark.slow
def test_the_seed_orders_the_samples_of_every_backend(tmp_path: Path) -> None:
    own = [seen_in_an_epoch(tmp_path, Own, seed) for seed in (1, 2)]
    assert own[0] != own[1]
    assert own == [seen_in_an_epoch(tmp_path, SingleProcess, seed) for seed in (1, 2)]


class Line(Images):
    """Rows with padded labels, so that samples and targets are not the same."""

    def __init__(self, rows: int, *, ignored: bool) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 3))
        x = torch.randn(rows, 2, generator=torch.Generator().manual_seed(0))
        labels = torch.arange(rows) % 3
        self.points = TensorDataset(x, torch.where(torch.arange(rows) % 4 == 1, -100, labels) if ignored else labels)

    def get_optimizers_schedulers(self, estimated_global_steps_per_epoch: int, epochs: int) -> Any:
        return [torch.optim.SGD(self.net.parameters(), lr=1.0)], []

    def get_train_dataloader(self, sampler: Any, batch_size: int) -> Any:
        return DataLoader(self.points, batch_size, sampler=sampler(self.points))

    def get_val_dataloaders(self, sampler: Any, batch_size: int) -> Any:
        return None


@pytest.mark.parametrize(("rows", "ignored"), [(20, False), (23, False), (22, True)])
def test_unequal_pieces_of_a_step_weigh_as_in_the_trainers_loop(rows: int, ignored: bool, tmp_path: Path) -> None:
    weights = []
    for kind in (SingleProcess, Own):
        settings = {"train_batch_size": 16, "gpu_batch_size_limit": 8, "clip_grads": False}
        arguments = build(Images(), tmp_path / kind.__name__, epochs=2, **settings).args
        module = Line(rows, ignored=ignored)
        run = Trainer(module, arguments, kind())
        run.train()
        assert run.global_steps_finished == 4
        weights.append(module.net[0].weight)
    torch.testing.assert_close(weights[0], weights[1])


def test_a_part_replaced_in_one_object_is_used(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    backend, steps = SingleProcess(), []

    def optimize(optimizers: Any, schedulers: Any) -> None:
        steps.append(1)
        SingleProcess.optimize(backend, optimizers, schedulers)

    vars(backend)["optimize"] = optimize
    arguments = build(Images(), tmp_path, epochs=1).args
    Trainer(Images(), arguments, backend).train()
    assert len(steps) == 4
    assert not [found for found in recwarn if issubclass(found.category, TrainwrightWarning)]


def test_what_a_backend_changes_without_effect_is_said(tmp_path: Path) -> None:
    class Shorter(SingleProcess):
        def init(self, args: Any) -> None:
            super().init(args)
            self.args.max_train_steps_per_epoch = 1

    class ShorterOwn(Shorter, Own):
        pass

    arguments = build(Images(), tmp_path, epochs=1).args
    with pytest.warns(TrainwrightWarning, match=r"Shorter\.init\(\) changed max_train_steps_per_epoch .*no effect"):
        run = Trainer(Images(), arguments, Shorter())
    vars(run.trainer_backend)["optimize"] = print
    with pytest.warns(TrainwrightWarning, match="after the Trainer was made, which has no effect"):
        run.train()
    assert run.global_steps_finished == 4
    # With a loop of its own it acts.
    short = Trainer(Images(), build(Images(), tmp_path / "own", epochs=1).args, ShorterOwn())
    short.train()
    assert short.global_steps_finished == 1
