"""A Cell of MindSpore as a model: the numbers are those of the same network in torch."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

mindspore = pytest.importorskip("mindspore")
pytestmark = pytest.mark.mindspore

from mindspore import nn as cells  # noqa: E402
from mindspore import ops  # noqa: E402

from trainwright.engines.graph.lowered import call  # noqa: E402
from trainwright.engines.mindspore.cells import CellModel, capture_cell  # noqa: E402
from trainwright.engines.mindspore.framework import MindSporeFramework  # noqa: E402


class Network(cells.Cell):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = cells.Dense(4, 8)
        self.normal = cells.BatchNorm1d(8)
        self.drop = cells.Dropout(p=dropout)
        self.head = cells.SequentialCell(cells.Dense(8, 8), cells.Tanh(), cells.Dense(8, 3))

    def construct(self, x: Any, scale: Any = None) -> Any:
        hidden = self.drop(ops.relu(self.normal(self.first(x))))
        hidden = hidden if scale is None else hidden * scale
        return {"logits": self.head(hidden), "hidden": (hidden, None)}


class Twin(nn.Module):
    """The same in torch."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.normal, self.drop = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(dropout)
        self.head = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(torch.relu(self.normal(self.first(x)))))


NAMES = {"weight": "weight", "bias": "bias"}
BATCH_NORM = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}


def twin_of(model: CellModel, dropout: float = 0.0) -> tuple[Twin, dict[str, str]]:
    names = {}
    for name in model.values():
        *path, last = name.split(".")
        names[name] = ".".join([*path, (BATCH_NORM if path[0] == "normal" else NAMES)[last]])
    twin = Twin(dropout)
    twin.load_state_dict({names[name]: value for name, value in model.values().items()}, strict=False)
    return twin, names


def cross_entropy(outputs: Any, labels: Any) -> Any:
    return ops.cross_entropy(outputs["logits"], labels.astype(mindspore.int32))


def batch() -> dict[str, Tensor]:
    return {"x": torch.randn(6, 4), "labels": torch.tensor([0, 1, 2, 0, 1, 2])}


def arguments(computation: Any, model: CellModel, given: Any) -> list[Any]:
    values, leaves = model.values(), pytree.tree_leaves(given)
    tensors = [
        *(values[name] for name in computation.trained + computation.fixed),
        *(leaves[place] for place in computation.inputs),
        *(draw() for draw in computation.random),
    ]
    return [MindSporeFramework().array(tensor) for tensor in tensors]


def test_a_cell_has_the_face_of_a_module() -> None:
    cell = Network()
    cell.head[0].weight.requires_grad = False
    model = CellModel(cell)
    assert list(inspect.signature(model.forward).parameters) == ["x", "scale"]
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert shapes == {
        "first.weight": (8, 4),
        "first.bias": (8,),
        "normal.gamma": (8,),
        "normal.beta": (8,),
        "head.0.weight": (8, 8),
        "head.0.bias": (8,),
        "head.2.weight": (3, 8),
        "head.2.bias": (3,),
    }
    assert [name for name, _ in model.named_buffers()] == ["normal.moving_mean", "normal.moving_variance"]
    assert [name for name, parameter in model.named_parameters() if not parameter.requires_grad] == ["head.0.weight"]


def test_evaluation_by_calling_it() -> None:
    model = CellModel(Network()).eval()
    twin, _ = twin_of(model)
    x = torch.randn(5, 4)
    outputs = model(x)
    torch.testing.assert_close(outputs["logits"], twin.eval()(x).detach(), rtol=1e-4, atol=1e-4)
    assert outputs["hidden"][1] is None
    with pytest.raises(ValueError, match="engine='mindspore'"):
        model.train()(x)


def test_what_is_learned_goes_to_the_cell() -> None:
    cell = Network()
    model = CellModel(cell).eval()
    with torch.no_grad():
        model.get_parameter("head.2.bias").fill_(7)
    x = torch.randn(2, 4)
    seen = model(x)["logits"]
    assert not (MindSporeFramework().tensor(cell.head[2].bias) == 7).any()
    model.update_cell()
    assert (MindSporeFramework().tensor(cell.head[2].bias) == 7).all()
    own = cell.set_train(False)(MindSporeFramework().array(x))["logits"]
    torch.testing.assert_close(MindSporeFramework().tensor(own), seen, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("jit", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_steps_equal_those_of_the_same_network_in_torch(dropout: float, jit: bool) -> None:
    torch.manual_seed(0)
    model = CellModel(Network(dropout)).train()
    twin, names = twin_of(model, dropout)
    twin.train()
    framework = MindSporeFramework(jit=jit)
    given = (batch(), None)
    computation = capture_cell(cross_entropy)(model, lambda *_: None, given)
    assert computation.changed == ["normal.moving_mean", "normal.moving_variance"]
    assert len(computation.random) == (dropout > 0)

    def run(*arrays: Any) -> tuple[Any, ...]:
        outputs, changed = computation.run(framework.operations, arrays)
        return (*outputs, *changed)

    step = framework.compile(framework.with_gradients(run, len(computation.trained)))
    for number in range(3):
        data = batch()
        torch.manual_seed(number)
        results = step(*arguments(computation, model, (data, None)))
        loss, mean, variance, *gradients = (framework.tensor(result) for result in results)
        torch.manual_seed(number)
        twin.zero_grad()
        expected = nn.functional.cross_entropy(twin(data["x"]), data["labels"])
        expected.backward()
        # MindSpore's own tanh, which the Cell uses, is good to four digits.
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-4, atol=1e-4)
        theirs = dict(twin.named_parameters())
        with torch.no_grad():
            for name, gradient in zip(computation.trained, gradients, strict=True):
                wanted = theirs[names[name]].grad
                assert wanted is not None
                torch.testing.assert_close(gradient, wanted, rtol=1e-3, atol=1e-3)
                theirs[names[name]].sub_(0.1 * wanted)
                model.get_parameter(name).sub_(0.1 * gradient)
            model.get_buffer("normal.moving_mean").copy_(mean)
            model.get_buffer("normal.moving_variance").copy_(variance)
        torch.testing.assert_close(mean, twin.get_buffer("normal.running_mean"), rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(variance, twin.get_buffer("normal.running_var"), rtol=1e-3, atol=1e-3)


def test_statistics_are_those_that_mindspores_own_layer_takes() -> None:
    layer = cells.BatchNorm2d(3, momentum=0.8)
    model = CellModel(layer).train()
    data = torch.randn(4, 3, 5, 5)
    computation = capture_cell()(model, call, ((data,), {}))
    assert computation.changed == ["moving_mean", "moving_variance"]
    outputs, changed = computation.run({}, arguments(computation, model, ((data,), {})))
    own = layer.set_train(True)(MindSporeFramework().array(data))
    tensor = MindSporeFramework().tensor
    torch.testing.assert_close(tensor(outputs[0]), tensor(own), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(tensor(changed[0]), tensor(layer.moving_mean), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(tensor(changed[1]), tensor(layer.moving_variance), rtol=1e-4, atol=1e-6)


def test_evaluation_as_a_graph_keeps_the_structure() -> None:
    framework = MindSporeFramework()
    model = CellModel(Network()).eval()
    x = torch.randn(5, 4)
    computation = capture_cell()(model, call, ((x,), {}))
    run = framework.compile(lambda *arrays: tuple(computation.run({}, arrays)[0]))
    outputs = computation.rebuilt([framework.tensor(a) for a in run(*arguments(computation, model, ((x,), {})))])
    expected = model(x)
    assert outputs["hidden"][1] is None
    torch.testing.assert_close(outputs["logits"], expected["logits"])
    torch.testing.assert_close(outputs["hidden"][0], expected["hidden"][0])


class OwnLoss(cells.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.table = cells.Dense(4, 4, has_bias=False)
        self.again = cells.Dense(4, 4, has_bias=False)
        self.again.weight = self.table.weight

    def construct(self, x: Any) -> Any:
        return ops.square(self.again(self.table(x))).mean(), x


def test_a_loss_of_its_own_and_a_shared_weight() -> None:
    framework = MindSporeFramework()
    model = CellModel(OwnLoss()).train()
    assert [name for name, _ in model.named_parameters()] == ["table.weight"]
    given = ({"x": torch.randn(3, 4)}, None)
    computation = capture_cell()(model, lambda *_: None, given)
    step = framework.compile(framework.with_gradients(lambda *a: tuple(computation.run({}, a)[0]), 1))
    loss, gradient = (framework.tensor(array) for array in step(*arguments(computation, model, given)))
    weight = model.get_parameter("table.weight").detach().clone().requires_grad_()
    expected = (given[0]["x"] @ weight.T @ weight.T).square().mean()
    expected.backward()
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(gradient, weight.grad, rtol=1e-4, atol=1e-5)


class Counter(cells.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.weight = mindspore.Parameter(ops.ones(2), name="weight")
        self.calls = mindspore.Parameter(ops.zeros(1), name="calls", requires_grad=False)

    def construct(self, x: Any) -> Any:
        ops.assign_add(self.calls, ops.ones(1))
        return (self.weight * x).sum()


class Noisy(cells.Cell):
    def construct(self, x: Any) -> Any:
        return (x + ops.standard_normal((2,))).sum()


@pytest.mark.parametrize(("cell", "reason"), [(Counter, "in place"), (Noisy, "random numbers")])
def test_what_a_graph_would_lose_is_refused(cell: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        capture_cell()(CellModel(cell()).train(), lambda *_: None, ({"x": torch.ones(2)}, None))


def test_outputs_without_a_loss_are_refused() -> None:
    given = ({"x": torch.randn(4, 4)}, None)
    with pytest.raises(ValueError, match="compute_loss_func"):
        capture_cell()(CellModel(Network()).train(), lambda *_: None, given)
    with pytest.raises(ValueError, match="compute_loss_func"):
        capture_cell()(CellModel(cells.Dense(4, 2)).train(), lambda *_: None, given)
