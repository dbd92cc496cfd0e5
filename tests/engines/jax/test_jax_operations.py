"""Every operation of the table answers as torch does: values, shapes, types and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tests.engines.op_cases import CASES, OpCase, answer, compared, flat_tensors
from trainwright.engines.jax.framework import JaxFramework

pytest.importorskip("jax")

pytestmark = pytest.mark.jax


def called(case: OpCase, args: tuple[Any, ...], arrays: tuple[Any, ...]) -> list[Any]:
    """What the table makes of a case whose tensors are ``arrays``."""
    remaining = iter(arrays)
    args = pytree.tree_map(lambda leaf: next(remaining) if isinstance(leaf, Tensor) else leaf, args)
    return compared(case, JaxFramework().operations[case.overload](*args, **case.kwargs))


@pytest.mark.parametrize("name", CASES)
def test_as_torch(name: str) -> None:
    case, framework = CASES[name], JaxFramework()
    args = case.make()
    expected = answer(case, args)
    arrays = [framework.array(tensor) for tensor in flat_tensors(args)]
    found = framework.compile(lambda *given: tuple(called(case, args, given)))(*arrays)
    for array, tensor in zip(found, expected.results, strict=True):
        result = framework.tensor(array)
        half = tensor.dtype is torch.bfloat16
        torch.testing.assert_close(result, tensor, rtol=1e-2 if half else 1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.differentiable])
def test_gradients_as_torch(name: str) -> None:
    case, framework = CASES[name], JaxFramework()
    args = case.make()
    expected = answer(case, args)
    arrays = [framework.array(tensor) for tensor in flat_tensors(args)]
    places, width = case.differentiable, len(case.differentiable)
    others = [position for position in range(len(arrays)) if position not in places]
    order = [[*places, *others].index(position) for position in range(len(arrays))]

    def total(*given: Any) -> tuple[Any, ...]:
        results = called(case, args, tuple(given[place] for place in order))
        weighted = [
            (result * framework.array(weight)).sum()
            for result, weight in zip(results, expected.weights, strict=True)
            if weight.is_floating_point()
        ]
        return (sum(weighted[1:], weighted[0]),)

    run = framework.compile(framework.with_gradients(total, width))
    _, *gradients = run(*(arrays[position] for position in [*places, *others]))
    for array, tensor in zip(gradients, expected.gradients, strict=True):
        torch.testing.assert_close(framework.tensor(array), tensor, rtol=1e-4, atol=1e-5)


def test_every_operation_of_the_table_has_a_case() -> None:
    tried = {case.overload for case in CASES.values()}
    assert [str(overload) for overload in JaxFramework().operations if overload not in tried] == []


def test_what_is_missing_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        JaxFramework().operations[torch.ops.aten.nonzero.default]


def test_attention_to_nothing_has_a_gradient_of_zero_not_nan() -> None:
    """torch's attention puts zeros where a row may look at nothing; softmax of that row alone is NaN."""
    framework = JaxFramework()
    softmax = framework.operations[torch.ops.aten._softmax.default]
    where = framework.operations[torch.ops.aten.where.self]
    scores = torch.tensor([[float("-inf")] * 3, [0.0, 1.0, 2.0]])

    def attention(given: Any, nothing: Any, zeros: Any) -> tuple[Any, ...]:
        return (where(nothing, zeros, softmax(given, 1, False))[:, 0].sum(),)

    arguments = [scores, torch.tensor([[True], [False]]), torch.zeros(2, 3)]
    run = framework.compile(framework.with_gradients(attention, 1))
    _, gradient = run(*map(framework.array, arguments))
    row = scores[1:].clone().requires_grad_()
    row.softmax(1)[:, 0].sum().backward()
    assert row.grad is not None
    torch.testing.assert_close(framework.tensor(gradient), torch.cat([torch.zeros(1, 3), row.grad]))
