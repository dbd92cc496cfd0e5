"""An ensemble is a model: each member learns what it would alone, and they predict as one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.ensembles.networks import Net, numbers, rows
from trainwright import (
    DiceLoss,
    Ensemble,
    FocalLoss,
    InfoNCELoss,
    Trainer,
    TrainingArguments,
    calibrate,
    numbered,
    set_seed,
)
from trainwright.engines.torch.ensembles.bags import bag_weights
from trainwright.engines.torch.ensembles.combining import calibration_error, combined, fitted_shares
from trainwright.engines.torch.ensembles.combining import fitted_temperature as temperature_of

ROWS, HELD_OUT = rows(44), rows(60, seed=1)
Make = Callable[[], nn.Module]


def arguments(folder: Path, **more: Any) -> TrainingArguments:
    options: dict[str, Any] = {
        "per_device_train_batch_size": 8,
        "num_train_epochs": 2,
        "learning_rate": 2e-2,
        "weight_decay": 0.01,
        "max_grad_norm": 0.3,
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
        "write_report": False,
        "use_cpu": True,
        **more,
    }
    return TrainingArguments(str(folder), **options)


def trained(model: nn.Module, folder: Path, data: Any = ROWS, **more: Any) -> Any:
    Trainer(model, arguments(folder, **more), train_dataset=data).train()
    return model


def alone(make: Callable[[], Any], seed: int) -> Any:
    set_seed(seed)
    return make()


@pytest.mark.parametrize("vectorize", [True, False])
@pytest.mark.parametrize(
    "make",
    [Net, lambda: Net(nn.BatchNorm1d(6)), lambda: Net(nn.LayerNorm(6), nn.Linear(6, 6))],
    ids=["plain", "batch-norm", "layer-norm"],
)
@pytest.mark.parametrize("optim", ["adamw_torch", "sgd"])
def test_each_member_learns_what_it_learns_alone(tmp_path: Path, make: Make, vectorize: bool, optim: str) -> None:
    ensemble = trained(Ensemble(make, 3, seed=7, vectorize=vectorize), tmp_path / "all", optim=optim)
    assert ensemble.how == ("together" if vectorize else "in turn")
    for place, member in enumerate(ensemble.members):
        single = trained(alone(make, 7 + place), tmp_path / f"{place}", optim=optim)
        for name, weight in single.state_dict().items():
            torch.testing.assert_close(member.state_dict()[name], weight, rtol=1e-9, atol=1e-11)


def test_a_member_with_large_gradients_does_not_shorten_those_of_others(tmp_path: Path) -> None:
    def clipped(loud: float) -> Tensor:
        members = [alone(Net, 1), alone(Net, 2)]
        with torch.no_grad():
            members[1].last.weight.mul_(loud)
        return trained(Ensemble(members), tmp_path / str(loud), optim="sgd").members[0].first.weight

    assert torch.equal(clipped(1.0), clipped(100.0))


@pytest.mark.parametrize("vectorize", [True, False])
def test_a_resume_ends_with_the_same_bits(tmp_path: Path, vectorize: bool) -> None:
    def make() -> Ensemble:
        return Ensemble(lambda: Net(nn.BatchNorm1d(6), nn.Dropout(0.2)), 3, bags=True, vectorize=vectorize)

    data = numbered(ROWS)
    saving = {"save_strategy": "steps", "save_steps": 5, "resume": "auto"}
    trained(make(), tmp_path / "parts", data, max_steps=5, lr_scheduler_type="constant", **saving)
    through = trained(make(), tmp_path / "parts", data, lr_scheduler_type="constant", **saving)
    straight = trained(make(), tmp_path / "straight", data, lr_scheduler_type="constant")
    assert all(torch.equal(one, through.state_dict()[name]) for name, one in straight.state_dict().items())


def test_bags_are_drawn_with_replacement_and_stay_the_same() -> None:
    found = bag_weights(torch.arange(50_000), [3, 4])
    assert found.mean(1).tolist() == pytest.approx([1, 1], abs=0.02)
    assert (found == 0).double().mean(1).tolist() == pytest.approx([0.368, 0.368], abs=0.01)
    assert abs(float(torch.corrcoef(found)[0, 1])) < 0.02
    some = torch.tensor([7, 49_999, 3])
    assert torch.equal(bag_weights(some, [4])[0], found[1, some])


def test_a_member_learns_from_its_bag_however_batches_are_cut(tmp_path: Path) -> None:
    made: Any = Ensemble(Net, 2, seed=7, bags=True)
    single = alone(Net, 8)
    pass_ = made.train()(
        **{name: torch.stack([row[name] for row in ROWS]) for name in ("x", "labels")}, sample_number=torch.arange(44)
    )
    pass_["loss"].backward()
    logits, labels = single(torch.stack([row["x"] for row in ROWS])), torch.stack([row["labels"] for row in ROWS])
    losses = nn.functional.cross_entropy(logits, labels, reduction="none")
    (losses * bag_weights(torch.arange(44), [8])[0]).mean().backward()
    torch.testing.assert_close(made.members[1].first.weight.grad, single.first.weight.grad)
    whole = trained(Ensemble(Net, 2, bags=True), tmp_path / "whole", numbered(ROWS))
    cut = trained(Ensemble(Net, 2, bags=True), tmp_path / "cut", numbered(ROWS), micro_batch=3)
    for name, weight in whole.state_dict().items():
        torch.testing.assert_close(cut.state_dict()[name], weight)


class Branching(Net):
    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        return -logits if logits.sum().item() > 0 else logits


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.memory, self.head = nn.GRU(4, 5, batch_first=True), nn.Linear(5, 3)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.memory(x.unsqueeze(1))[0][:, 0])


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([Net(), Net(nn.Linear(6, 6))], "not built alike"),
        ([Branching(), Branching()], "torch.func cannot compute this model for all at once"),
        ([Recurrent(), Recurrent()], "torch.func cannot compute this model for all at once"),
    ],
)
def test_what_cannot_be_computed_together_takes_turns_and_says_so(
    members: list[nn.Module], reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "trainwright"):
        ensemble = trained(Ensemble(members), tmp_path / "run")
    (line,) = [record.message for record in caplog.records if "in turn" in record.message]
    assert reason in line
    assert reason in ensemble.how


def test_the_proof_leaves_no_trace() -> None:
    ensemble = Ensemble(lambda: Net(nn.BatchNorm1d(6)), 2).train()
    other = Ensemble(lambda: Net(nn.BatchNorm1d(6)), 2, vectorize=False).train()
    before = torch.get_rng_state()
    batch = {name: torch.stack([row[name] for row in ROWS]) for name in ("x", "labels")}
    one, two = ensemble(**batch)["loss"], other(**batch)["loss"]
    torch.testing.assert_close(one, two)
    assert torch.equal(torch.get_rng_state(), before)
    for name, value in other.state_dict().items():
        torch.testing.assert_close(ensemble.state_dict()[name], value)


def test_members_vote_and_are_averaged_and_weighted() -> None:
    apart = torch.log(torch.tensor([[[0.90, 0.08, 0.02]], [[0.30, 0.60, 0.10]], [[0.35, 0.55, 0.10]]]))
    shares = torch.tensor([0.0, 0.5, 0.5])
    average = combined(apart, "average", shares).exp()
    torch.testing.assert_close(average, apart.exp().mean(0))
    assert combined(apart, "vote", shares).argmax(-1).item() == 1
    assert average.argmax(-1).item() == 0
    torch.testing.assert_close(combined(apart, "stacked", shares).exp(), apart.exp()[1:].mean(0))
    even = torch.log(torch.tensor([[[0.9, 0.1]], [[0.4, 0.6]]]))
    assert combined(even, "vote", torch.ones(2) / 2).argmax(-1).item() == 0


def test_uncertainty_is_told_apart() -> None:
    class Fixed(nn.Module):
        def __init__(self, *logits: float) -> None:
            super().__init__()
            self.logits = nn.Parameter(torch.tensor(logits))

        def forward(self, x: Tensor) -> Tensor:
            return self.logits.expand(len(x), -1)

    agree = Ensemble([Fixed(0.0, 0.0), Fixed(0.0, 0.0)]).eval()(torch.zeros(1, 1))
    contradict = Ensemble([Fixed(9.0, -9.0), Fixed(-9.0, 9.0)]).eval()(torch.zeros(1, 1))
    for found in (agree, contradict):
        assert found["entropy"].item() == pytest.approx(0.6931, abs=1e-3)
    assert agree["disagreement"].item() == pytest.approx(0, abs=1e-6)
    assert contradict["disagreement"].item() == pytest.approx(0.6931, abs=1e-3)
    spread = Ensemble([Fixed(1.0), Fixed(3.0)], kind="numbers").eval()(torch.zeros(1, 1))
    assert (spread["logits"].item(), spread["spread"].item()) == (2.0, 1.0)


def test_temperature_and_shares_are_found() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4000, 3, generator=generator)
    labels = _drawn(logits, generator)
    assert temperature_of(logits * 3, labels) == pytest.approx(3, rel=0.1)
    assert calibration_error(logits, labels) < 0.05 < calibration_error(logits * 3, labels)
    noise = torch.randn(4000, 3, generator=generator)
    assert fitted_shares(torch.stack([logits, noise]), labels)[0] > 0.8


def _drawn(logits: Tensor, generator: torch.Generator) -> Tensor:
    return torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(1)


@pytest.mark.parametrize("predict", ["average", "stacked"])
def test_calibration_belongs_to_the_saved_model(tmp_path: Path, predict: str) -> None:
    ensemble = Ensemble(Net, 3, predict=predict)
    trainer = Trainer(
        ensemble, arguments(tmp_path / "run", num_train_epochs=8), train_dataset=ROWS, eval_dataset=HELD_OUT
    )
    trainer.train()
    found = calibrate(trainer)
    assert found.samples == 60
    assert float(ensemble.temperature) == pytest.approx(found.temperature) != 1
    assert sum(found.shares) == pytest.approx(1)
    assert (len(set(found.shares)) > 1) == (predict == "stacked")
    trainer.save_model(str(tmp_path / "saved"))
    other = Ensemble(Net, 3, seed=99, predict=predict)
    loaded = Trainer(other, arguments(tmp_path / "other"), eval_dataset=HELD_OUT)
    loaded._load_from_checkpoint(str(tmp_path / "saved"))
    assert loaded.evaluate()["eval_loss"] == trainer.evaluate()["eval_loss"]


def test_amounts_are_averaged_and_calibrated(tmp_path: Path) -> None:
    ensemble = Ensemble(lambda: Net(outputs=1), 3, kind="numbers", predict="stacked", bags=True)
    data, held_out = numbered(numbers(60)), numbers(40, seed=2)
    trainer = Trainer(ensemble, arguments(tmp_path, num_train_epochs=4), train_dataset=data, eval_dataset=held_out)
    trainer.train()
    found = calibrate(trainer)
    assert found.ece_after is None
    assert sum(found.shares) == pytest.approx(1)
    predicted, spread = trainer.predict(held_out).predictions
    assert predicted.shape[0] == spread.shape[0] == 40
    assert (spread > 0).all()


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Ensemble(Net), "say how many members"),
        (lambda: Ensemble(Net()), "takes a list of networks, or a function"),
        (lambda: Ensemble([Net()]), "at least two networks"),
        (lambda: Ensemble([Net()] * 2), "the same network"),
        (lambda: Ensemble([Net(), Net()], 3), r"count=3, but there are 2 members"),
        (lambda: Ensemble(Net, 2, predict="averages"), r"one of average, vote, stacked.*did you mean 'average'"),
        (lambda: Ensemble(Net, 2, predict="vote", kind="numbers"), "vote for classes, not for amounts"),
        (lambda: Ensemble(Net, 2, bags=True, loss=nn.functional.cross_entropy), "leave one of both out"),
        (lambda: numbered(iter(ROWS)), "is a stream"),
    ],
)
def test_what_cannot_be_is_refused(make: Callable[[], Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        make()


@pytest.mark.parametrize(
    ("ensemble", "options", "data", "problem"),
    [
        ({"bags": True}, {}, ROWS, r"train_dataset=trainwright.numbered\(rows\)"),
        ({}, {"label_smoothing_factor": 0.1}, ROWS, r"pass Ensemble\(loss=...\) instead"),
        ({}, {}, [(row["x"], row["labels"]) for row in ROWS], r"rows that are dicts"),
        ({}, {}, numbers(20), "pass kind='numbers'"),
    ],
)
def test_a_training_that_members_could_not_follow_is_refused(
    tmp_path: Path, ensemble: dict[str, Any], options: dict[str, Any], data: Any, problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        trained(Ensemble(Net, 2, **ensemble), tmp_path / "run", data, **options)


def test_only_an_ensemble_is_calibrated(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the model is a Net"):
        calibrate(Trainer(Net(), arguments(tmp_path)), HELD_OUT)
    with pytest.raises(ValueError, match="needs one held-out dataset"):
        calibrate(Trainer(Ensemble(Net, 2), arguments(tmp_path)))
    with pytest.raises(ValueError, match="2 held-out samples are too few"):
        calibrate(Trainer(Ensemble(Net, 2), arguments(tmp_path)), HELD_OUT[:2])


def test_a_loss_that_is_no_mean_over_samples_is_refused() -> None:
    for loss, problem in (
        (InfoNCELoss(), "InfoNCELoss is no mean over samples"),
        (DiceLoss(over_batch=True), "DiceLoss"),
    ):
        with pytest.raises(ValueError, match=problem):
            Ensemble([nn.Linear(4, 2), nn.Linear(4, 2)], loss=loss)
    with pytest.raises(ValueError, match="a loss inside an Ensemble does not see: give class_weights as a list"):
        Ensemble([nn.Linear(4, 2), nn.Linear(4, 2)], loss=FocalLoss(class_weights="balanced"))
    made = Ensemble([nn.Linear(4, 2), nn.Linear(4, 2)], loss=FocalLoss())
    assert made.loss is not None
