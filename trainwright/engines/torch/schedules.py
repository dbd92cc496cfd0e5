"""Learning-rate schedules by transformers' twelve names.

A schedule is a function from the step to a factor of the base learning rate, so its whole state is one number. The two
that follow a metric (``reduce_lr_on_plateau``, ``greedy``) keep more, all of it plain numbers: any schedule's
``state_dict()`` can be written as strict JSON. Options come from the arguments of a run, not from a checkpoint, so a
resumed run may change them.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from trainwright.config.enums import SchedulerType
from trainwright.engines.torch.greedy import GreedyLR

Factor = Callable[[int], float]


class FactorLR(LRScheduler):
    """Base learning rates times ``factor(step)``."""

    def __init__(self, optimizer: Optimizer, factor: Factor) -> None:
        self.factor = factor
        super().__init__(optimizer)

    def get_lr(self) -> list[Any]:
        """The learning rate of each parameter group at the current step."""
        return [base * self.factor(self.last_epoch) for base in self.base_lrs]

    def step(self, epoch: int | None = None) -> None:
        """As torch's, without its checks and warnings, which cost more than the rest: this runs after every update."""
        if epoch is not None:
            super().step(epoch)
            return
        self.last_epoch += 1
        self._step_count += 1
        factor = self.factor(self.last_epoch)
        self._last_lr = [base * factor for base in self.base_lrs]
        for group, rate in zip(self.optimizer.param_groups, self._last_lr, strict=True):
            if isinstance(group["lr"], Tensor):
                # Compiled optimizers hold their rate in a tensor that must stay the same object.
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def state_dict(self) -> dict[str, Any]:
        """Position and base rates; the factor is rebuilt from the arguments."""
        return {key: value for key, value in super().state_dict().items() if key != "factor"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Accepts our state and that of torch's ``LambdaLR``, which transformers' schedules save."""
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "lr_lambdas"})


class PlateauLR(ReduceLROnPlateau):
    """torch's schedule with a state that strict JSON can hold: "nothing seen yet" is None instead of infinity."""

    def state_dict(self) -> dict[str, Any]:
        """As torch's, without what the mode implies."""
        state = {key: value for key, value in super().state_dict().items() if key != "mode_worse"}
        return {**state, "best": None if math.isinf(self.best) else float(self.best)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Accepts our state and torch's."""
        best = state_dict["best"]
        super().load_state_dict({**state_dict, "best": self.mode_worse if best is None else best})


def _warmup(step: int, warmup: int) -> float:
    return step / max(1, warmup)


def _progress(step: int, warmup: int, total: int) -> float:
    return (step - warmup) / max(1, total - warmup)


def _constant(step: int, *, warmup: int, total: int) -> float:
    return 1.0


def _constant_with_warmup(step: int, *, warmup: int, total: int) -> float:
    return _warmup(step, warmup) if step < warmup else 1.0


def _linear(step: int, *, warmup: int, total: int) -> float:
    return _warmup(step, warmup) if step < warmup else max(0.0, (total - step) / max(1, total - warmup))


def _cosine(step: int, *, warmup: int, total: int, num_cycles: float = 0.5, floor: float = 0.0) -> float:
    if step < warmup:
        return _warmup(step, warmup)
    wave = 0.5 * (1.0 + math.cos(math.pi * num_cycles * 2.0 * _progress(step, warmup, total)))
    return max(0.0, wave * (1.0 - floor) + floor)


def _cosine_with_restarts(step: int, *, warmup: int, total: int, num_cycles: float = 1) -> float:
    if step < warmup:
        return _warmup(step, warmup)
    progress = _progress(step, warmup, total)
    if progress >= 1.0:
        return 0.0
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * ((num_cycles * progress) % 1.0))))


def _polynomial(step: int, *, warmup: int, total: int, start: float, lr_end: float, power: float) -> float:
    if step < warmup:
        return _warmup(step, warmup)
    if step > total:
        return lr_end / start
    left = 1.0 - _progress(step, warmup, total)
    return ((start - lr_end) * left**power + lr_end) / start


def _inverse_sqrt(step: int, *, warmup: int, total: int, timescale: float) -> float:
    if step < warmup:
        return _warmup(step, warmup)
    return 1.0 / math.sqrt((step + timescale - warmup) / timescale)


def _cosine_from_first_step(
    step: int, *, warmup: int, total: int, num_cycles: float, floor: float, warmup_lr_rate: float | None
) -> float:
    """Cosine that already trains in step 0 and reaches its end in the last step, not one after it."""
    if step < warmup:
        if warmup_lr_rate is None:
            return (step + 1.0) / max(1, warmup)
        return warmup_lr_rate + (1.0 - warmup_lr_rate) * step / max(1, warmup - 1)
    progress = (step - warmup + 1.0) / max(1, total - warmup)
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * num_cycles * 2.0 * progress)) * (1.0 - floor) + floor)


_RISES: dict[str, Callable[[float], float]] = {
    "linear": lambda share: share,
    "cosine": lambda share: 0.5 * (1.0 - math.cos(math.pi * share)),
    "1-sqrt": lambda share: 1.0 - math.sqrt(1.0 - share),
}


def _fall(kind: str, share: float, num_cycles: float) -> float:
    if kind == "linear":
        return 1.0 - share
    if kind == "1-sqrt":
        return 1.0 - math.sqrt(share)
    return 0.5 * (1.0 + math.cos(math.pi * num_cycles * 2.0 * share))


def _warmup_stable_decay(
    step: int,
    *,
    warmup: int,
    stable: int,
    decay: int,
    warmup_type: str,
    decay_type: str,
    floor: float,
    num_cycles: float,
) -> float:
    if step < warmup:
        return max(0.0, _RISES[warmup_type](_warmup(step, warmup)) * (1.0 - floor) + floor)
    if step < warmup + stable:
        return 1.0
    if step >= warmup + stable + decay:
        return floor
    share = (step - warmup - stable) / max(1, decay)
    return max(0.0, _fall(decay_type, share, num_cycles) * (1.0 - floor) + floor)


def _base_rate(optimizer: Optimizer) -> float:
    return float(optimizer.defaults["lr"])


def _floor(name: str, optimizer: Optimizer, options: Mapping[str, Any]) -> float:
    """The lowest factor, given as a rate or as a share of the base rate."""
    rate: Any = options.get("min_lr")
    share: Any = options.get("min_lr_rate")
    if (rate is None) == (share is None):
        raise ValueError(f"{name} needs exactly one of min_lr and min_lr_rate in lr_scheduler_kwargs.")
    return float(rate) / _base_rate(optimizer) if share is None else float(share)


def _polynomial_factor(optimizer: Optimizer, warmup: int, total: int, options: Mapping[str, Any]) -> Factor:
    start, end = _base_rate(optimizer), float(options.get("lr_end", 1e-7))
    if not start > end:
        raise ValueError(f"lr_end={end} must be below learning_rate={start}: lower it in lr_scheduler_kwargs.")
    power = float(options.get("power", 1.0))
    return partial(_polynomial, warmup=warmup, total=total, start=start, lr_end=end, power=power)


def _inverse_sqrt_factor(optimizer: Optimizer, warmup: int, total: int, options: Mapping[str, Any]) -> Factor:
    given = options.get("timescale")
    timescale = (warmup or 10_000) if given is None else given
    if timescale <= 0:
        raise ValueError(f"timescale={timescale} in lr_scheduler_kwargs must be positive.")
    return partial(_inverse_sqrt, warmup=warmup, total=total, timescale=timescale)


def _cosine_with_min_lr_factor(optimizer: Optimizer, warmup: int, total: int, options: Mapping[str, Any]) -> Factor:
    floor = _floor("cosine_with_min_lr", optimizer, options)
    return partial(_cosine, warmup=warmup, total=total, num_cycles=options.get("num_cycles", 0.5), floor=floor)


def _cosine_from_first_factor(optimizer: Optimizer, warmup: int, total: int, options: Mapping[str, Any]) -> Factor:
    return partial(
        _cosine_from_first_step,
        warmup=warmup,
        total=total,
        num_cycles=options.get("num_cycles", 0.5),
        floor=_floor("cosine_warmup_with_min_lr", optimizer, options),
        warmup_lr_rate=options.get("warmup_lr_rate"),
    )


def _warmup_stable_decay_factor(optimizer: Optimizer, warmup: int, total: int, options: Mapping[str, Any]) -> Factor:
    if "num_decay_steps" not in options:
        raise ValueError("warmup_stable_decay needs num_decay_steps in lr_scheduler_kwargs.")
    kinds = {key: options.get(key, default) for key, default in (("warmup_type", "linear"), ("decay_type", "cosine"))}
    for key, kind in kinds.items():
        if kind not in _RISES:
            raise ValueError(f"{key}={kind!r} in lr_scheduler_kwargs is not known; choose one of {list(_RISES)}.")
    decay = options["num_decay_steps"]
    stable = options.get("num_stable_steps")
    return partial(
        _warmup_stable_decay,
        warmup=warmup,
        stable=total - warmup - decay if stable is None else stable,
        decay=decay,
        floor=options.get("min_lr_ratio", 0.0),
        num_cycles=options.get("num_cycles", 0.5),
        **kinds,
    )


def _plain_factor(function: Callable[..., float]) -> Callable[..., Factor]:
    """For schedules whose options are simply the function's own keywords."""
    return lambda optimizer, warmup, total, options: partial(function, warmup=warmup, total=total, **options)


# name -> (how its factor is built, the options it knows)
_FACTORS: dict[str, tuple[Callable[..., Factor], tuple[str, ...]]] = {
    "constant": (_plain_factor(_constant), ()),
    "constant_with_warmup": (_plain_factor(_constant_with_warmup), ()),
    "linear": (_plain_factor(_linear), ()),
    "cosine": (_plain_factor(_cosine), ("num_cycles",)),
    "cosine_with_restarts": (_plain_factor(_cosine_with_restarts), ("num_cycles",)),
    "polynomial": (_polynomial_factor, ("lr_end", "power")),
    "inverse_sqrt": (_inverse_sqrt_factor, ("timescale",)),
    "cosine_with_min_lr": (_cosine_with_min_lr_factor, ("num_cycles", "min_lr", "min_lr_rate")),
    "cosine_warmup_with_min_lr": (
        _cosine_from_first_factor,
        ("num_cycles", "min_lr", "min_lr_rate", "warmup_lr_rate"),
    ),
    "warmup_stable_decay": (
        _warmup_stable_decay_factor,
        ("num_decay_steps", "num_stable_steps", "warmup_type", "decay_type", "min_lr_ratio", "num_cycles"),
    ),
}
_BY_METRIC: dict[str, tuple[type[LRScheduler], tuple[str, ...]]] = {
    "reduce_lr_on_plateau": (
        PlateauLR,
        ("mode", "factor", "patience", "threshold", "threshold_mode", "cooldown", "min_lr", "eps"),
    ),
    "greedy": (GreedyLR, GreedyLR.OPTIONS),
}


def needs_metric(scheduler: Any) -> bool:
    """Whether ``step`` takes an evaluation's metric instead of being called after each update."""
    return isinstance(scheduler, (ReduceLROnPlateau, GreedyLR))


def build_scheduler(
    name: str | SchedulerType,
    optimizer: Optimizer,
    *,
    warmup_steps: int,
    total_steps: int,
    kwargs: Mapping[str, Any] | None = None,
) -> LRScheduler:
    """The schedule called ``name``, with the options of ``lr_scheduler_kwargs``."""
    word = SchedulerType(name).value
    options = dict(kwargs or {})
    known = (_FACTORS[word] if word in _FACTORS else _BY_METRIC[word])[1]
    unknown = sorted(set(options) - set(known))
    if unknown:
        valid = f"it knows {list(known)}" if known else "it has no options"
        raise ValueError(f"lr_scheduler_kwargs has {unknown}, but with {word!r} {valid}.")
    if word in _BY_METRIC:
        return _BY_METRIC[word][0](optimizer, **options)
    return FactorLR(optimizer, _FACTORS[word][0](optimizer, warmup_steps, total_steps, options))
