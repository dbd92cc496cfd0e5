"""What optimizer and schedule were made with. A run that goes on compares it: what moved since is the checkpoint's,
what the script now makes otherwise is the script's.
"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, CyclicLR, LambdaLR, OneCycleLR, ReduceLROnPlateau

from trainwright.engines.torch.joint import JointSchedule
from trainwright.engines.torch.schedules import FactorLR, needs_metric

#: Schedules whose rate follows from the step alone, by ``get_lr``.
_BY_STEP = (FactorLR, LambdaLR, OneCycleLR, CyclicLR)
#: Written as they are worked out: a rate is compared by what it starts from.
_RATES = ("_last_lr", "base_lrs", "_init_lrs")


@dataclass(frozen=True)
class Made:
    """Settings before the first step, as plain JSON."""

    #: Options of each group of parameters, its rate under "lr".
    groups: list[dict[str, Any]] = field(default_factory=list)
    #: State of the schedule; None where it is not known.
    schedule: Any = None
    #: Name, options, steps of warm-up and of all, where the schedule is ours.
    curve: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {"groups": self.groups, "schedule": self.schedule, "curve": self.curve}

    def rates(self) -> list[float | None]:
        """What each group's rate is a share of."""
        return [group.get("lr") for group in self.groups]


def made_with(optimizer: Any, scheduler: Any, curve: dict[str, Any]) -> Made:
    """What both were made with; to be asked before their first step."""
    groups = [plain_options(group) for group in optimizer.param_groups]
    return Made(groups, None if scheduler is None else plain(scheduler.state_dict()), plain(curve))


def plain_options(group: dict[str, Any]) -> dict[str, Any]:
    """The settings of one group."""
    options = {name: value for name, value in group.items() if name not in ("params", "param_names", "initial_lr")}
    options["lr"] = group.get("initial_lr", group.get("lr"))
    return {name: value for name, value in ((n, plain(v)) for n, v in options.items()) if value is not None}


def plain(value: Any) -> Any:
    """``value`` as JSON gives it back; None where it is none.

    >>> plain({"betas": (0.9, 0.999), "lr": Tensor([0.5]), "hook": print})
    {'betas': [0.9, 0.999], 'lr': 0.5}
    """
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 and not value.is_complex() else None
    if isinstance(value, dict):
        items = ((str(key), plain(item)) for key, item in value.items())
        return {key: item for key, item in items if item is not None}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError, RecursionError):
        return None


def gone_on(then: Any, saved: Any, now: Any) -> Any:
    """``saved``, with what is made otherwise ``now`` than it was ``then``; entry by entry.

    >>> gone_on({"gamma": 0.5, "last_epoch": 0}, {"gamma": 0.5, "last_epoch": 7}, {"gamma": 0.1, "last_epoch": 0})
    {'gamma': 0.1, 'last_epoch': 7}
    """
    if then is None or plain(then) == plain(now):
        return saved
    if isinstance(now, Counter):
        # Milestones: one that is gone is no longer among its keys.
        return now
    if isinstance(then, dict) and isinstance(saved, dict) and isinstance(now, dict):
        # What moved is the checkpoint's; the rate of the last step is worked out when everything is known.
        known = [key for key in saved if key in now and key != "_last_lr"]
        both = {key: gone_on(_under(then, key), saved[key], now[key]) for key in known}
        return {**saved, **both}
    lists = [value for value in (then, saved, now) if isinstance(value, (list, tuple))]
    if len(lists) == 3 and len({len(one) for one in lists}) == 1:
        return [gone_on(one, two, three) for one, two, three in zip(then, saved, now, strict=True)]
    return now


def _under(known: dict[str, Any], key: Any) -> Any:
    # Through JSON, keys are text.
    return known.get(key, known.get(str(key)))


def other_rates(then: Made, now: Made) -> bool:
    """Return True where the same step has, or may have, another rate."""
    same_curve = all(now.curve.get(name) == value for name, value in then.curve.items() if name in now.curve)
    same_schedule = then.schedule is None or without_rates(then) == without_rates(now)
    return then.rates() != now.rates() or not same_curve or not same_schedule


def without_rates(made: Made) -> Any:
    """The schedule's own settings."""

    def cleaned(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: cleaned(item) for key, item in value.items() if key not in _RATES}
        return [cleaned(item) for item in value] if isinstance(value, list) else value

    return cleaned(made.schedule)


def set_rates(optimizer: Any, scheduler: Any, saved: list[Any], then: Made, now: Made) -> None:
    """Put each group at the rate that it would have here if everything had always been as it is made now.

    Where a schedule does not say what its rate is at a step (it follows a metric, or is somebody's own), the rate that
    was ``saved`` is scaled as its start was.
    """
    start_of: dict[int, float] = {}
    rate_of: dict[int, float] = {}
    for group, rate, old, new in zip(optimizer.param_groups, saved, then.rates(), now.rates(), strict=True):
        _write(group, _scaled(rate, old, new))
        rate_of[id(group)] = float(rate)
        if new is not None:
            start_of[id(group)] = new
        if "initial_lr" in group and new is not None:
            group["initial_lr"] = new
    for one in _each(scheduler):
        own = getattr(getattr(one, "optimizer", None), "param_groups", [])
        if own and all(id(group) in start_of for group in own):
            _move(one, own, [start_of[id(group)] for group in own], [rate_of[id(group)] for group in own])


def _move(scheduler: Any, groups: list[dict[str, Any]], starts: list[float], saved: list[float]) -> None:
    """Let a schedule go on from ``starts``, and its groups from the rates that it then has, where they had its own."""
    for name in ("base_lrs", "_init_lrs"):
        if isinstance(getattr(scheduler, name, None), list):
            setattr(scheduler, name, list(starts))
    scheduled, scaled = getattr(scheduler, "_last_lr", None), [float(group["lr"]) for group in groups]
    rates = _rates_by_step(scheduler)
    last = scheduled or saved
    for group, rate, kept, own, was in zip(groups, rates or scaled, scaled, last, saved, strict=True):
        # One that a callback had set is only scaled: it holds until the schedule's own changes.
        _write(group, rate if float(own) == was else kept)
    if scheduled is not None:
        rates = rates or [group["lr"] for group in groups]
        scheduler.load_state_dict({**scheduler.state_dict(), "_last_lr": rates})


def place_at(scheduler: Any, step: int) -> None:
    """Put a new schedule after ``step`` updates; one that follows a metric begins with the next evaluation."""
    if isinstance(scheduler, FactorLR):
        scheduler.load_state_dict({**scheduler.state_dict(), "last_epoch": step, "_step_count": step + 1})


def _each(scheduler: Any) -> list[Any]:
    return [entry.scheduler for entry in scheduler.entries] if isinstance(scheduler, JointSchedule) else [scheduler]


def forget_metric(scheduler: Any) -> None:
    """Let a schedule that follows a metric begin with another one; its rate stays."""
    for one in _each(scheduler):
        if needs_metric(one):
            nothing = one.mode_worse if type(one) is ReduceLROnPlateau else None
            fresh = {"best": nothing, "num_bad_epochs": 0, "num_good_epochs": 0}
            state = one.state_dict()
            one.load_state_dict({**state, **{name: value for name, value in fresh.items() if name in state}})


def _scaled(rate: Any, old: float | None, new: float | None) -> float:
    rate = float(rate)
    if old is None or new is None or old == new:
        return rate
    return new if rate == old or old == 0 else rate * (new / old)


def _rates_by_step(scheduler: Any) -> list[float] | None:
    if needs_metric(scheduler):
        return None
    if isinstance(scheduler, CosineAnnealingWarmRestarts):
        # It counts within its present cycle.
        scheduler.step(scheduler.last_epoch)
        return [float(rate) for rate in scheduler.get_last_lr()]
    closed = getattr(scheduler, "_get_closed_form_lr", None)
    ask = scheduler.get_lr if isinstance(scheduler, _BY_STEP) else closed
    if not callable(ask):
        return None
    with warnings.catch_warnings():
        # torch asks to be asked for the last rate, which is the one of before.
        warnings.simplefilter("ignore")
        return [float(rate) for rate in ask()]


def _write(group: dict[str, Any], rate: float) -> None:
    if isinstance(group["lr"], Tensor):
        # Compiled optimizers hold their rate in a tensor that must stay the same object.
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate
