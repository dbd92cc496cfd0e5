"""What a PyMarlin optimizer trains is saved, clipped and restored, or refused before the first step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.compat.marlin_modules import Images, build
from trainwright.compat.pymarlin import SingleProcess, Trainer


class Plain:
    """The five methods, and weights kept in every simple way."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.weights: Any = []
        self.nets = [nn.Linear(2, 2), nn.Linear(2, 2)]
        self.heads = {"a.b": nn.Linear(2, 1)}
        self.scale = nn.Parameter(torch.ones(1))
        self.weights = [*self.nets[0].parameters()]
        self.rows: Any = [torch.tensor([float(n), 1.0]) for n in range(8)]

    def trained(self) -> list[Any]:
        parts = [*self.nets, *self.heads.values()]
        return [self.scale, *(parameter for part in parts for parameter in part.parameters())]

    def get_optimizers_schedulers(self, estimated_global_steps_per_epoch: int, epochs: int) -> Any:
        return [torch.optim.SGD(self.trained(), lr=1.0)], []

    def get_train_dataloader(self, sampler: Any, batch_size: int) -> Any:
        return DataLoader(self.rows, batch_size=batch_size, sampler=sampler(self.rows))

    def get_val_dataloaders(self, sampler: Any, batch_size: int) -> Any:
        return None

    def val_step(self, global_step: int, batch: Any, device: Any) -> Any:
        return None

    def train_step(self, global_step: int, batch: Any, device: Any) -> Any:
        hidden = self.nets[1](self.nets[0](batch))
        return 100 * (self.scale * self.heads["a.b"](hidden)).square().mean()


def test_weights_in_lists_dicts_and_alone_are_saved_clipped_and_restored(tmp_path: Path) -> None:
    plain = Plain()
    before = [parameter.detach().clone() for parameter in plain.trained()]
    run = build(plain, tmp_path, epochs=1, train_batch_size=8, max_grad_norm=0.5)
    names = {f"{part}.{kind}" for part in ("nets.0", "nets.1", "heads.a_b") for kind in ("weight", "bias")}
    assert set(run.module.state_dict()) == {"scale", *names}
    run.train()
    moved = [new.detach() - old for new, old in zip(plain.trained(), before, strict=True)]
    assert all(bool(part.abs().sum() > 0) for part in moved)
    assert torch.cat([part.flatten() for part in moved]).norm().item() == pytest.approx(0.5, rel=1e-3)
    again = Plain()
    assert build(again, tmp_path, epochs=1, train_batch_size=8).last_epoch == 0
    for new, old in zip(again.trained(), plain.trained(), strict=True):
        assert torch.equal(new, old)


class Late(Plain):
    """Makes a net where nobody sees it in time."""

    def get_optimizers_schedulers(self, estimated_global_steps_per_epoch: int, epochs: int) -> Any:
        self.late = nn.Linear(3, 2)
        return [torch.optim.SGD([*self.trained(), *self.late.parameters()], lr=1.0)], []


class Hidden(Images):
    """A net in a list, which torch does not see."""

    def get_optimizers_schedulers(self, estimated_global_steps_per_epoch: int, epochs: int) -> Any:
        self.hidden = [nn.Linear(3, 2)]
        return [torch.optim.SGD(self.hidden[0].parameters(), lr=1.0)], []


class Own(SingleProcess):
    """Has a loop of its own."""

    def _clip_gradients(self) -> None:
        super()._clip_gradients()


@pytest.mark.parametrize("make", [Late, Hidden])
@pytest.mark.parametrize("backend", [SingleProcess, Own])
def test_weights_that_a_checkpoint_would_not_hold_are_refused(make: Any, backend: Any, tmp_path: Path) -> None:
    arguments = build(Images(), tmp_path).args
    with pytest.raises(ValueError, match=rf"{make.__name__} does not hold .*\(2, 3\).*Make them in __init__"):
        Trainer(make(), arguments, backend())


def test_a_state_of_ones_own_that_holds_them_will_do_for_a_loop_of_ones_own(tmp_path: Path) -> None:
    class Kept(Hidden):
        def get_state(self) -> dict[str, Any]:
            return {"hidden": [net.state_dict() for net in self.hidden]}

    module = Kept()
    trainer = Trainer(module, build(Images(), tmp_path).args, Own())
    assert trainer.optimizers[0].param_groups[0]["params"][0] is module.hidden[0].weight
