"""Schedules equal transformers' over whole runs, and their state is plain JSON."""

import json
import math
from typing import Any

import pytest
import torch
import transformers
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.optim import SGD

from trainwright.config import SchedulerType
from trainwright.engines.torch.schedules import build_scheduler, needs_metric

_shares = st.floats(0.0, 1.0)
_cycles = st.floats(0.1, 4.0)
_kinds = st.sampled_from(["linear", "cosine", "1-sqrt"])
OPTIONS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "linear": st.just({}),
    "constant": st.just({}),
    "constant_with_warmup": st.just({}),
    "cosine": st.fixed_dictionaries({}, optional={"num_cycles": _cycles}),
    "cosine_with_restarts": st.fixed_dictionaries({}, optional={"num_cycles": st.integers(1, 5)}),
    "polynomial": st.fixed_dictionaries({}, optional={"lr_end": st.floats(0, 1e-5), "power": st.floats(0.2, 3.0)}),
    "inverse_sqrt": st.fixed_dictionaries({}, optional={"timescale": st.integers(1, 50)}),
    "cosine_with_min_lr": st.one_of(
        st.fixed_dictionaries({"min_lr": st.floats(0, 1e-4)}, optional={"num_cycles": _cycles}),
        st.fixed_dictionaries({"min_lr_rate": _shares}, optional={"num_cycles": _cycles}),
    ),
    "cosine_warmup_with_min_lr": st.fixed_dictionaries(
        {"min_lr_rate": _shares}, optional={"num_cycles": _cycles, "warmup_lr_rate": _shares}
    ),
    "warmup_stable_decay": st.fixed_dictionaries(
        {"num_decay_steps": st.integers(0, 20)},
        optional={"warmup_type": _kinds, "decay_type": _kinds, "min_lr_ratio": _shares, "num_cycles": _cycles},
    ),
    "reduce_lr_on_plateau": st.fixed_dictionaries(
        {},
        optional={
            "mode": st.sampled_from(["min", "max"]),
            "factor": st.floats(0.1, 0.9),
            "patience": st.integers(0, 3),
            "cooldown": st.integers(0, 2),
            "min_lr": st.floats(0, 1e-4),
        },
    ),
    "greedy": st.fixed_dictionaries(
        {},
        optional={
            "mode": st.sampled_from(["min", "max"]),
            "factor": st.floats(0.1, 0.9),
            "patience": st.integers(0, 2),
            "threshold": st.floats(0, 0.1),
            "threshold_mode": st.sampled_from(["abs", "rel"]),
            "cooldown": st.integers(0, 2),
            "warmup": st.integers(0, 2),
            "min_lr": st.one_of(st.floats(0, 1e-4), st.just([1e-6, 1e-5])),
            "max_lr": st.floats(1e-3, 1.0),
            "smooth": st.booleans(),
            "window_size": st.integers(1, 4),
            "reset_start": st.integers(1, 3),
        },
    ),
}
REQUIRED: dict[str, dict[str, Any]] = {
    "cosine_with_min_lr": {"min_lr_rate": 0.1},
    "cosine_warmup_with_min_lr": {"min_lr": 1e-6},
    "warmup_stable_decay": {"num_decay_steps": 4},
    "greedy": {"smooth": True, "patience": 1, "min_lr": 1e-6},
}


def _optimizer(rate: float = 1e-3) -> SGD:
    groups = [{"params": [torch.zeros(1, requires_grad=True)]}, {"params": [torch.zeros(1, requires_grad=True)]}]
    groups[1]["lr"] = rate / 3  # type: ignore[assignment]
    return SGD(groups, lr=rate)


def _rates(optimizer: SGD, scheduler: Any, metrics: list[float], by_metric: bool) -> list[list[float]]:
    optimizer.step()  # torch warns when a schedule moves before its optimizer
    found = [[group["lr"] for group in optimizer.param_groups]]
    for metric in metrics:
        scheduler.step(*([metric] if by_metric else []))
        assert scheduler.get_last_lr() == [group["lr"] for group in optimizer.param_groups]
        found.append([group["lr"] for group in optimizer.param_groups])
    return found


@pytest.mark.parametrize("name", [member.value for member in SchedulerType])
@settings(max_examples=100, deadline=None)
@given(data=st.data(), total=st.integers(1, 40), warmup=st.integers(0, 15))
def test_equal_to_transformers(name: str, data: st.DataObject, total: int, warmup: int) -> None:
    options = data.draw(OPTIONS[name])
    assume(name != "polynomial" or warmup < total)  # theirs divides by zero
    by_metric = name in ("reduce_lr_on_plateau", "greedy")
    metrics = data.draw(st.lists(st.floats(-5, 5), min_size=30, max_size=30)) if by_metric else [0.0] * (total + 3)
    ours, theirs = _optimizer(), _optimizer()
    scheduler = build_scheduler(name, ours, warmup_steps=warmup, total_steps=total, kwargs=options)
    reference = transformers.get_scheduler(
        name, theirs, num_warmup_steps=warmup, num_training_steps=total, scheduler_specific_kwargs=options
    )
    assert needs_metric(scheduler) == by_metric
    pairs = zip(_rates(ours, scheduler, metrics, by_metric), _rates(theirs, reference, metrics, by_metric), strict=True)
    for mine, other in pairs:
        assert mine == pytest.approx(other, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("name", [member.value for member in SchedulerType])
@pytest.mark.parametrize("stop", [0, 7])
def test_state_is_json_and_loads(name: str, stop: int) -> None:
    kwargs = REQUIRED.get(name)
    metrics = [math.sin(step) for step in range(20)]
    by_metric = name in ("reduce_lr_on_plateau", "greedy")
    whole, first, second = _optimizer(), _optimizer(), _optimizer()
    options: dict[str, Any] = {"warmup_steps": 3, "total_steps": 20, "kwargs": kwargs}
    expected = _rates(whole, build_scheduler(name, whole, **options), metrics, by_metric)

    scheduler = build_scheduler(name, first, **options)
    _rates(first, scheduler, metrics[:stop], by_metric)
    text = json.dumps(scheduler.state_dict(), allow_nan=False)
    resumed = build_scheduler(name, second, **options)
    second.load_state_dict(first.state_dict())
    resumed.load_state_dict(json.loads(text))
    assert _rates(second, resumed, metrics[stop:], by_metric) == expected[stop:]


@pytest.mark.parametrize("name", ["linear", "reduce_lr_on_plateau", "greedy"])
def test_state_of_transformers_loads(name: str) -> None:
    by_metric = name != "linear"
    metrics = [math.sin(step) for step in range(20)]
    theirs, ours = _optimizer(), _optimizer()
    kwargs = REQUIRED.get(name)
    reference = transformers.get_scheduler(name, theirs, 3, 20, kwargs)
    _rates(theirs, reference, metrics[:7], by_metric)
    scheduler = build_scheduler(name, ours, warmup_steps=3, total_steps=20, kwargs=kwargs)
    scheduler.load_state_dict(reference.state_dict())
    ours.load_state_dict(theirs.state_dict())
    expected = _rates(theirs, reference, metrics[7:], by_metric)
    assert _rates(ours, scheduler, metrics[7:], by_metric) == [pytest.approx(rates, rel=1e-12) for rates in expected]


@pytest.mark.parametrize(
    ("name", "kwargs", "fix"),
    [
        ("linear", {"num_cycles": 2}, "no options"),
        ("cosine", {"cycles": 2}, "num_cycles"),
        ("reduce_lr_on_plateau", {"verbose": True}, "patience"),
        ("greedy", {"verbose": True}, "patience"),
        ("greedy", {"factor": 1.0}, "below 1"),
        ("greedy", {"mode": "up"}, "choose one of"),
        ("greedy", {"min_lr": [1.0]}, "2 parameter groups"),
        ("polynomial", {"lr_end": 1.0}, "lower it"),
        ("inverse_sqrt", {"timescale": 0}, "positive"),
        ("cosine_with_min_lr", {}, "exactly one of"),
        ("cosine_with_min_lr", {"min_lr": 0.0, "min_lr_rate": 0.0}, "exactly one of"),
        ("warmup_stable_decay", {}, "num_decay_steps"),
        ("warmup_stable_decay", {"num_decay_steps": 1, "decay_type": "step"}, "choose one of"),
        ("cosinus", {}, "choose one of"),
    ],
)
def test_refused(name: str, kwargs: dict[str, Any], fix: str) -> None:
    with pytest.raises(ValueError, match=fix):
        build_scheduler(name, _optimizer(), warmup_steps=0, total_steps=10, kwargs=kwargs)
