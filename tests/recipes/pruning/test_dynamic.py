"""Pruning that brings weights back: AC/DC, RigL, Top-KAST; movement pruning; powerpropagation."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.recipes.pruning.runs import Mixed, Training, loss_of, merged, sparsity, tokens_batch
from trainwright.config.warnings import TrainwrightWarning
from trainwright.core.modifier import Modifier, Site
from trainwright.recipes.manual_loop import ManualLoop
from trainwright.recipes.pruning.acdc import ACDCPruningModifier
from trainwright.recipes.pruning.magnitude import MagnitudePruningModifier
from trainwright.recipes.pruning.movement import MovementPruningModifier
from trainwright.recipes.pruning.powerpropagation import PowerpropagationModifier
from trainwright.recipes.pruning.rigl import RigLPruningModifier, spread_sparsity
from trainwright.recipes.pruning.topkast import TopKASTPruningModifier

HIDDEN = ["hidden.weight"]


def hidden_of(training: Training) -> nn.Parameter:
    return training.model.get_parameter("hidden.weight")


# ---- AC/DC


def acdc(**changes: Any) -> ACDCPruningModifier:
    words: dict[str, Any] = {"compression_sparsity": 0.8, "start_epoch": 0, "end_epoch": 5, "update_frequency": 1}
    return ACDCPruningModifier(**merged(words, changes))


def test_acdc_phases_take_turns_and_the_last_is_sparse() -> None:
    modifier = acdc(params=HIDDEN)
    levels: dict[float, float] = {}
    Training([modifier]).run(22, lambda t: levels.update({t.drive.epoch: sparsity(hidden_of(t))}))
    sparse = {epoch for epoch, level in levels.items() if level == pytest.approx(0.8, abs=1e-3)}
    assert {1.0, 1.25, 1.75, 3.0, 3.75, 4.0, 4.75, 5.0, 5.5} <= sparse
    assert not {0.25, 0.75, 2.25, 2.75} & sparse


@pytest.mark.parametrize("resets", [True, False])
def test_acdc_forgets_stale_moments(resets: bool) -> None:
    """Also Adam's, not only SGD's momentum."""
    training = Training([acdc(params=HIDDEN, momentum_buffer_reset=resets)]).run(8)
    state = training.optimizer.state[hidden_of(training)]
    assert bool(state["exp_avg"].any()) is not resets
    assert bool(state["exp_avg_sq"].any()) is not resets
    assert float(state["step"]) == (0 if resets else 8)
    other = training.optimizer.state[training.model.get_parameter("hidden.bias")]
    assert bool(other["exp_avg"].any())


def test_acdc_mistakes() -> None:
    with pytest.raises(ValueError, match="whole number"):
        acdc(update_frequency=0.5)
    with pytest.raises(ValueError, match="end_epoch"):
        acdc(end_epoch=-1)


# ---- RigL


def rigl(**changes: Any) -> RigLPruningModifier:
    words: dict[str, Any] = {"final_sparsity": 0.8, "start_epoch": 0, "end_epoch": 4, "update_frequency": 1}
    return RigLPruningModifier(**merged(words, changes))


@pytest.mark.parametrize("strategy", ["uniform", "erdos_renyi", "erdos_renyi_kernel"])
def test_rigl_moves_connections_and_keeps_their_number(strategy: str) -> None:
    modifier = rigl(sparsity_strategy=strategy)
    masks: dict[int, dict[str, Tensor]] = {}

    def watch(training: Training) -> None:
        masks[training.drive.steps] = {name: mask.clone() for name, mask in modifier.masks.items()}
        for name, mask in modifier.masks.items():
            assert not training.model.get_parameter(name)[~mask].any()

    training = Training([modifier]).run(18, watch)
    total = sum(mask.numel() for mask in modifier.masks.values())
    for name, mask in modifier.masks.items():
        assert {int(seen[name].sum()) for seen in masks.values()} == {int(mask.sum())}
    assert sum(int(mask.sum()) for mask in modifier.masks.values()) == pytest.approx(0.2 * total, abs=3)
    shares = [0.3 * 0.5 * (1 + math.cos(math.pi * step / 16)) for step in (4, 8, 12)]
    for step, share in zip((4, 8, 12), shares, strict=True):
        before, after = masks[step - 1]["hidden.weight"], masks[step]["hidden.weight"]
        grown = int((after & ~before).sum())
        assert 0 < grown <= round(share * int(before.sum()))
        assert torch.equal(masks[step + 1]["hidden.weight"], after)
    assert torch.equal(masks[15]["hidden.weight"], masks[18]["hidden.weight"])
    assert isinstance(training.model, Mixed)


def test_rigl_drops_the_smallest_and_grows_where_the_gradient_is_largest() -> None:
    model = nn.Linear(4, 2, bias=False)
    model.weight.data = torch.tensor([[4.0, 3.0, 2.0, 1.0], [0.4, 0.3, 0.2, 0.1]])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    modifier = rigl(final_sparsity=0.5, sparsity_strategy="uniform", init_update_fraction=0.3, update_frequency=0.5)
    drive = ManualLoop([modifier], model, optimizer, 2)
    drive.start()
    assert modifier.masks["weight"].tolist() == [[True] * 4, [False] * 4]
    model.weight.grad = torch.tensor([[0.0, 0.0, 0.0, 1.0], [0.0, 5.0, 0.0, 9.0]])
    drive.step()
    # One connection moves: the weakest goes, the one with gradient 9 comes, at zero and without a memory.
    assert modifier.masks["weight"].tolist() == [[True, True, True, False], [False, False, False, True]]
    assert model.weight[1].tolist() == [0.0, 0.0, 0.0, 0.0]
    momentum = optimizer.state[model.weight]["momentum_buffer"]
    assert momentum[1].tolist() == [0.0, 0.0, 0.0, 0.0]


def test_rigl_spreads_sparsity() -> None:
    weights = {"wide": nn.Parameter(torch.zeros(64, 64, 3, 3)), "thin": nn.Parameter(torch.zeros(8, 4))}
    for strategy in ("erdos_renyi", "erdos_renyi_kernel"):
        shares = spread_sparsity(weights, 0.9, strategy)
        kept = sum((1 - shares[name]) * weight.numel() for name, weight in weights.items())
        assert kept == pytest.approx(0.1 * sum(weight.numel() for weight in weights.values()))
        assert shares["thin"] == 0.0
    assert spread_sparsity(weights, 0.9, "uniform") == {"wide": 0.9, "thin": 0.9}


def test_rigl_mistakes() -> None:
    for words, changes in {
        "not for RigL": {"global_sparsity": True},
        "single weights": {"mask_type": "block4"},
        "is not known": {"sparsity_strategy": "random"},
        "so name it": {"end_epoch": -1},
        "1 or more": {"num_grads": 0},
    }.items():
        with pytest.raises(ValueError, match=words):
            rigl(**changes)
    with pytest.warns(TrainwrightWarning, match="no effect"):
        rigl(grad_sampler_kwargs={"batch_size": 8})
    model = nn.Linear(4, 4)
    with pytest.raises(ValueError, match="pass gradients="):
        rigl(num_grads=2).advance(Site(model, None, 4), 0.0)


# ---- Top-KAST


def topkast(**changes: Any) -> TopKASTPruningModifier:
    words: dict[str, Any] = {"forward_sparsity": 0.8, "backward_sparsity": 0.5, "start_epoch": 0.5, "end_epoch": 3}
    return TopKASTPruningModifier(**merged(words, {"update_frequency": -1}, changes))


@pytest.mark.parametrize("is_global", [True, False])
def test_topkast_sets_lie_inside_each_other(is_global: bool) -> None:
    modifier = topkast(global_sparsity=is_global)

    def watch(training: Training) -> None:
        if training.drive.epoch < 0.5:
            return
        for name, mask in modifier.masks.items():
            weight = training.model.get_parameter(name)
            assert not weight[~mask].any()
            if modifier.backward_masks:
                backward = modifier.backward_masks[name]
                assert not (mask & ~backward).any()
                aside = modifier.kept["aside"][name]
                assert not aside[mask].any()
                if not is_global:
                    assert int(mask.sum()) == round(0.2 * mask.numel())
                    assert int(backward.sum()) == round(0.5 * mask.numel())

    training = Training([modifier]).run(16, watch)
    total = sum(mask.numel() for mask in modifier.masks.values())
    assert sum(int(mask.sum()) for mask in modifier.masks.values()) == pytest.approx(0.2 * total, abs=3)
    assert modifier.backward_masks == {}
    assert training.drive.epoch == 4


def test_topkast_trains_the_backward_set_only() -> None:
    modifier = topkast(params=HIDDEN, start_epoch=0, update_frequency=9, end_epoch=9, active_weight_decay=0)
    training = Training([modifier])
    training.drive.start()
    whole = hidden_of(training).detach() + modifier.kept["aside"]["hidden.weight"]
    training.run(3)
    after = hidden_of(training).detach() + modifier.kept["aside"]["hidden.weight"]
    backward = modifier.backward_masks["hidden.weight"]
    assert torch.equal(after[~backward], whole[~backward])
    only_backward = backward & ~modifier.masks["hidden.weight"]
    assert not torch.equal(after[only_backward], whole[only_backward])


def test_topkast_decays_what_is_active() -> None:
    model = nn.Linear(10, 1, bias=False)
    model.weight.data = torch.arange(1.0, 11.0).view(1, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    modifier = topkast(forward_sparsity=0.5, backward_sparsity=0.2, start_epoch=0, end_epoch=9, update_frequency=9)
    modifier.active_weight_decay = 0.1
    drive = ManualLoop([modifier], model, optimizer, 4)
    drive.start()
    model.weight.grad = torch.zeros_like(model.weight)
    drive.step()
    whole = (model.weight.detach() + modifier.kept["aside"]["weight"]).flatten()
    factors = whole / torch.arange(1.0, 11.0)
    assert factors.tolist() == pytest.approx([1.0] * 2 + [1 - 0.02] * 3 + [1 - 0.01] * 5, abs=1e-6)


def test_topkast_mistakes() -> None:
    with pytest.raises(ValueError, match="must not be above"):
        topkast(backward_sparsity=0.9)
    with pytest.raises(ValueError, match="that one not be 1"):
        topkast(forward_sparsity=1.0)


# ---- movement


def movement(**changes: Any) -> MovementPruningModifier:
    words: dict[str, Any] = {"init_sparsity": 0.0, "final_sparsity": 0.5, "start_epoch": 1, "end_epoch": 2}
    return MovementPruningModifier(**merged(words, {"update_frequency": 1}, changes))


def test_movement_adds_up_weight_times_gradient() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 4, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    modifier = movement()
    drive = ManualLoop([modifier], model, optimizer, 4)
    expected = torch.zeros(4, 6)
    for step in range(8):
        drive.loss(model(torch.randn(3, 6)).square().mean()).backward()
        gradient = model.weight.grad
        assert gradient is not None
        if step == 7:
            assert torch.allclose(modifier.kept["score"]["weight"], expected)
        if step == 5:
            gradient[0, 0] = float("nan")
        else:
            expected -= 0.01 * model.weight.detach() * gradient
        drive.step(update=None if step != 5 else lambda: None)
        optimizer.zero_grad()
    keeps = torch.zeros(24, dtype=torch.bool)
    keeps[expected.flatten().argsort(descending=True)[:12]] = True
    assert torch.equal(modifier.masks["weight"].flatten(), keeps)
    assert modifier.kept["score"] == {}


def test_movement_starts_with_magnitudes() -> None:
    one = movement(start_epoch=0, init_sparsity=0.4, params=HIDDEN)
    other = MagnitudePruningModifier(init_sparsity=0.4, final_sparsity=0.5, end_epoch=2, params=HIDDEN)
    for modifier in (one, other):
        Training([modifier]).drive.start()
    assert torch.equal(one.masks["hidden.weight"], other.masks["hidden.weight"])


# ---- powerpropagation


class Reparametrized(nn.Module):
    """The same network as :class:`Mixed`, with autograd doing what the modifier does."""

    def __init__(self, model: nn.Module, names: list[str], alpha: float) -> None:
        super().__init__()
        self.model, self.names, self.alpha = [model], names, alpha
        for name, parameter in model.named_parameters():
            value = parameter.detach().clone()
            if name in names:
                value = value.sign() * value.abs() ** (1 / alpha)
            self.register_parameter(name.replace(".", "_"), nn.Parameter(value))

    def forward(self, x: Tensor) -> Tensor:
        values = {}
        for name, _ in self.model[0].named_parameters():
            value = getattr(self, name.replace(".", "_"))
            values[name] = value * value.abs() ** (self.alpha - 1) if name in self.names else value
        return torch.func.functional_call(self.model[0], values, (x,))


@pytest.mark.parametrize("alpha", [1.0, 2.0, 3.5])
def test_powerpropagation_is_training_of_the_reparametrized_network(alpha: float) -> None:
    torch.set_default_dtype(torch.float64)
    names = ["first.weight", "hidden.weight"]
    training = Training([PowerpropagationModifier(alpha=alpha, params=names, end_epoch=9)], dtype=torch.float64)
    torch.manual_seed(0)
    reference = Reparametrized(Mixed().double(), names, alpha)
    optimizer = torch.optim.AdamW(reference.parameters(), lr=0.01, weight_decay=0.01)
    for step in range(6):
        loss_of(reference, tokens_batch(step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    training.run(6)
    for name in ("first.weight", "hidden.weight", "tied.weight", "embedding.weight"):
        value = getattr(reference, name.replace(".", "_"))
        value = value * value.abs() ** (alpha - 1) if name in names else value
        assert torch.allclose(training.model.get_parameter(name), value, atol=1e-9), name


def test_powerpropagation_leaves_a_plain_model() -> None:
    modifier = PowerpropagationModifier(alpha=2.0, params=["re:hidden", "nothing.weight"], strict=False, end_epoch=1)
    training = Training([modifier]).run(6)
    assert modifier.tensors_to_save() == {}
    assert set(training.model.state_dict()) == set(Mixed().state_dict())
    with pytest.raises(ValueError, match="fits nothing"):
        PowerpropagationModifier(alpha=2.0, params=["nothing.weight"]).prepare_model(Mixed())
    with pytest.raises(ValueError, match="alpha"):
        PowerpropagationModifier(alpha=0.5)


def test_pruned_weights_stay_pruned_under_powerpropagation() -> None:
    for order in (1, -1):
        pruning = MagnitudePruningModifier(init_sparsity=0.5, final_sparsity=0.5, end_epoch=3, params=HIDDEN)
        modifiers: list[Modifier] = [PowerpropagationModifier(alpha=2.0, end_epoch=3), pruning]
        training = Training(modifiers[::order]).run(14)
        assert sparsity(hidden_of(training)) == 0.5
        assert not hidden_of(training)[~pruning.masks["hidden.weight"]].any()
