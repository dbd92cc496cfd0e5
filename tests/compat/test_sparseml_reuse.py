"""What a manager is made of: modifiers that are changed later, or are in a second one, and what is no modifier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.models import Plain
from trainwright.compat.sparseml import ScheduledModifierManager
from trainwright.compat.sparseml.pytorch.sparsification import (
    EpochRangeModifier,
    GMPruningModifier,
    LearningRateFunctionModifier,
    ScheduledUpdateModifier,
    SetLearningRateModifier,
)
from trainwright.recipes.pruning.magnitude import MagnitudePruningModifier as NativePruning

X = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))


def prune() -> Any:
    return GMPruningModifier(0.0, 0.5, 0.0, 2.0, 0.5, ["re:.*weight"])


def constant() -> Any:
    return SetLearningRateModifier(learning_rate=0.03, start_epoch=0.0)


def train(manager: ScheduledModifierManager, model: nn.Module) -> list[float]:
    """The learning rate of each step."""
    optimizer = manager.modify(model, torch.optim.SGD(model.parameters(), lr=0.1), steps_per_epoch=2)
    rates = []
    for _ in range(6):
        optimizer.zero_grad()
        model(X)["logits"].square().mean().backward()
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
    manager.finalize(model)
    return rates


def share_of_zeros(model: Any) -> float:
    return float((model.first.weight == 0).float().mean())


def test_a_setting_changed_before_training_acts_and_is_written(tmp_path: Path) -> None:
    rate, pruning, model = constant(), prune(), Plain()
    manager = ScheduledModifierManager([EpochRangeModifier(0.0, 3.0), rate, pruning])
    rate.learning_rate, pruning.final_sparsity = 0.5, 0.75
    manager.save(tmp_path / "recipe.yaml")
    assert train(manager, model) == [0.5] * 6
    assert share_of_zeros(model) == pytest.approx(0.75, abs=0.02)
    read = Plain()
    assert train(ScheduledModifierManager.from_yaml(tmp_path / "recipe.yaml"), read) == [0.5] * 6
    assert torch.equal(model.first.weight, read.first.weight)


def test_an_epoch_changed_before_training_acts() -> None:
    rate = constant()
    manager = ScheduledModifierManager([EpochRangeModifier(0.0, 3.0), rate])
    rate.start_epoch = 1.0
    assert train(manager, Plain()) == [0.1, 0.1, *[0.03] * 4]


@pytest.mark.parametrize("begin", ["initialize", "apply", "apply_structure"])
def test_a_setting_is_refused_once_the_manager_has_its_model(begin: str) -> None:
    rate = constant()
    manager = ScheduledModifierManager([EpochRangeModifier(0.0, 3.0), rate])
    getattr(manager, begin)(Plain())
    before = str(manager)
    with pytest.raises(AttributeError, match="learning_rate cannot be changed any more"):
        rate.learning_rate = 0.5
    with pytest.raises(AttributeError, match="start_epoch cannot be changed any more"):
        rate.start_epoch = 1.0
    with pytest.raises(AttributeError, match="in use"):
        rate.advance_epochs(1.0)
    assert str(manager) == before


def test_a_setting_changed_in_a_recipe_that_was_read_is_composed() -> None:
    recipe = "modifiers:\n  - !SetLearningRateModifier {learning_rate: 0.03, start_epoch: 0.0}\n"
    manager = ScheduledModifierManager.from_yaml(recipe + "  - !EpochRangeModifier {start_epoch: 0, end_epoch: 1}\n")
    (rate,) = manager.learning_rate_modifiers
    rate.learning_rate = 0.5
    both = ScheduledModifierManager.compose_staged(manager, manager)
    assert [one.learning_rate for one in both.learning_rate_modifiers] == [0.5, 0.5]
    assert train(manager, Plain()) == [0.5] * 6


def test_modifiers_act_again_in_a_second_manager() -> None:
    cosine = LearningRateFunctionModifier("cosine", init_lr=0.1, final_lr=0.001, start_epoch=0.0, end_epoch=3.0)
    modifiers = [EpochRangeModifier(0.0, 3.0), cosine, prune()]
    one, other, third = Plain(), Plain(), Plain()
    rates = train(ScheduledModifierManager(modifiers), one)
    assert rates[0] > rates[-1]
    first = cosine.native
    assert train(ScheduledModifierManager(modifiers), other) == rates
    assert cosine.native is not first
    assert torch.equal(one.first.weight, other.first.weight)
    assert share_of_zeros(other) == pytest.approx(0.5, abs=0.02)
    ScheduledModifierManager(modifiers).apply(third)
    assert share_of_zeros(third) == pytest.approx(0.5, abs=0.02)


def test_two_managers_of_the_same_modifiers_at_the_same_time() -> None:
    modifiers = [EpochRangeModifier(0.0, 3.0), constant()]
    model, other = Plain(), Plain()
    manager, later = ScheduledModifierManager(modifiers), ScheduledModifierManager(modifiers)
    optimizer = manager.modify(model, torch.optim.SGD(model.parameters(), lr=0.1), steps_per_epoch=2)
    later.modify(other, torch.optim.SGD(other.parameters(), lr=0.1), steps_per_epoch=2)
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.7
    with pytest.warns(UserWarning, match="the recipe's acts"):
        optimizer.step()
    assert optimizer.param_groups[0]["lr"] == 0.03


class Own(ScheduledUpdateModifier):
    """As somebody writes one: what it remembers is not known to us."""


def native() -> NativePruning:
    return NativePruning(params="__ALL_PRUNABLE__", init_sparsity=0.0, final_sparsity=0.5, start_epoch=0, end_epoch=1)


@pytest.mark.parametrize("make", [Own, native])
def test_what_cannot_be_made_anew_is_refused_in_a_second_manager(make: Any) -> None:
    modifier = make()
    train(ScheduledModifierManager([modifier]), Plain())
    with pytest.raises(ValueError, match="is in another manager: make a new one"):
        train(ScheduledModifierManager([modifier]), Plain())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1], r"1 is no modifier: pass objects such as EpochRangeModifier\(0.0, 3.0\)"),
        (["!EpochRangeModifier {end_epoch: 1}"], r"text goes to from_yaml\(\)"),
        (
            [EpochRangeModifier],
            r"EpochRangeModifier is a class, and a modifier is wanted: EpochRangeModifier\(\.\.\.\)",
        ),
        ([NativePruning], "MagnitudePruningModifier is a class"),
        ({"stage": [None]}, "None is no modifier"),
        ({"stage": 1}, "Each stage is a list of modifiers, not 1"),
    ],
)
def test_what_is_no_modifier_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ScheduledModifierManager(given)


def test_a_modifier_that_is_switched_off_is_refused() -> None:
    off = constant()
    off.enabled = False
    manager = ScheduledModifierManager([EpochRangeModifier(0.0, 3.0), off])
    with pytest.raises(ValueError, match=r"SetLearningRateModifier is switched off .*: leave it out of the list"):
        train(manager, Plain())
