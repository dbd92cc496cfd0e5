"""Learning-rate schedules by name: transformers' twelve, and registered ones.

A schedule is a function from the step to a factor of the base learning rate, so its whole state is one number. The two
that follow a metric (``reduce_lr_on_plateau``, ``greedy``) keep more, all of it plain numbers: any schedule's
``state_dict()`` can be written as strict JSON. Options come from the arguments of a run, not from a checkpoint, so a
resumed run may change them.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from trainwright.config.enums import SchedulerType
from trainwright.config.registry import find
from trainwright.engines.torch.greedy import GreedyLR

Factor = Callable[[int], float]


class FactorLR(LRScheduler):
    """Base learning rates times ``factor(step)``."""

    def __init__(self, optimizer: Optimizer, factor: Factor) -> None:
        self.factor = factor
        super().__init__(optimizer)

    @property
    def lr_lambdas(self) -> list[Factor]:
        """The factor as a function of the step, once for each parameter group, as torch's ``LambdaLR`` has them."""
        return [self.factor for _ in self.base_lrs]

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
            if type(group["lr"]) is not float and isinstance(group["lr"], Tensor):
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


def _floor(name: str, optimizer: Optimizer, rate: float | None, share: float | None) -> float:
    """The lowest factor, given as a rate or as a share of the base rate."""
    if (rate is None) == (share is None):
        raise ValueError(f"{name} needs exactly one of min_lr and min_lr_rate in lr_scheduler_kwargs.")
    return float(rate) / _base_rate(optimizer) if rate is not None else float(share or 0.0)


def constant(optimizer: Optimizer, warmup_steps: int, total_steps: int) -> Factor:
    """The base rate throughout."""
    return partial(_constant, warmup=warmup_steps, total=total_steps)


def constant_with_warmup(optimizer: Optimizer, warmup_steps: int, total_steps: int) -> Factor:
    """Up to the base rate, and no further."""
    return partial(_constant_with_warmup, warmup=warmup_steps, total=total_steps)


def linear(optimizer: Optimizer, warmup_steps: int, total_steps: int) -> Factor:
    """Up to the base rate, then straight down to zero."""
    return partial(_linear, warmup=warmup_steps, total=total_steps)


def cosine(optimizer: Optimizer, warmup_steps: int, total_steps: int, num_cycles: float = 0.5) -> Factor:
    """Up to the base rate, then down along a cosine."""
    return partial(_cosine, warmup=warmup_steps, total=total_steps, num_cycles=num_cycles)


def cosine_with_restarts(optimizer: Optimizer, warmup_steps: int, total_steps: int, num_cycles: float = 1) -> Factor:
    """Several cosines, each from the base rate to zero."""
    return partial(_cosine_with_restarts, warmup=warmup_steps, total=total_steps, num_cycles=num_cycles)


def polynomial(
    optimizer: Optimizer, warmup_steps: int, total_steps: int, lr_end: float = 1e-7, power: float = 1.0
) -> Factor:
    """Down to ``lr_end`` along a power of what is left."""
    start, end = _base_rate(optimizer), float(lr_end)
    if not start > end:
        raise ValueError(f"lr_end={end} must be below learning_rate={start}: lower it in lr_scheduler_kwargs.")
    return partial(_polynomial, warmup=warmup_steps, total=total_steps, start=start, lr_end=end, power=float(power))


def inverse_sqrt(optimizer: Optimizer, warmup_steps: int, total_steps: int, timescale: float | None = None) -> Factor:
    """Down with the root of the number of steps."""
    scale = (warmup_steps or 10_000) if timescale is None else timescale
    if scale <= 0:
        raise ValueError(f"timescale={scale} in lr_scheduler_kwargs must be positive.")
    return partial(_inverse_sqrt, warmup=warmup_steps, total=total_steps, timescale=scale)


def cosine_with_min_lr(
    optimizer: Optimizer,
    warmup_steps: int,
    total_steps: int,
    num_cycles: float = 0.5,
    min_lr: float | None = None,
    min_lr_rate: float | None = None,
) -> Factor:
    """A cosine that ends above zero."""
    floor = _floor("cosine_with_min_lr", optimizer, min_lr, min_lr_rate)
    return partial(_cosine, warmup=warmup_steps, total=total_steps, num_cycles=num_cycles, floor=floor)


def cosine_warmup_with_min_lr(
    optimizer: Optimizer,
    warmup_steps: int,
    total_steps: int,
    num_cycles: float = 0.5,
    min_lr: float | None = None,
    min_lr_rate: float | None = None,
    warmup_lr_rate: float | None = None,
) -> Factor:
    """The same, with a rate above zero from the first step on."""
    return partial(
        _cosine_from_first_step,
        warmup=warmup_steps,
        total=total_steps,
        num_cycles=num_cycles,
        floor=_floor("cosine_warmup_with_min_lr", optimizer, min_lr, min_lr_rate),
        warmup_lr_rate=warmup_lr_rate,
    )


def warmup_stable_decay(
    optimizer: Optimizer,
    warmup_steps: int,
    total_steps: int,
    num_decay_steps: int,
    num_stable_steps: int | None = None,
    warmup_type: str = "linear",
    decay_type: str = "cosine",
    min_lr_ratio: float = 0.0,
    num_cycles: float = 0.5,
) -> Factor:
    """Up, along, and down in the last ``num_decay_steps``."""
    for key, kind in (("warmup_type", warmup_type), ("decay_type", decay_type)):
        if kind not in _RISES:
            raise ValueError(f"{key}={kind!r} in lr_scheduler_kwargs is not known; choose one of {list(_RISES)}.")
    return partial(
        _warmup_stable_decay,
        warmup=warmup_steps,
        stable=total_steps - warmup_steps - num_decay_steps if num_stable_steps is None else num_stable_steps,
        decay=num_decay_steps,
        floor=min_lr_ratio,
        num_cycles=num_cycles,
        warmup_type=warmup_type,
        decay_type=decay_type,
    )


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
    """The schedule called ``name``, with the options of ``lr_scheduler_kwargs``.

    A name stands for a class of schedulers, made with the optimizer, or for a function of the optimizer, the steps of
    warm-up and all steps, which returns a scheduler, or a factor of the base rate as a function of the step.
    """
    word = str(getattr(name, "value", name))
    make = find("scheduler", word, "lr_scheduler_type")
    steps = {} if isinstance(make, type) else {"warmup_steps": warmup_steps, "total_steps": total_steps}
    options = dict(kwargs or {})
    _refuse_options(word, make, options, steps)
    made = make(optimizer, **steps, **options)
    return made if isinstance(make, type) or hasattr(made, "step") else FactorLR(optimizer, made)


def _refuse_options(name: str, make: Any, options: Mapping[str, Any], steps: Mapping[str, int]) -> None:
    """What the schedule does not take, or lacks."""
    takes = list(inspect.signature(make).parameters.values())[1:]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes):
        return
    known = [parameter.name for parameter in takes if parameter.name not in steps]
    unknown = sorted(set(options) - set(known))
    if unknown:
        valid = f"it knows {known}" if known else "it has no options"
        raise ValueError(f"lr_scheduler_kwargs has {unknown}, but with {name!r} {valid}.")
    needed = [parameter.name for parameter in takes if parameter.default is parameter.empty]
    missing = [one for one in needed if one not in options and one not in steps]
    if missing:
        raise ValueError(f"{name} needs {', '.join(missing)} in lr_scheduler_kwargs.")
