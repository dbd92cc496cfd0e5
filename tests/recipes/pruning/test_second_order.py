"""OBS and M-FAC against the formulas written out with whole matrices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.recipes.pruning.runs import merged
from trainwright.config.warnings import TrainwrightWarning
from trainwright.core.modifier import Modifier, Site
from trainwright.recipes.manual_loop import ManualLoop
from trainwright.recipes.pruning.fisher import DenseFisher, GradientFisher
from trainwright.recipes.pruning.mfac import MFACPruningModifier
from trainwright.recipes.pruning.obs import OBSPruningModifier

ONCE: dict[str, Any] = {"init_sparsity": 0.5, "final_sparsity": 0.5, "start_epoch": 0, "end_epoch": 1}
SAMPLES, DAMP = 20, 1e-3


def weights_and_gradients(shape: tuple[int, ...] = (4, 8)) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(32, 32, generator=generator, dtype=torch.float64)
    weight = torch.randn(shape, generator=generator, dtype=torch.float64)
    gradients = torch.randn(SAMPLES, 32, generator=generator, dtype=torch.float64) @ mixing
    return weight, gradients.view(SAMPLES, *shape)


def pruned(modifier: Modifier, weight: Tensor, gradients: Tensor) -> Tensor:
    model = nn.Linear(8, 4, bias=False).double()
    model.weight = nn.Parameter(weight.clone())

    def sample(count: int) -> Iterator[None]:
        for number in range(count):
            model.weight.grad = gradients[number % SAMPLES].clone()
            yield
        model.weight.grad = None

    ManualLoop([modifier], model, torch.optim.SGD(model.parameters(), lr=0.1), 4, gradients=sample).start()
    return model.weight.detach()


def inverse_fisher(gradients: Tensor, size: int) -> Tensor:
    rows = gradients.reshape(SAMPLES, -1)
    fisher = rows.T @ rows / SAMPLES
    blocks = torch.block_diag(*[torch.ones(size, size)] * (32 // size)).double()
    return torch.linalg.inv(fisher * blocks + DAMP * torch.eye(32, dtype=torch.float64))


@pytest.mark.parametrize("size", [1, 8, 32])
def test_obs_is_the_formula(size: int) -> None:
    weight, gradients = weights_and_gradients()
    modifier = OBSPruningModifier(**ONCE, num_grads=SAMPLES, damp=DAMP, fisher_block_size=size, params=["weight"])
    result = pruned(modifier, weight, gradients).flatten()
    inverse, flat = inverse_fisher(gradients, size), weight.flatten()
    scores = flat**2 / (2 * inverse.diagonal())
    gone = scores.argsort()[:16]
    expected = flat.clone()
    for index in gone:
        expected -= inverse[:, index] * flat[index] / inverse[index, index]
    expected[gone] = 0
    assert torch.allclose(result, expected, atol=1e-5)
    assert int((result == 0).sum()) == 16


def test_obs_takes_blocks_of_four_away_together() -> None:
    weight, gradients = weights_and_gradients()
    modifier = OBSPruningModifier(
        **ONCE, num_grads=SAMPLES, damp=DAMP, fisher_block_size=16, params=["weight"], mask_type="block4"
    )
    result = pruned(modifier, weight, gradients).flatten()
    inverse, flat = inverse_fisher(gradients, 16), weight.flatten()
    groups = [slice(start, start + 4) for start in range(0, 32, 4)]
    solved = [torch.linalg.solve(inverse[group, group], flat[group]) for group in groups]
    scores = torch.stack([flat[group] @ part / 2 for group, part in zip(groups, solved, strict=True)])
    expected = flat.clone()
    for number in scores.argsort()[:4].tolist():
        expected -= inverse[:, groups[number]] @ solved[number]
    for number in scores.argsort()[:4].tolist():
        expected[groups[number]] = 0
    assert torch.allclose(result, expected, atol=1e-6)


def test_obs_recomputes_in_rounds() -> None:
    weight, gradients = weights_and_gradients()
    arguments: dict[str, Any] = {"num_grads": SAMPLES, "damp": DAMP, "fisher_block_size": 8, "params": ["weight"]}
    once = pruned(OBSPruningModifier(**ONCE, **arguments), weight, gradients)
    rounds = pruned(OBSPruningModifier(**ONCE, **arguments, num_recomputations=4), weight, gradients)
    assert int((rounds == 0).sum()) == int((once == 0).sum()) == 16
    assert not torch.equal(once, rounds)


@pytest.mark.parametrize("size", [8, 32, None])
def test_mfac_is_obs_without_the_matrix(size: int | None) -> None:
    weight, gradients = weights_and_gradients()
    obs = OBSPruningModifier(**ONCE, num_grads=SAMPLES, damp=DAMP, fisher_block_size=size or 32, params=["weight"])
    mfac = MFACPruningModifier(**ONCE, num_grads=SAMPLES, damp=DAMP, fisher_block_size=size, params=["weight"])
    assert torch.allclose(pruned(obs, weight, gradients), pruned(mfac, weight, gradients), atol=1e-8)


def test_mfac_counts_samples_by_sparsity() -> None:
    weight, gradients = weights_and_gradients()
    modifier = MFACPruningModifier(**ONCE, num_grads={0.0: 4, "0.5": SAMPLES, 0.9: 99}, damp=DAMP, params=["weight"])
    whole = MFACPruningModifier(**ONCE, num_grads=SAMPLES, damp=DAMP, params=["weight"])
    assert torch.equal(pruned(modifier, weight, gradients), pruned(whole, weight, gradients))


def test_the_two_ways_to_hold_the_matrix_agree() -> None:
    generator = torch.Generator().manual_seed(1)
    gradients = torch.randn(6, 25, generator=generator, dtype=torch.float64)
    vector = torch.randn(25, generator=generator, dtype=torch.float64)
    dense = DenseFisher(25, 10, samples=6, damp=1e-2, like=vector)
    for gradient in gradients:
        dense.add(gradient)
    dense.invert()
    kept = GradientFisher(gradients, 10, 1e-2, torch.device("cpu"))
    kept.use(kept.inner_products())
    assert torch.allclose(dense.diagonal(), kept.diagonal())
    assert torch.allclose(dense.times(vector), kept.times(vector, kept.projections(vector)))


def test_a_matrix_that_rounding_made_indefinite_is_inverted() -> None:
    gradient = torch.linspace(1e3, 2e3, 12)
    fisher = DenseFisher(12, 12, samples=3, damp=1e-7, like=gradient)
    for factor in (1.0, 0.1, 3.0):
        fisher.add(gradient * factor)
    fisher.invert()
    assert fisher.diagonal().isfinite().all()
    assert (fisher.diagonal() > 0).all()


def test_convolutions_and_several_weights_together() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.Flatten(), nn.Linear(8, 5))
    x, y = torch.randn(16, 4, 3, 3), torch.randint(0, 5, (16,))

    def sample(count: int) -> Iterator[None]:
        for number in range(count):
            model.zero_grad()
            nn.functional.cross_entropy(model(x[number : number + 1]), y[number : number + 1]).backward()
            yield
        model.zero_grad()

    for kind in ("unstructured", "block4"):
        modifier = OBSPruningModifier(**ONCE, num_grads=16, fisher_block_size=12, mask_type=kind)
        ManualLoop([modifier], model, torch.optim.SGD(model.parameters(), lr=0.1), 4, gradients=sample).start()
        total = sum(mask.numel() for mask in modifier.masks.values())
        assert sum(int((~mask).sum()) for mask in modifier.masks.values()) == total // 2
        for name, mask in modifier.masks.items():
            assert not model.get_parameter(name)[~mask].any()


def test_second_order_mistakes() -> None:
    with pytest.raises(ValueError, match="pass gradients= to ManualLoop"):
        OBSPruningModifier(**ONCE).advance(Site(nn.Linear(4, 4), None, 4), 0.0)
    with pytest.raises(ValueError, match="multiple of 4"):
        OBSPruningModifier(**ONCE, mask_type="block4", fisher_block_size=6)
    with pytest.raises(ValueError, match="multiples of 4"):
        OBSPruningModifier(**ONCE, mask_type="block4", fisher_block_size=8).prepare_model(nn.Linear(6, 4))
    with pytest.raises(ValueError, match="'unstructured' and 'block4'"):
        OBSPruningModifier(**merged(ONCE, {"final_sparsity": 0.5}), mask_type="2:4")
    with pytest.raises(ValueError, match="num_recomputations"):
        OBSPruningModifier(**ONCE, num_recomputations=0)
    with pytest.raises(ValueError, match=r"from sparsity 0\.0 on"):
        MFACPruningModifier(**ONCE, num_grads={0.5: 64})
    with pytest.warns(TrainwrightWarning, match="num_pages, available_devices"):
        MFACPruningModifier(**ONCE, num_pages=4, available_devices=["cuda:0"])
    with pytest.warns(TrainwrightWarning, match="grad_sampler_kwargs"):
        OBSPruningModifier(**ONCE, grad_sampler_kwargs={"batch_size": 8})
    assert OBSPruningModifier.needs_whole_tensors
    assert MFACPruningModifier.needs_whole_tensors
