"""Magnitude, global and constant pruning: exact at every step whatever the optimizer does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.recipes.pruning.runs import Mixed, Training, merged, sparsity
from trainwright.config.warnings import TrainwrightWarning
from trainwright.recipes.manual_loop import ManualLoop
from trainwright.recipes.pruning.constant import ConstantPruningModifier
from trainwright.recipes.pruning.magnitude import (
    GlobalMagnitudePruningModifier,
    GMPruningModifier,
    MagnitudePruningModifier,
)
from trainwright.recipes.pruning.sparsity import interpolate

SCHEDULE: dict[str, Any] = {"init_sparsity": 0.05, "final_sparsity": 0.8, "start_epoch": 0.5, "end_epoch": 3.5}
PRUNED = ["embedding.weight", "first.weight", "second.weight", "hidden.weight", "tied.weight"]

OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], Any]] = {
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.01, momentum=0.9),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_sparsity_is_exact_after_every_step(optimizer: str, dtype: torch.dtype) -> None:
    modifier = MagnitudePruningModifier(**SCHEDULE)
    seen: list[float] = []

    def watch(training: Training) -> None:
        epoch = training.drive.epoch
        weights = dict(training.model.named_parameters())
        if epoch < 0.5:
            assert not modifier.masks
            return
        share = interpolate((epoch - 0.5) / 3, 0.05, 0.8)
        for name in PRUNED:
            assert abs(sparsity(weights[name]) - share) <= 1 / weights[name].numel(), (epoch, name)
            assert int((~modifier.masks[name]).sum()) == round(share * weights[name].numel())
            assert not weights[name][~modifier.masks[name]].any()
        seen.append(share)

    training = Training([modifier], optimizer=OPTIMIZERS[optimizer], dtype=dtype).run(18, watch)
    assert len(seen) == 17
    training.drive.finish()
    assert isinstance(training.model, Mixed)
    assert training.model.head.weight is training.model.embedding.weight
    hidden = training.model.hidden.weight
    assert not torch.signbit(hidden[hidden == 0]).any()
    assert sparsity(training.model.hidden.bias) == 0


def test_updates_come_with_their_frequency() -> None:
    modifier = MagnitudePruningModifier(**SCHEDULE, update_frequency=1)
    counts: list[int] = []
    Training([modifier]).run(16, lambda _: counts.append(sum(int((~m).sum()) for m in modifier.masks.values())))
    changes = [step + 1 for step, (a, b) in enumerate(zip([0, *counts], counts, strict=False)) if a != b]
    assert changes == [2, 6, 10, 14]


def test_masks_are_released_when_asked() -> None:
    modifier = MagnitudePruningModifier(**SCHEDULE, leave_enabled=False)
    training = Training([modifier]).run(14)
    assert modifier.masks == {}
    hidden = dict(training.model.named_parameters())["hidden.weight"]
    assert sparsity(hidden) == pytest.approx(0.8, abs=1e-2)
    training.run(18)
    assert sparsity(hidden) < 0.5


def test_sparsity_by_parameter() -> None:
    final = {0.5: ["hidden.weight"], "0.9": ["re:first[.]weight", "second.weight"]}
    modifier = MagnitudePruningModifier(**merged(SCHEDULE, {"final_sparsity": final}), params=[])
    weights = dict(Training([modifier]).run(15).model.named_parameters())
    reached = {name: sparsity(weights[name]) for name in modifier.masks}
    assert reached == pytest.approx({"hidden.weight": 0.5, "first.weight": 0.9, "second.weight": 0.9}, abs=0.01)
    with pytest.raises(ValueError, match="params must be"):
        MagnitudePruningModifier(**merged(SCHEDULE, {"final_sparsity": final}), params=["hidden.weight"])


def test_global_sparsity_has_one_threshold() -> None:
    modifier = GlobalMagnitudePruningModifier(**SCHEDULE)
    weights = dict(Training([modifier]).run(14).model.named_parameters())
    total = sum(weights[name].numel() for name in PRUNED)
    assert sum(int((weights[name] == 0).sum()) for name in PRUNED) == round(0.8 * total)
    assert len({round(sparsity(weights[name]), 2) for name in PRUNED}) > 1
    with pytest.warns(TrainwrightWarning, match="GlobalMagnitudePruningModifier"):
        same = GMPruningModifier(**SCHEDULE, global_sparsity=True)
    Training([same]).run(14)
    for name, mask in same.masks.items():
        assert torch.equal(mask, modifier.masks[name])


def made_sparse(share: float, name: str = "hidden.weight") -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        model = Mixed()
        weight = dict(model.named_parameters())[name].data
        weight.view(-1)[: round(share * weight.numel())] = 0
        return model

    return build


@pytest.mark.parametrize("initial", [0.1, "__FROM_PARAM__"])
def test_a_sparse_model_does_not_become_denser(initial: float | str) -> None:
    modifier = MagnitudePruningModifier(**merged(SCHEDULE, {"init_sparsity": initial}, {"start_epoch": 0}))
    zeros = made_sparse(0.6)().get_parameter("hidden.weight") == 0
    reached: list[float] = []

    def watch(training: Training) -> None:
        hidden = training.model.get_parameter("hidden.weight")
        assert not hidden[zeros].any()
        reached.append(sparsity(hidden))

    Training([modifier], build=made_sparse(0.6)).run(15, watch)
    assert reached == sorted(reached)
    assert min(reached) >= 0.6 - 1e-3
    assert reached[-1] == pytest.approx(0.8, abs=1e-3)


def test_a_sparser_model_becomes_denser_only_when_asked() -> None:
    modifier = MagnitudePruningModifier(**merged(SCHEDULE, {"start_epoch": 0}))
    hidden = Training([modifier], build=made_sparse(1.0)).run(14).model.get_parameter("hidden.weight")
    assert sparsity(hidden) == pytest.approx(0.8, abs=1e-2)
    keeping = MagnitudePruningModifier(**merged(SCHEDULE, {"start_epoch": 0}, {"init_sparsity": "__FROM_PARAM__"}))
    with pytest.warns(TrainwrightWarning, match="stays as sparse as it is"):
        hidden = Training([keeping], build=made_sparse(0.9)).run(14).model.get_parameter("hidden.weight")
    assert sparsity(hidden) == pytest.approx(0.9, abs=1e-3)


def test_constant_pruning_keeps_zeros() -> None:
    zeros = made_sparse(0.7)().get_parameter("hidden.weight") == 0
    modifier = ConstantPruningModifier(end_epoch=3)
    training = Training([modifier], build=made_sparse(0.7)).run(11)
    hidden = training.model.get_parameter("hidden.weight")
    assert torch.equal(hidden == 0, zeros)
    training.run(14)
    assert modifier.masks == {}
    assert sparsity(hidden) < 0.6


def test_n_of_m_on_convolutions() -> None:
    """Gradual, and in the weight's shape."""
    names = ["first.weight", "second.weight", "hidden.weight"]
    modifier = MagnitudePruningModifier(**merged(SCHEDULE, {"final_sparsity": 0.5}), mask_type="2:4", params=names)
    levels: list[float] = []
    training = Training([modifier]).run(14, lambda t: levels.append(sparsity(t.model.get_parameter("first.weight"))))
    assert levels == sorted(levels)
    assert len(set(levels)) > 5
    for name in names:
        groups = (training.model.get_parameter(name) != 0).movedim(1, -1).reshape(-1, 4)
        assert (groups.sum(1) == 2).all()
    assert MagnitudePruningModifier(
        **merged(SCHEDULE, {"final_sparsity": 0.5}), mask_type="tensorrt"
    ).pattern.group == (2, 4)


def test_weights_with_inputs_first_are_grouped_along_inputs() -> None:
    import transformers.pytorch_utils as transformers

    model = nn.Sequential(transformers.Conv1D(6, 8))
    modifier = MagnitudePruningModifier(init_sparsity=0.5, final_sparsity=0.5, end_epoch=1, mask_type="2:4")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ManualLoop([modifier], model, optimizer, 2).start()
    weight = model.get_parameter("0.weight")
    assert weight.shape == (8, 6)
    assert ((weight != 0).T.reshape(-1, 4).sum(1) == 2).all()


def test_a_look_at_the_model_before_training_changes_nothing() -> None:
    modifier = MagnitudePruningModifier(init_sparsity=0.5, final_sparsity=0.5, end_epoch=1)
    training = Training([modifier])
    training.model.eval()(torch.zeros(1, 6, dtype=torch.long))
    assert not modifier.masks
    training.model.train()(torch.zeros(2, 6, dtype=torch.long))
    assert modifier.masks


def test_sparse_gradients_are_left_alone() -> None:
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True))
    modifier = MagnitudePruningModifier(init_sparsity=0.5, final_sparsity=0.5, end_epoch=1)
    drive = ManualLoop([modifier], model, torch.optim.SGD(model.parameters(), lr=0.1), 2)
    for _ in range(4):
        drive.loss(model(torch.tensor([1, 2, 3])).sum()).backward()
        drive.step()
    assert int((model.get_parameter("0.weight") == 0).sum()) == 20


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        ("ACDCPruningModifier", {"phased": True}),
        ("MovementPruningModifier", {"score_type": "movement"}),
        ("MFACPruningModifier", {"score_type": "MFAC"}),
        ("name the epoch", {"end_epoch": -1}),
        ("init_sparsity", {"init_sparsity": "half"}),
        ("final_sparsity", {"final_sparsity": 90}),
        ("use 0.5", {"mask_type": "2:4"}),
        ("inter_func", {"inter_func": "quadratic"}),
    ],
)
def test_mistakes_name_the_fix(words: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=words):
        GMPruningModifier(**merged(SCHEDULE, arguments))


def test_other_scopes_are_refused() -> None:
    with pytest.raises(ValueError, match="use GlobalMagnitudePruningModifier"):
        MagnitudePruningModifier(**SCHEDULE, global_sparsity=True)
    with pytest.raises(ValueError, match="use MagnitudePruningModifier"):
        GlobalMagnitudePruningModifier(**SCHEDULE, global_sparsity=False)
    with pytest.raises(ValueError, match="did you mean"):
        MagnitudePruningModifier(**SCHEDULE, params=["hiden.weight"]).prepare_model(Mixed())


def test_arguments_without_effect_say_so() -> None:
    with pytest.warns(TrainwrightWarning, match="update_frequency"):
        ConstantPruningModifier(update_frequency=0.5)
    with pytest.raises(ValueError, match="selects nothing"):
        ConstantPruningModifier(params=[]).prepare_model(Mixed())


def test_a_new_run_starts_afresh() -> None:
    modifier = MagnitudePruningModifier(**SCHEDULE)
    Training([modifier]).run(14)
    modifier.forget()
    assert modifier.masks == {}
    again = Training([modifier]).run(1)
    assert sparsity(again.model.get_parameter("hidden.weight")) == 0


@pytest.mark.slow
def test_most_of_a_digits_network_can_go() -> None:
    """A quick look that 90 % pruning leaves a network that still knows digits."""
    import sklearn.datasets as datasets

    pictures, labels = datasets.load_digits(return_X_y=True)
    x, y = torch.tensor(pictures, dtype=torch.float32) / 16, torch.tensor(labels)
    train, test = slice(0, 1347), slice(1347, None)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    modifier = GMPruningModifier(init_sparsity=0.3, final_sparsity=0.9, start_epoch=1, end_epoch=15)
    drive = ManualLoop([modifier], model, optimizer, steps_per_epoch=21)
    for _ in range(22):
        for rows in torch.randperm(1347).split(64)[:21]:
            drive.loss(functional.cross_entropy(model(x[train][rows]), y[train][rows])).backward()
            drive.step()
            optimizer.zero_grad()
    drive.finish()
    assert all(sparsity(weight) == pytest.approx(0.9, abs=1e-3) for weight in modifier.weights(drive.site).values())
    accuracy = float((model(x[test]).argmax(1) == y[test]).double().mean())
    assert accuracy > 0.85


def test_optimizers_that_keep_weights_of_their_own_stay_sparse() -> None:
    import schedulefree

    modifier = MagnitudePruningModifier(**SCHEDULE)
    training = Training([modifier], optimizer=lambda parameters: schedulefree.AdamWScheduleFree(parameters, lr=0.01))
    training.optimizer.train()
    training.run(16)
    # What is evaluated is an average that the optimizer makes from its copy.
    training.optimizer.eval()
    assert sparsity(training.model.get_parameter("hidden.weight")) == pytest.approx(0.8, abs=1e-2)
