"""Groups with the same settings are updated at once, and nobody sees it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from trainwright.engines.torch.one_group import step_as_one


def stepped(as_one: bool, kind: Any = torch.optim.AdamW, second: dict[str, Any] | None = None) -> tuple[Any, list[Any]]:
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(4, 3)) for _ in range(4)]
    groups = [
        {"params": weights[:3], "weight_decay": 0.0},
        {"params": weights[3:], "weight_decay": 0.0, **(second or {})},
    ]
    optimizer = kind(groups, lr=0.01)
    seen: list[int] = []
    real = optimizer.step
    optimizer.step = lambda: (seen.append(len(optimizer.param_groups)), real())
    for _ in range(3):
        for weight in weights:
            weight.grad = torch.randn(4, 3)
        step_as_one(optimizer) if as_one else optimizer.step()
    assert [len(group["params"]) for group in optimizer.param_groups] == [3, 1]
    return seen, [weight.detach().clone() for weight in weights]


@pytest.mark.parametrize(
    ("second", "at_once"), [({}, True), ({"weight_decay": 0.1}, False), ({"lr": 0.5}, False), ({"mine": 1}, False)]
)
def test_the_same_bits_in_one_call_where_nothing_differs(second: dict[str, Any], at_once: bool) -> None:
    seen, weights = stepped(True, second=second)
    assert seen == [1 if at_once else 2] * 3
    for one, other in zip(weights, stepped(False, second=second)[1], strict=True):
        assert torch.equal(one, other)


def test_optimizers_that_may_write_into_their_groups_see_them_all() -> None:
    class Counts(torch.optim.AdamW):
        pass

    assert stepped(True, kind=Counts)[0] == [2] * 3


def test_hooks_see_all_groups() -> None:
    weights = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizer = torch.optim.AdamW([{"params": [weight]} for weight in weights])
    seen: list[int] = []
    optimizer.register_step_post_hook(lambda optimizer, args, kwargs: seen.append(len(optimizer.param_groups)))
    step_as_one(optimizer)
    assert seen == [2]


def test_an_error_in_the_step_leaves_the_groups() -> None:
    weights = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizer = torch.optim.AdamW([{"params": [weight]} for weight in weights])

    def fails() -> None:
        raise RuntimeError("out of memory")

    optimizer.step = fails  # type: ignore[method-assign, assignment]
    with pytest.raises(RuntimeError, match="out of memory"):
        step_as_one(optimizer)
    assert len(optimizer.param_groups) == 2
