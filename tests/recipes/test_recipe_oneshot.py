"""A recipe without a training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainwright.config.warnings import TrainwrightWarning
from trainwright.recipes.oneshot import acts_at_once, apply_recipe, gradients_of
from trainwright.recipes.quantization.layers import Quantized


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


def batches(count: int = 3) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(6, 8, generator=generator), torch.arange(6) % 4) for _ in range(count)]


def sampled(model: nn.Module) -> Any:
    return gradients_of(model, batches, lambda batch: F.cross_entropy(model(batch[0]), batch[1]))


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("MagnitudePruningModifier", {"init_sparsity": 0.1, "final_sparsity": 0.5}),
        ("GlobalMagnitudePruningModifier", {"init_sparsity": 0.1, "final_sparsity": 0.5}),
        ("MagnitudePruningModifier", {"init_sparsity": 0.1, "final_sparsity": 0.5, "mask_type": "2:4"}),
        ("MovementPruningModifier", {"init_sparsity": 0.1, "final_sparsity": 0.5}),
        ("OBSPruningModifier", {"init_sparsity": 0.1, "final_sparsity": 0.5, "num_grads": 4}),
        ("MFACPruningModifier", {"init_sparsity": 0.1, "final_sparsity": 0.5, "num_grads": 4}),
        ("ACDCPruningModifier", {"compression_sparsity": 0.5, "update_frequency": 1}),
        ("RigLPruningModifier", {"final_sparsity": 0.5, "update_frequency": 1}),
        ("TopKASTPruningModifier", {"forward_sparsity": 0.5, "backward_sparsity": 0.25, "update_frequency": 1}),
    ],
)
def test_every_way_of_pruning_comes_to_its_end(kind: str, arguments: dict[str, Any]) -> None:
    model = network()
    given = {"params": ["re:.*[04].weight"], "start_epoch": 0, "end_epoch": 4, "update_frequency": 1, **arguments}
    before = [buffer.clone() for buffer in model.buffers()]
    apply_recipe(model, {"modifiers": [{kind: given}]}, gradients=sampled(model))
    zeros = sum(int((layer.weight == 0).sum()) for layer in (model[0], model[4]))  # type: ignore[union-attr, misc]
    assert zeros == pytest.approx(96, abs=1)
    assert all(torch.equal(*pair) for pair in zip(before, model.buffers(), strict=True))


def test_rounding_with_and_without_data() -> None:
    recipe = {"modifiers": [{"QuantizationModifier": {"start_epoch": 3}}]}
    model = network()
    inputs = [x for x, _ in batches()]
    apply_recipe(model, recipe, calibrate=inputs)
    assert isinstance(model[0], Quantized)
    assert model[0].rounds
    wanted = float(inputs[0].max())
    assert float(model[0].input_fake_quantizer.high) == pytest.approx(wanted, rel=0.2)  # type: ignore[union-attr]
    assert model[1].training
    with pytest.warns(TrainwrightWarning, match="Activations are not quantized"):
        apply_recipe(network(), recipe)
    apply_recipe(network(), {"modifiers": [{"QuantizationModifier": {"scheme": "W8A8"}}]})


def test_filters_are_taken_out() -> None:
    model = network()
    modifiers = apply_recipe(
        model,
        {
            "modifiers": [
                {
                    "StructuredPruningModifier": {
                        "param_groups": [["0.weight"]],
                        "mask_type": "filter",
                        "init_sparsity": 0.1,
                        "final_sparsity": 0.5,
                        "end_epoch": 2,
                    }
                },
                {"LayerThinningModifier": {"start_epoch": 2}},
                {
                    "LearningRateFunctionModifier": {
                        "lr_func": "linear",
                        "init_lr": 1,
                        "final_lr": 0,
                        "start_epoch": 0,
                        "end_epoch": 2,
                    }
                },
            ]
        },
    )
    assert model[0].out_features == model[4].in_features == 8  # type: ignore[union-attr]
    assert [type(m).__name__ for m in modifiers if not acts_at_once(m)] == ["LearningRateFunctionModifier"]


def test_gradients_leave_nothing_behind() -> None:
    model = network()
    model.eval()
    model[0].weight.grad = torch.ones_like(model[0].weight)  # type: ignore[arg-type, union-attr]
    buffers, random = [buffer.clone() for buffer in model.buffers()], torch.get_rng_state()
    seen = []
    for _ in sampled(model)(5):
        assert model.training
        seen.append(model[0].weight.grad.clone())  # type: ignore[union-attr]
    assert len(seen) == 5
    assert not torch.equal(seen[0], seen[1])
    assert not model.training
    assert torch.equal(model[0].weight.grad, torch.ones_like(model[0].weight))  # type: ignore[arg-type, union-attr]
    assert all(torch.equal(*pair) for pair in zip(buffers, model.buffers(), strict=True))
    assert torch.equal(random, torch.get_rng_state())
    again = [model[0].weight.grad.clone() for _ in sampled(model)(5)]  # type: ignore[union-attr]
    assert all(torch.equal(*pair) for pair in zip(seen, again, strict=True))
    with pytest.raises(ValueError, match="no batch"):
        list(gradients_of(model, list, lambda batch: batch)(1))
