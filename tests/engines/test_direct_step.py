"""torch's fused Adam called directly: the same bits, and only where nobody could see the difference."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import optimizer as torchs

from trainwright.engines.torch.clipping import clip_on_cpu
from trainwright.engines.torch.direct_step import clear_directly, step_directly
from trainwright.engines.torch.schedules import FactorLR


def made(kind: Any = torch.optim.AdamW, second: dict[str, Any] | None = None, **options: Any) -> Any:
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(*shape)) for shape in ((4, 3), (7,), (1,), (2, 2))]
    groups = [{"params": weights[:2]}, {"params": weights[2:], **(second or {})}]
    optimizer = kind(groups, **{"lr": 0.01, "weight_decay": 0.1, "fused": True, **options})
    give_gradients(optimizer)
    # The first step makes the state, and is torch's own.
    assert not step_directly(optimizer)
    optimizer.step()
    return optimizer


def give_gradients(optimizer: Any, leave_out: int | None = None) -> None:
    for number, weight in enumerate(all_weights(optimizer)):
        weight.grad = None if number == leave_out else torch.randn_like(weight)


def all_weights(optimizer: Any) -> list[nn.Parameter]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def is_stepped(optimizer: Any) -> bool:
    give_gradients(optimizer)
    return step_directly(optimizer)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("second", [{}, {"weight_decay": 0.0}, {"lr": 0.5, "maximize": True}])
@pytest.mark.parametrize("leave_out", [None, 0, 3])
def test_weights_and_state_have_the_same_bits(kind: Any, second: dict[str, Any], leave_out: int | None) -> None:
    ours = made(kind, second)
    torchs = copy.deepcopy(ours)
    for seed in range(3):
        for optimizer, step in ((ours, lambda: step_directly(ours)), (torchs, lambda: torchs.step() is None)):
            torch.manual_seed(seed)
            give_gradients(optimizer, leave_out)
            assert step()
    for one, other in zip(all_weights(ours), all_weights(torchs), strict=True):
        assert torch.equal(one, other)
        for name, value in torchs.state[other].items():
            assert torch.equal(ours.state[one][name], value), name


def test_a_schedule_around_the_step_is_known() -> None:
    optimizer = made()
    FactorLR(optimizer, lambda step: 1.0)
    assert is_stepped(optimizer)
    assert optimizer._opt_called


@pytest.mark.parametrize("options", [{"amsgrad": True}, {"fused": False}, {"lr": torch.tensor(0.1)}])
def test_variants_are_left_to_torch(options: dict[str, Any]) -> None:
    assert not is_stepped(made(**options))


def test_a_second_group_that_differs_in_kind_is_left_to_torch() -> None:
    optimizer = made()
    optimizer.param_groups[1]["amsgrad"] = True
    before = [weight.detach().clone() for weight in all_weights(optimizer)]
    assert not is_stepped(optimizer)
    assert all(torch.equal(one, other) for one, other in zip(before, all_weights(optimizer), strict=True))


def patched_on_the_instance(optimizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer.step = lambda: None


def patched_on_the_class(optimizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self: None)


def patched_below_a_schedule(optimizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self: None)
    FactorLR(optimizer, lambda step: 1.0)


def patched_between_a_schedule_and_its_class(optimizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    FactorLR(optimizer, lambda step: 1.0)
    optimizer.step.__wrapped__ = lambda self: None


def hooked_before(optimizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer.register_step_pre_hook(lambda *_: None)


def hooked_after(optimizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer.register_step_post_hook(lambda *_: None)


def asked_to_skip(optimizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer.found_inf = torch.tensor(1.0)


def hooked_everywhere(optimizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchs, "_global_optimizer_post_hooks", {0: lambda *_: None})


LISTENERS = [
    patched_on_the_instance,
    patched_on_the_class,
    patched_below_a_schedule,
    patched_between_a_schedule_and_its_class,
    hooked_before,
    hooked_after,
    hooked_everywhere,
    asked_to_skip,
]


@pytest.mark.parametrize("listen", LISTENERS)
def test_who_would_hear_of_a_step_still_does(
    listen: Callable[[Any, pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer = made()
    listen(optimizer, monkeypatch)
    assert not is_stepped(optimizer)


def test_a_profiler_sees_steps_and_cleared_gradients() -> None:
    optimizer = made()
    with torch.profiler.profile(acc_events=True) as seen:
        assert not is_stepped(optimizer)
        assert not clear_directly(optimizer)
        optimizer.step()
        optimizer.zero_grad()
    names = {event.key for event in seen.key_averages()}
    assert {"Optimizer.step#AdamW.step", "Optimizer.zero_grad#AdamW.zero_grad"} <= names


def test_subclasses_are_left_to_themselves() -> None:
    class Mine(torch.optim.AdamW):
        pass

    optimizer = made(Mine)
    assert not is_stepped(optimizer)
    assert not clear_directly(optimizer)


def test_gradients_are_cleared() -> None:
    optimizer = made()
    assert clear_directly(optimizer)
    assert all(weight.grad is None for weight in all_weights(optimizer))


def test_a_zero_grad_of_ones_own_is_called() -> None:
    optimizer = made()
    optimizer.zero_grad = lambda: None
    assert not clear_directly(optimizer)


@pytest.mark.parametrize("scale", [1e-6, 0.1, 1.0, 1e4, float("nan"), float("inf")])
@pytest.mark.parametrize("most", [1e-7, 1.0, 30.0])
def test_clipping_gives_torchs_bits(scale: float, most: float) -> None:
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.zeros(*shape)) for shape in ((4, 3), (7,), (33, 65))]
    gradients = [torch.randn_like(weight) * scale for weight in weights]
    results = []
    for clip in (clip_on_cpu, nn.utils.clip_grad_norm_):
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient.clone()
        norm = clip(weights, most)
        assert norm is not None
        results.append([norm, *(weight.grad for weight in weights)])
    for one, other in zip(*results, strict=True):
        assert one is not None
        assert other is not None
        assert torch.equal(one.view(torch.int32), other.view(torch.int32))


def test_clipping_of_other_gradients_is_left_to_torch() -> None:
    weight = nn.Parameter(torch.zeros(3, 2, dtype=torch.float64))
    assert clip_on_cpu([weight], 1.0) is None
    weight.grad = torch.ones(3, 2, dtype=torch.float64)
    assert clip_on_cpu([weight], 1.0) is None
    table = nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    assert clip_on_cpu(list(table.parameters()), 1.0) is None
