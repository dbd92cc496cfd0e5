"""Structured pruning and thinning: a smaller model with the same outputs, and an optimizer that follows."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.recipes.pruning.runs import Chain, Training, pictures_batch, sparsity
from trainwright.recipes.manual_loop import ManualLoop
from trainwright.recipes.pruning.channels import find_spaces
from trainwright.recipes.pruning.cutting import fit_to_shapes
from trainwright.recipes.pruning.structured import StructuredPruningModifier
from trainwright.recipes.pruning.thinning import LayerThinningModifier, thin

HALF: dict[str, Any] = {"init_sparsity": 0.5, "final_sparsity": 0.5, "start_epoch": 0, "end_epoch": 1}


class Residual(nn.Module):
    """Two additions that tie the outputs of three convolutions together, and a depthwise one."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.inner = nn.Conv2d(8, 12, 3, padding=1)
        self.depthwise = nn.Conv2d(12, 12, 3, padding=1, groups=12, bias=False)
        self.inner_bn = nn.BatchNorm2d(12)
        self.outer = nn.Conv2d(12, 8, 1)
        self.last = nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.bn(self.stem(x)))
        x = x + self.outer(functional.relu(self.inner_bn(self.depthwise(functional.relu(self.inner(x))))))
        x = (x + self.last(x)).relu()
        return self.head(x.mean((2, 3)))


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(10, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 12), nn.Sigmoid(), nn.Linear(12, 4)
    )


def trained_a_little(model: nn.Module, x: Tensor) -> nn.Module:
    """Running statistics and biases that are not those of a new model."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(x + torch.randn_like(x)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], list[str], list[list[str]]]] = {
    "mlp": (mlp, (5, 10), ["0.weight", "3.weight"], []),
    "chain": (Chain, (3, 1, 8, 8), ["conv1.weight", "conv2.weight", "hidden.weight"], []),
    "residual": (
        Residual,
        (2, 3, 6, 6),
        ["stem.weight", "inner.weight", "outer.weight", "last.weight"],
        [["stem.weight", "outer.weight", "last.weight"]],
    ),
}


def masked(name: str, **changes: Any) -> tuple[nn.Module, Tensor]:
    build, shape, params, groups = MODELS[name]
    torch.manual_seed(0)
    x = torch.randn(shape)
    model = trained_a_little(build(), x)
    modifier = StructuredPruningModifier(**HALF, params=params, param_groups=groups, **changes)
    ManualLoop([modifier], model, None, 4).start()
    modifier.finish_model(model)
    return model, x


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_a_thinned_model_says_what_the_masked_one_said(name: str) -> None:
    model, x = masked(name)
    before = model(x)
    smaller = copy.deepcopy(model)
    replaced = thin(smaller)
    assert torch.allclose(smaller(x), before, atol=1e-5)
    assert size(smaller) < 0.62 * size(model)
    for old, (new, kept) in replaced.items():
        assert kept is not None
        assert kept(old).shape == new.shape
    fresh = MODELS[name][0]()
    fit_to_shapes(fresh, {key: value.shape for key, value in smaller.state_dict().items()})
    fresh.load_state_dict(smaller.state_dict())
    assert torch.allclose(fresh.eval()(x), before, atol=1e-5)
    assert thin(smaller) == {}


def test_layers_know_their_new_sizes() -> None:
    model, _ = masked("residual")
    thin(model)
    assert isinstance(model, Residual)
    assert (model.stem.out_channels, model.bn.num_features, model.inner.in_channels) == (4, 4, 4)
    assert (model.depthwise.groups, model.depthwise.in_channels, model.depthwise.out_channels) == (6, 6, 6)
    assert model.inner_bn.running_mean is not None
    assert model.inner_bn.running_mean.shape == (6,)
    assert (model.head.in_features, model.head.out_features) == (4, 4)
    chain, _ = masked("chain")
    thin(chain)
    assert isinstance(chain, Chain)
    assert chain.hidden.weight.shape == (8, 4 * 16)


def test_a_residual_group_loses_the_same_filters() -> None:
    model, _ = masked("residual")
    assert isinstance(model, Residual)
    zero = [(layer.weight.flatten(1) == 0).all(1) for layer in (model.stem, model.outer, model.last)]
    assert int(zero[0].sum()) == 4
    assert torch.equal(zero[0], zero[1])
    assert torch.equal(zero[0], zero[2])
    assert not model.bn.weight[zero[0]].any()
    assert not model.get_parameter("outer.bias")[zero[0]].any()


def test_without_the_group_only_what_all_agree_on_goes() -> None:
    torch.manual_seed(1)
    model = Residual().eval()
    for layer, gone in ((model.stem, [0, 1, 2]), (model.outer, [1, 2, 3]), (model.last, [2, 4])):
        layer.weight.data[gone] = 0
        if layer.bias is not None:
            layer.bias.data[gone] = 0
    x = torch.randn(2, 3, 6, 6)
    before = model(x)
    thin(model)
    assert model.stem.out_channels == 7
    assert torch.allclose(model(x), before, atol=1e-5)


def test_constants_that_cannot_be_accounted_for_stay() -> None:
    """A padded convolution sees the constant of a dead filter everywhere but at the border."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 2, 3, padding=1))
    model.get_parameter("0.weight").data[:2] = 0
    model.get_parameter("0.bias").data[0] = 0
    x = torch.randn(1, 1, 8, 8)
    before = model(x)
    thin(model)
    assert model.get_submodule("0").out_channels == 3
    assert torch.allclose(model(x), before, atol=1e-6)


def test_channels_that_nobody_reads_go() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6))
    modifier = StructuredPruningModifier(**HALF, params=["2.weight"], mask_type="channel")
    ManualLoop([modifier], model, None, 4).start()
    assert int((model.get_parameter("2.weight") == 0).all(0).sum()) == 4
    x = torch.randn(3, 4)
    before = model(x)
    thin(model, structure_type="channel")
    assert model.get_submodule("0").out_features == 4
    assert torch.allclose(model(x), before, atol=1e-6)


def test_a_map_says_the_same_as_tracing() -> None:
    traced, x = masked("residual")
    mapped = copy.deepcopy(traced)
    thin(traced)
    groups = {
        "stem.weight,outer.weight,last.weight": ["bn.weight", "inner.weight", "last.weight", "head.weight"],
        "inner.weight": ["depthwise.weight", "inner_bn.weight", "inner_bn.bias", "outer.weight"],
    }
    thin(mapped, groups)
    for name, tensor in traced.state_dict().items():
        assert torch.equal(tensor, mapped.state_dict()[name]), name
    assert torch.allclose(traced(x), mapped(x))


def test_maps_that_are_wrong() -> None:
    model, _ = masked("residual")
    with pytest.raises(ValueError, match=r"no 'stm\.weight'"):
        LayerThinningModifier(param_group_dependency_map={"stm.weight": []}).prepare_model(model)
    with pytest.raises(ValueError, match="do not fit"):
        thin(model, {"stem.weight,inner.weight": []})
    model.get_parameter("outer.weight").data.fill_(1.0)
    with pytest.raises(ValueError, match="not zero in the same places"):
        thin(model, {"stem.weight,outer.weight": ["bn.weight"]})
    assert thin(model, {"stem.weight,outer.weight": ["bn.weight"]}, strict=False) == {}


class Opaque(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x)) if x.sum() > 0 else self.two(-self.one(x))


def test_what_cannot_be_traced_asks_for_a_map() -> None:
    with pytest.raises(ValueError, match="param_group_dependency_map"):
        LayerThinningModifier().prepare_model(Opaque())
    model = Opaque()
    model.one.weight.data[:3], model.one.bias.data[:3] = 0, 0
    LayerThinningModifier(param_group_dependency_map={"one.weight": ["two.weight"]}).finish_model(model)
    assert model.one.out_features == 5


def test_what_is_not_understood_is_left_whole() -> None:
    class Normalized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.norm, self.two = nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.two(self.norm(self.one(x)).softmax(-1))

    assert find_spaces(Normalized()) == []
    tied = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    tied.get_submodule("2").weight = tied.get_submodule("0").weight
    assert find_spaces(tied) == []


def test_embedding_dimensions_can_go() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 6), nn.Linear(6, 3))
    model.get_parameter("0.weight").data[:, [1, 4]] = 0
    x = torch.tensor([[1, 2], [3, 6]])
    before = model(x)
    thin(model)
    assert model.get_submodule("0").embedding_dim == 4
    assert torch.allclose(model(x), before, atol=1e-6)


def test_training_goes_on_with_the_smaller_model() -> None:
    pruning = StructuredPruningModifier(
        init_sparsity=0.25,
        final_sparsity=0.75,
        start_epoch=0,
        end_epoch=3,
        update_frequency=0.5,
        params=["conv1.weight", "conv2.weight", "hidden.weight"],
    )
    thinning = LayerThinningModifier(start_epoch=1, update_epochs=[2, 3])
    sizes: list[int] = []

    def watch(training: Training) -> None:
        model = training.model
        assert isinstance(model, Chain)
        sizes.append(model.conv1.out_channels)
        trained = {id(p) for group in training.optimizer.param_groups for p in group["params"]}
        assert trained == {id(p) for p in model.parameters()}
        for parameter in model.parameters():
            moment = training.optimizer.state[parameter]["exp_avg"]
            assert moment.shape == parameter.shape
        for name, mask in pruning.masks.items():
            assert mask.shape == model.get_parameter(name).shape

    training = Training([pruning, thinning], build=Chain, batches=pictures_batch).run(14, watch)
    assert sizes == sorted(sizes, reverse=True)
    # Of eight filters two stay: the sparsity counts from the sizes the model had.
    assert sizes[-1] == 2
    assert training.model.get_submodule("hidden").out_features == 4
    assert thinning.final_epoch == 3
    training.drive.finish()


def test_thinning_at_the_end_takes_masks_along() -> None:
    pruning = StructuredPruningModifier(**HALF, params=["conv1.weight"])
    thinning = LayerThinningModifier()
    training = Training([pruning, thinning], build=Chain, batches=pictures_batch).run(6)
    model = training.model
    assert isinstance(model, Chain)
    assert model.conv1.out_channels == 8
    training.drive.finish()
    assert model.conv1.out_channels == 4
    assert pruning.masks["conv1.weight"].shape == model.conv1.weight.shape
    assert sparsity(model.conv1.weight) == 0


def test_a_group_may_span_multiples() -> None:
    """A linear layer that reads a flattened picture has several inputs for each channel."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 1), nn.Flatten(), nn.Linear(16, 8))
    modifier = StructuredPruningModifier(
        **HALF, params=["0.weight", "2.weight"], param_groups=[["0.weight", "2.weight"]], mask_type="filter"
    )
    ManualLoop([modifier], model, None, 4).start()
    first, second = ((model.get_parameter(f"{n}.weight").flatten(1) == 0).all(1) for n in (0, 2))
    assert torch.equal(first.repeat_interleave(2), second)
    assert int(first.sum()) == 2


def test_structured_mistakes() -> None:
    with pytest.raises(ValueError, match="'filter' and 'channel'"):
        StructuredPruningModifier(**HALF, mask_type="block4")
    with pytest.raises(ValueError, match="twice"):
        StructuredPruningModifier(**HALF, param_groups=[["a.weight"], ["a.weight"]])
    with pytest.raises(ValueError, match="not among params"):
        StructuredPruningModifier(**HALF, params=["conv1.weight"], param_groups=[["conv2.weight"]]).prepare_model(
            Chain()
        )
    names = ["0.weight", "1.weight"]
    odd = StructuredPruningModifier(**HALF, params=names, param_groups=[names])
    drive = ManualLoop([odd], nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 6)), None, 4)
    with pytest.raises(ValueError, match="no multiple"):
        drive.start()
    wrong: dict[str, dict[str, Any]] = {
        "does not come back": {"end_epoch": 3},
        "'filter' or 'channel'": {"structure_type": "row"},
        "must rise": {"update_epochs": [2, 1]},
    }
    for words, changes in wrong.items():
        with pytest.raises(ValueError, match=words):
            LayerThinningModifier(**changes)
    with pytest.raises(ValueError, match="another model"):
        fit_to_shapes(nn.Linear(2, 2), {"weight": (2, 2, 1)})
    with pytest.raises(ValueError, match="has no"):
        fit_to_shapes(nn.Linear(2, 2), {"wieght": (2, 2)})
    assert LayerThinningModifier.changes_structure
    assert LayerThinningModifier.needs_whole_tensors
