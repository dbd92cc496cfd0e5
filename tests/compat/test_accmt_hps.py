"""Hyperparameters of both generations, and the optimizers and schedules they describe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.compat.accmt_modules import Shared, hyper, make, samples
from trainwright.compat.accmt import AcceleratorModule, HyperParameters, Optimizer, Scheduler, Trainer

OPTIMIZERS = [name for name in vars(Optimizer) if not name.startswith("_")]
SCHEDULES: dict[str, dict[str, Any]] = {
    "StepLR": {"step_size": 2},
    "LinearLR": {},
    "ExponentialLR": {"gamma": 0.9},
    "CosineAnnealingLR": {},
    "CyclicLR": {"base_lr": 0.01, "max_lr": 0.1},
    "OneCycleLR": {"max_lr": 0.1},
    "CosineAnnealingWarmRestarts": {"T_0": 3},
    "Constant": {},
    "ConstantWithWarmup": {"num_warmup_steps": 2},
    "CosineWithWarmup": {"warmup_ratio": 0.1},
    "CosineWithHardRestartsWithWarmup": {"num_warmup_steps": 0.1},
    "InverseSQRT": {"num_warmup_steps": 2},
    "LinearWithWarmup": {"warmup_ratio": 0.1},
    "PolynomialDecayWithWarmup": {"power": 2.0},
}


class Embedded(AcceleratorModule):
    """A model with sparse gradients."""

    def __init__(self) -> None:
        self.model = nn.Embedding(4, 2, sparse=True)

    def step(self, batch: Any) -> Any:
        x, y = batch
        return F.cross_entropy(self.model((x[:, 0] > 0).long()), y)


def test_names_are_those_of_the_document() -> None:
    thirteen = {"Adam", "Adadelta", "Adagrad", "Adamax", "AdamW", "Adafactor", "ASGD", "NAdam", "RAdam", "RMSprop"}
    thirteen |= {"Rprop", "SGD", "SparseAdam"}
    assert {*thirteen, "LBFGS"} == set(OPTIMIZERS)
    assert set(SCHEDULES) == {name for name in vars(Scheduler) if not name.startswith("_")}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_trains_and_resumes(name: str, tmp_path: Path) -> None:
    kind = Embedded if name == "SparseAdam" else Shared

    def run(epochs: int, folder: Path, **options: Any) -> nn.Module:
        hps = {"epochs": epochs, "batch_size": 9, "optim": {"type": name, "lr": 0.05}}
        module = kind()
        make(folder, hps, **options).fit(module, samples())
        return module.model

    torch.manual_seed(0)
    whole = run(2, tmp_path / "whole")
    torch.manual_seed(0)
    before = kind().model
    torch.manual_seed(0)
    run(1, tmp_path / "parts")
    torch.manual_seed(0)
    resumed = run(2, tmp_path / "parts", resume=True)
    pairs = list(zip(whole.parameters(), resumed.parameters(), before.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs)
    assert not all(torch.equal(a, c) for a, _, c in pairs)


@pytest.mark.parametrize("per_epoch", [False, True])
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_runs(name: str, per_epoch: bool, tmp_path: Path) -> None:
    schedule = {"type": name, **SCHEDULES[name]}
    hps = hyper(scheduler=schedule, step_scheduler_per_epoch=per_epoch)
    assert make(tmp_path, hps, checkpoint_every=None).fit(Shared(), samples()).global_step == 14


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize(("name", "last"), [("OneCycleLR", 4e-7), ("LinearWithWarmup", None)])
def test_schedules_end_with_the_last_step(name: str, last: float | None, accumulation: int, tmp_path: Path) -> None:
    options = {"OneCycleLR": {"max_lr": 0.1}}.get(name, {})
    trainer = make(
        tmp_path,
        hyper(epochs=3, batch_size=2, scheduler={"type": name, **options}),
        grad_accumulation_steps=accumulation,
        checkpoint_every=None,
        monitor={"learning_rate": True},
    )
    module = Shared()
    steps = trainer.fit(module, samples()).global_step
    assert steps == 3 * (13 if accumulation == 1 else 4)
    rate = trainer.status_dict["learning_rate"]
    # The last update's rate: the schedule stands at its end right after it.
    assert rate == pytest.approx(0.1 / steps if last is None else last)
    if last is None:
        assert module.optimizer.param_groups[0]["lr"] == 0.0


@pytest.mark.parametrize("key", ["optim", "optimizer"])
@pytest.mark.parametrize("form", ["yaml", "json", "dict", "inner dict", "object"])
def test_both_generations_in_every_form(key: str, form: str, tmp_path: Path) -> None:
    inner = {"epochs": 3, "batch_size": [2, 8], key: {"type": "AdamW", "lr": "1e-3", "betas": [0.9, 0.98]}}
    file = tmp_path / f"hps.{form}"
    if form == "yaml":
        file.write_text(
            f"hps:\n  epochs: 3\n  batch_size: [2, 8]\n  {key}:\n"
            "    type: AdamW\n    lr: 1e-3\n    betas: [0.9, 0.98]\n"
        )
    if form == "json":
        file.write_text(json.dumps({"hps": inner}))
    source: Any = {"dict": {"hps": inner}, "inner dict": inner}.get(form, str(file))
    if form == "object":
        source = HyperParameters(
            epochs=3, batch_size=(2, 8), optim=Optimizer.AdamW, optim_kwargs={"lr": 1e-3, "betas": [0.9, 0.98]}
        )
    hps = Trainer(source, model_path=str(tmp_path / "m")).hps
    assert (hps.epochs, hps.batch_sizes, hps.optim) == (3, (2, 8, 8), torch.optim.AdamW)
    assert hps.optim_kwargs == {"lr": 0.001, "betas": [0.9, 0.98]}
    assert HyperParameters.from_config(hps.to_dict()).get_config() == hps.get_config()


def test_max_steps_come_before_epochs(tmp_path: Path) -> None:
    assert make(tmp_path, hyper(epochs=1, max_steps=9)).fit(Shared(), samples()).global_step == 9


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"epoch": 2}, "hps has no 'epoch' (did you mean 'epochs'?)"),
        (
            {"optim": {"type": "AdamW", "weigth_decay": 0.1}},
            "AdamW takes no 'weigth_decay' (did you mean 'weight_decay'?)",
        ),
        ({"optim": {"type": "AdanW"}}, "'AdanW' is not known (did you mean 'Ada"),
        ({"optim": {"lr": 0.1}}, "needs a type"),
        ({"scheduler": {"type": "OneCycle"}}, "(did you mean 'OneCycleLR'?)"),
        ({"scheduler": {"type": "OneCycleLR", "max_lrs": 0.1}}, "(did you mean 'max_lr'?)"),
        ({"scheduler": {"type": "LinearWithWarmup", "warmup": 3}}, "takes no 'warmup'"),
        ({"optimizer": {"type": "SGD"}}, "optim and optimizer are two names"),
        ({"batch_size": 0}, "batch_size=0 must be a whole number"),
        ({"batch_size": [1, 2, 3, 4]}, "[train, val, test]"),
        ({"epochs": 1.5}, "epochs=1.5 must be a whole number"),
    ],
)
def test_mistakes_are_named_with_the_file(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    file = tmp_path / "hps.json"
    file.write_text(json.dumps({"hps": {**hyper()["hps"], **change}}))
    with pytest.raises(ValueError, match=r"hps\.json") as error:
        HyperParameters.from_config(str(file))
    assert said in str(error.value)


def test_a_file_needs_its_top_key_and_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("epochs: 2\n")
    with pytest.raises(ValueError, match="no top key 'hps'"):
        HyperParameters.from_config(str(tmp_path / "a.yaml"))
    with pytest.raises(FileNotFoundError, match=r"none\.yaml"):
        HyperParameters.from_config(str(tmp_path / "none.yaml"))


def test_schedules_can_be_built_by_hand(tmp_path: Path) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = Scheduler.LinearWithWarmup(optimizer, num_warmup_steps=2, num_training_steps=4)
    assert schedule.get_last_lr() == [0.0]
    with pytest.raises(ValueError, match="warmup_ratio=2"):
        make(tmp_path, hyper(scheduler={"type": "LinearWithWarmup", "warmup_ratio": 2})).fit(Shared(), samples())
