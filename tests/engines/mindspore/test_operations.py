"""Every operation of the table computes what torch computes, and so does its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

mindspore = pytest.importorskip("mindspore")
pytestmark = pytest.mark.mindspore

from torch.utils import _pytree as pytree  # noqa: E402

from tests.engines.mindspore.cases import (  # noqa: E402
    activation,
    arithmetic,
    creation,
    image,
    indexing,
    matrix,
    reduction,
    shape,
)
from tests.engines.mindspore.cases.case import Case  # noqa: E402
from trainwright.engines.mindspore.framework import MindSporeFramework  # noqa: E402
from trainwright.engines.mindspore.operations import OPERATIONS  # noqa: E402

TOPICS = {
    module.__name__.rsplit(".", 1)[-1]: module.CASES
    for module in (arithmetic, activation, shape, reduction, indexing, matrix, image, creation)
}
ALL = [case for cases in TOPICS.values() for case in cases]


def _leaves(case: Case) -> tuple[list[Any], Any]:
    return pytree.tree_flatten((case.args, case.kwargs))


def _results(case: Case, result: Any) -> list[Any]:
    flat = [value for value in pytree.tree_leaves(result) if isinstance(value, torch.Tensor | mindspore.Tensor)]
    return flat if case.outputs is None else flat[: case.outputs]


class Expected:
    """What torch computes: results, and gradients of a weighed sum of those that have one."""

    def __init__(self, case: Case):
        leaves, structure = _leaves(case)
        self.tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        inputs = [
            tensor.clone().requires_grad_(tensor.dtype.is_floating_point and case.grad and at not in case.still)
            for at, tensor in enumerate(self.tensors)
        ]
        given = iter(inputs)
        args, kwargs = pytree.tree_unflatten(
            [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], structure
        )
        self.results = _results(case, case.operation(*args, **kwargs))
        generator = torch.Generator().manual_seed(1)
        self.weights = [
            torch.randn(result.shape, generator=generator, dtype=torch.float64).to(result.dtype)
            if result.requires_grad
            else None
            for result in self.results
        ]
        wanted = [tensor for tensor in inputs if tensor.requires_grad]
        self.gradients: list[torch.Tensor | None] = [None] * len(inputs)
        if wanted and any(weight is not None for weight in self.weights):
            loss = torch.zeros((), dtype=torch.float64)
            for result, weight in zip(self.results, self.weights, strict=True):
                if weight is not None:
                    loss = loss + (result * weight).double().sum()
            found = iter(torch.autograd.grad(loss, wanted, allow_unused=True))
            self.gradients = [next(found) if tensor.requires_grad else None for tensor in inputs]


def _compute(case: Case, expected: Expected, arrays: Sequence[Any]) -> tuple[Any, list[Any]]:
    """The weighed sum, and the results, on MindSpore."""
    leaves, structure = _leaves(case)
    given = iter(arrays)
    leaves = [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    args, kwargs = pytree.tree_unflatten(leaves, structure)
    results = _results(case, OPERATIONS[case.operation](*args, **kwargs))
    loss = mindspore.Tensor(0.0, mindspore.float64)
    framework = MindSporeFramework()
    for result, weight in zip(results, expected.weights, strict=True):
        if weight is not None:
            loss = loss + (result * framework.array(weight)).astype(mindspore.float64).sum()
    return loss, results


def _check(case: Case, expected: Expected, results: Sequence[Any], gradients: Sequence[Any]) -> None:
    framework = MindSporeFramework()
    assert len(results) == len(expected.results)
    for ours, theirs in zip(results, expected.results, strict=True):
        _near(framework.tensor(ours), theirs.detach(), case)
    for ours, theirs in zip(gradients, expected.gradients, strict=True):
        if theirs is not None:
            _near(framework.tensor(ours), theirs, case)


def _near(ours: torch.Tensor, theirs: torch.Tensor, case: Case) -> None:
    exact = theirs.dtype is torch.float64
    half = theirs.dtype is torch.float16
    torch.testing.assert_close(
        ours, theirs, rtol=1e-12 if exact else 1e-3 if half else 1e-5, atol=1e-12 if exact else 1e-5, equal_nan=True
    )


def test_every_operation_has_a_case() -> None:
    assert {str(operation) for operation in OPERATIONS} == {str(case.operation) for case in ALL}


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.id)
def test_operation_equals_torch(case: Case) -> None:
    expected = Expected(case)
    framework = MindSporeFramework(jit=False)
    arrays = [framework.array(tensor) for tensor in expected.tensors]
    has = [at for at, gradient in enumerate(expected.gradients) if gradient is not None]
    if not has:
        _check(case, expected, _compute(case, expected, arrays)[1], expected.gradients)
        return
    # Arguments with a gradient come first.
    order = has + [at for at in range(len(arrays)) if at not in has]

    def run(*given: Any) -> tuple[Any, ...]:
        loss, results = _compute(case, expected, [given[order.index(at)] for at in range(len(arrays))])
        return (loss, *results)

    outputs = framework.with_gradients(run, len(has))(*(arrays[at] for at in order))
    count = len(expected.results) + 1
    gradients: list[Any] = [None] * len(arrays)
    for at, gradient in zip(has, outputs[count:], strict=True):
        gradients[at] = gradient
    _check(case, expected, outputs[1:count], gradients)


@pytest.mark.parametrize("topic", list(TOPICS))
def test_operations_compiled_equal_torch(topic: str) -> None:
    """All cases of a topic in one graph, with gradients: compiling changes nothing."""
    framework = MindSporeFramework()
    cases = TOPICS[topic]
    expected = [Expected(case) for case in cases]
    places = [(number, at) for number, known in enumerate(expected) for at in range(len(known.tensors))]
    trained = [place for place in places if expected[place[0]].gradients[place[1]] is not None]
    order = trained + [place for place in places if place not in trained]

    def run(*given: Any) -> tuple[Any, ...]:
        values = dict(zip(order, given, strict=True))
        total, found = mindspore.Tensor(0.0, mindspore.float64), []
        for number, (case, known) in enumerate(zip(cases, expected, strict=True)):
            loss, results = _compute(case, known, [values[number, at] for at in range(len(known.tensors))])
            total = total + loss
            found += results
        return (total, *found)

    function = framework.compile(framework.with_gradients(run, len(trained)))
    outputs = iter(function(*(framework.array(expected[number].tensors[at]) for number, at in order)))
    next(outputs)
    results = [[next(outputs) for _ in known.results] for known in expected]
    gradients = dict(zip(trained, outputs, strict=True))
    for number, (case, known) in enumerate(zip(cases, expected, strict=True)):
        _check(case, known, results[number], [gradients.get((number, at)) for at in range(len(known.tensors))])


_aten, _generator = torch.ops.aten, torch.Generator().manual_seed(0)
small = (torch.randn(2, 4, 8, generator=_generator) * 0.01 + 0.02).half()
large, shares = torch.full((3, 400), 300.0).half(), torch.rand(3, 400, generator=_generator).half()
IN_FULL: dict[str, tuple[Any, torch.Tensor, tuple[Any, ...]]] = {
    "layer norm": (_aten.native_layer_norm.default, small, ([8], None, None, 1e-12)),
    "group norm": (_aten.native_group_norm.default, small, (None, None, 2, 4, 8, 2, 1e-12)),
    "rms norm": (_aten._fused_rms_norm.default, small, ([8], None, 1e-12)),
    "softmax": (_aten._softmax.default, shares, (-1, False)),
    "log-softmax": (_aten._log_softmax.default, shares, (-1, False)),
    "mean": (_aten.mean.dim, large, ([1],)),
    "variance": (_aten.var.correction, large * shares, ([1],)),
    "length": (_aten.linalg_vector_norm.default, large / 10, (2, [1])),
}


@pytest.mark.parametrize("name", list(IN_FULL))
def test_halves_are_summed_and_normalized_in_full(name: str) -> None:
    """As torch does it: in float16 a square, or a deviation's third power, would leave the range on the way."""
    operation, values, rest = IN_FULL[name]
    framework, given = MindSporeFramework(), values.clone().requires_grad_()

    def first(result: Any) -> Any:
        return result[0] if isinstance(result, tuple) else result

    expected = first(operation(given, *rest))
    weights = torch.linspace(0.5, 1.5, expected.numel()).view(expected.shape).half()
    (slope,) = torch.autograd.grad((expected * weights).float().sum(), given)

    def loss(array: Any) -> tuple[Any, Any]:
        result = first(OPERATIONS[operation](array, *rest))
        return (result * framework.array(weights)).astype(mindspore.float32).sum(), result

    (_, found), ours = mindspore.value_and_grad(loss, 0, has_aux=True)(framework.array(values))
    for mine, theirs in ((found, expected.detach()), (ours, slope)):
        mine = framework.tensor(mine)
        assert mine.dtype is torch.float16
        assert float((mine.float() - theirs.float()).norm()) < 0.03 * float(theirs.float().norm())
