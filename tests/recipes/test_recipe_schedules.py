"""Modifiers that decide rates, decay, what is trained, and values of parameters."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from trainwright.core.modifier import Modifier
from trainwright.recipes.building import build_modifier, build_modifiers
from trainwright.recipes.language.reading import read_recipe
from trainwright.recipes.manual_loop import ManualLoop
from trainwright.recipes.scheduling.learning_rate import (
    LearningRateFunctionModifier,
    LearningRateModifier,
    SetLearningRateModifier,
)
from trainwright.recipes.scheduling.parameters import GradualParamModifier, SetParamModifier, TrainableParamsModifier
from trainwright.recipes.scheduling.reporting import SparsificationLoggingModifier
from trainwright.recipes.scheduling.weight_decay import SetWeightDecayModifier


def drive(*modifiers: Modifier, steps: int = 8, per_epoch: int = 4, optimizer: Any = None) -> list[Any]:
    """What ``look`` saw before each step of a small loop."""
    model = nn.Linear(3, 2)
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    driven = ManualLoop(list(modifiers), model, optimizer, per_epoch)
    driven.start()
    seen = []
    for _ in range(steps):
        group = optimizer.param_groups[0]
        seen.append((group["lr"], group.get("weight_decay"), model.weight.requires_grad, model.bias.detach().clone()))
        driven.loss(model(torch.ones(1, 3)).sum()).backward()
        driven.step()
        optimizer.zero_grad()
    driven.finish()
    return seen


def rates(*modifiers: Modifier, **options: Any) -> list[float]:
    return [entry[0] for entry in drive(*modifiers, **options)]


def test_one_rate_from_an_epoch_on() -> None:
    assert rates(SetLearningRateModifier(learning_rate=2.5, start_epoch=1)) == [0.5] * 4 + [2.5] * 4


def test_a_rate_above_one_is_fine() -> None:
    """The original refuses it."""
    assert rates(SetLearningRateModifier(learning_rate=30.0)) == [30.0] * 8


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("linear", [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]),
        ("cosine", [1.0, (1 + math.cos(math.pi / 4)) / 2, 0.5, (1 + math.cos(3 * math.pi / 4)) / 2, 0.0, 0.0]),
    ],
)
def test_rates_between_two_epochs(function: str, expected: list[float]) -> None:
    modifier = LearningRateFunctionModifier(lr_func=function, init_lr=1.0, final_lr=0.0, start_epoch=0, end_epoch=1)
    assert rates(modifier, steps=6) == pytest.approx(expected)


def test_rates_in_cycles() -> None:
    modifier = LearningRateFunctionModifier(
        lr_func="cyclic_linear", init_lr=0.0, final_lr=1.0, start_epoch=0, end_epoch=2, cycle_epochs=1
    )
    assert rates(modifier) == pytest.approx([0.0, 1 / 3, 2 / 3, 1.0] * 2)
    # Two epochs and a half: the last cycle is half as long.
    modifier = LearningRateFunctionModifier(
        lr_func="cyclic_linear", init_lr=1.0, final_lr=0.0, start_epoch=0, end_epoch=2.5, cycle_epochs=1
    )
    assert rates(modifier, steps=11) == pytest.approx([1.0, 2 / 3, 1 / 3, 0.0] * 2 + [1.0, 0.0, 0.0], abs=1e-9)


def test_a_rate_stays_where_its_schedule_ends() -> None:
    settings = {"step_size": 1.0, "gamma": 0.5}
    modifier = LearningRateModifier(lr_class="StepLR", lr_kwargs=settings, init_lr=0.8, start_epoch=0, end_epoch=2)
    assert rates(modifier, steps=10) == pytest.approx([0.8] * 4 + [0.4] * 6)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("StepLR", {"step_size": 1.0, "gamma": 0.5}),
        ("MultiStepLR", {"milestones": [0.5, 1.5], "gamma": 0.1}),
        ("ExponentialLR", {"gamma": 0.7}),
    ],
)
def test_schedules_of_torch_counted_in_epochs(name: str, settings: dict[str, Any]) -> None:
    got = rates(LearningRateModifier(lr_class=name, lr_kwargs=settings, init_lr=0.8, start_epoch=0))
    scaled = dict(settings)
    if name == "StepLR":
        scaled["step_size"] = 4
    if name == "MultiStepLR":
        scaled["milestones"] = [2, 6]
    reference = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.8)
    if name == "ExponentialLR":
        schedule: Any = torch.optim.lr_scheduler.StepLR(reference, 4, gamma=0.7)
    else:
        schedule = getattr(torch.optim.lr_scheduler, name)(reference, **scaled)
    expected = []
    for _ in range(8):
        expected.append(reference.param_groups[0]["lr"])
        reference.step()
        schedule.step()
    assert got == pytest.approx(expected)


def test_cosine_with_restarts() -> None:
    settings = {"lr_min": 0.1, "cycle_epochs": 1.0}
    modifier = LearningRateModifier(
        lr_class="CosineAnnealingWarmRestarts", lr_kwargs=settings, init_lr=0.9, start_epoch=0
    )
    cycle = [0.1 + 0.4 * (1 + math.cos(math.pi * k / 4)) for k in range(4)]
    assert rates(modifier) == pytest.approx(cycle * 2)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: SetLearningRateModifier(learning_rate=0), "more than 0"),
        (lambda: LearningRateModifier(lr_class="StepLr", lr_kwargs={}, init_lr=1, start_epoch=0), "mean 'StepLR'"),
        (lambda: LearningRateModifier(lr_class="StepLR", lr_kwargs={}, init_lr=1, start_epoch=0), "needs step_size"),
        (
            lambda: LearningRateModifier(
                lr_class="MultiStepLR", lr_kwargs={"milestones": [9]}, init_lr=1, start_epoch=0, end_epoch=5
            ),
            "milestone 9 is not between",
        ),
        (
            lambda: LearningRateFunctionModifier(lr_func="cosin", init_lr=1, final_lr=0, start_epoch=0, end_epoch=1),
            "did you mean 'cosine'",
        ),
        (lambda: SetWeightDecayModifier(weight_decay=-1), "must not be negative"),
        (lambda: TrainableParamsModifier(params="__ALL__", trainable=True, start_epoch=3, end_epoch=2), "comes before"),
        (lambda: SetLearningRateModifier(learning_rate=1, start_epoch=-3), "0 or more, or -1"),
    ],
)
def test_mistakes_name_the_fix(make: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


def test_a_group_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="has 1 groups, numbered from 0; not 3"):
        drive(SetLearningRateModifier(learning_rate=1.0, param_groups=[3]))


def test_weight_decay_from_an_epoch_on() -> None:
    decays = [entry[1] for entry in drive(SetWeightDecayModifier(weight_decay=0.3, start_epoch=1))]
    assert decays == [0] * 4 + [0.3] * 4


def test_frozen_between_two_epochs() -> None:
    modifier = TrainableParamsModifier(params=["weight"], trainable=False, start_epoch=0.5, end_epoch=1.5)
    assert [entry[2] for entry in drive(modifier)] == [True, True, False, False, False, False, True, True]


def test_a_selector_that_fits_nothing() -> None:
    with pytest.raises(ValueError, match=r"'wieght' fits nothing in this model \(did you mean 'weight'\?\)"):
        drive(TrainableParamsModifier(params=["wieght"], trainable=False))
    drive(TrainableParamsModifier(params=["wieght"], trainable=False, params_strict=False))


def test_values_at_once_and_step_by_step() -> None:
    at_once = [entry[3] for entry in drive(SetParamModifier(params=["bias"], val=[7.0, 8.0], start_epoch=1))]
    assert torch.equal(at_once[4], torch.tensor([7.0, 8.0]))
    gradual = GradualParamModifier(params=["bias"], init_val=0.0, final_val=4.0, start_epoch=0, end_epoch=1)
    assert [float(entry[3][0]) for entry in drive(gradual, steps=5)] == pytest.approx([0, 1, 2, 3, 4])


def test_the_log_of_sparsity() -> None:
    first = nn.Linear(2, 2)
    model = nn.Sequential(first, nn.Linear(2, 2))
    with torch.no_grad():
        first.weight[0] = 0.0
    driven = ManualLoop([SparsificationLoggingModifier()], model, torch.optim.SGD(model.parameters(), lr=0.1), 4)
    driven.start()
    assert driven.site.logs["sparsity/0"] == 0.5
    assert driven.site.logs["sparsity/all"] == 0.25


def test_building_names_line_and_argument() -> None:
    text = "training_modifiers:\n  - !EpochRangeModifier\n      start_epoch: 0\n      ent_epoch: 3\n"
    with pytest.raises(ValueError, match=r":2: EpochRangeModifier has no argument 'ent_epoch' \(did you mean 'end_"):
        build_modifiers(read_recipe(text))
    text = "training_modifiers:\n  - !SetLearningRateModifier {start_epoch: 0}\n"
    with pytest.raises(ValueError, match=r":2: SetLearningRateModifier needs learning_rate"):
        build_modifiers(read_recipe(text))


def test_modifiers_of_ones_own() -> None:
    from trainwright.config.registry import _REGISTERED, register

    @register("modifier", "QuietModifier")
    class QuietModifier(Modifier):
        pass

    try:
        recipe = read_recipe({"own_modifiers": [{"QuietModifier": {"start_epoch": 1.0}}]})
        built = build_modifier(recipe.modifiers[0])
        assert isinstance(built, QuietModifier)
        assert built.start_epoch == 1.0
    finally:
        _REGISTERED["modifier"].clear()
