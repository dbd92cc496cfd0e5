"""The ``greedy`` schedule, which follows a metric."""

import math
from functools import cache
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from trainwright.config.origin import class_if_imported


class GreedyLR(LRScheduler):
    """Raises the rate after a run of improving metrics and lowers it after a run of worsening ones.

    Behaves as transformers' class of the same name; ``smooth`` compares a moving average over ``window_size`` values,
    and after ``reset_start`` fruitless reductions at the lower bound everything starts over.
    """

    # What moves during a run; everything else comes from the arguments.
    _STATE = (
        "num_bad_epochs",
        "num_good_epochs",
        "cooldown_counter",
        "warmup_counter",
        "reset_start",
        "last_epoch",
        "_init_lrs",
        "_last_lr",
    )

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.95,
        patience: int = 10,
        threshold: float = 1e-6,
        threshold_mode: str = "abs",
        cooldown: int = 0,
        warmup: int = 0,
        min_lr: float | list[float] = 1e-3,
        max_lr: float | list[float] = 1.0,
        eps: float = 1e-8,
        smooth: bool = False,
        window_size: int = 50,
        reset_start: int = 500,
    ) -> None:
        # The parent's __init__ would take a first step, and a step here needs a metric.
        for label, value, choices in (
            ("mode", mode, ("min", "max")),
            ("threshold_mode", threshold_mode, ("rel", "abs")),
        ):
            if value not in choices:
                raise ValueError(f"{label}={value!r} in lr_scheduler_kwargs is not known; choose one of {choices}.")
        if factor >= 1.0:
            raise ValueError(f"factor={factor} in lr_scheduler_kwargs must be below 1.")
        self.optimizer = optimizer
        self.mode, self.factor, self.patience = mode, factor, patience
        self.threshold, self.threshold_mode, self.eps = threshold, threshold_mode, eps
        self.cooldown, self.warmup = cooldown, warmup
        self.smooth, self.window_size = smooth, window_size
        self.reset_start = self._reset_every = reset_start
        self.min_lrs, self.max_lrs = self._per_group("min_lr", min_lr), self._per_group("max_lr", max_lr)
        self.last_epoch = 0
        self._init_lrs = [float(group["lr"]) for group in optimizer.param_groups]
        self._last_lr: list[Any] = list(self._init_lrs)
        self._start_over()
        theirs = class_if_imported("transformers.optimization", "GreedyLR")
        if type(self) is GreedyLR and isinstance(theirs, type):
            # Somebody may ask whether it is theirs.
            self.__class__ = _both(theirs)

    def _per_group(self, label: str, value: float | list[float]) -> list[float]:
        groups = len(self.optimizer.param_groups)
        values = list(value) if isinstance(value, (list, tuple)) else [value] * groups
        if len(values) != groups:
            raise ValueError(f"{label} in lr_scheduler_kwargs has {len(values)} values for {groups} parameter groups.")
        return values

    def _start_over(self) -> None:
        self.best = math.inf if self.mode == "min" else -math.inf
        self.num_bad_epochs = self.num_good_epochs = 0
        self.cooldown_counter = self.warmup_counter = 0
        self.reset_start = self._reset_every
        self._window: list[float] = []
        self._window_sum = 0.0

    def step(self, metrics: Any = None, epoch: int | None = None) -> None:  # type: ignore[override]
        """Take one metric into account and move the learning rates if it is time; without one nothing moves."""
        if metrics is None:
            return
        current = self._smoothed(float(metrics))
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self.cooldown_counter > 0 or self.warmup_counter > 0:
            waiting = "cooldown_counter" if self.cooldown_counter > 0 else "warmup_counter"
            setattr(self, waiting, getattr(self, waiting) - 1)
            self.num_bad_epochs = self.num_good_epochs = 0
        else:
            self._judge(current)
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def _smoothed(self, value: float) -> float:
        if not self.smooth:
            return value
        self._window.append(value)
        self._window_sum += value
        if len(self._window) > self.window_size:
            self._window_sum -= self._window.pop(0)
        return self._window_sum / len(self._window)

    def _judge(self, current: float) -> None:
        if self.is_better(current, self.best):
            self.best, self.num_bad_epochs = current, 0
            self.num_good_epochs += 1
        else:
            self.num_bad_epochs += 1
            self.num_good_epochs = 0
        if self.num_good_epochs > self.patience:
            self._raise_rates()
            self.warmup_counter, self.num_good_epochs = self.warmup, 0
        elif self.num_bad_epochs > self.patience:
            self._lower_rates()
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0

    def is_better(self, current: float, best: float) -> bool:
        """Whether ``current`` beats ``best`` by more than the threshold."""
        sign = -1.0 if self.mode == "min" else 1.0
        bar = best * (1.0 + sign * self.threshold) if self.threshold_mode == "rel" else best + sign * self.threshold
        return current < bar if self.mode == "min" else current > bar

    def _lower_rates(self) -> None:
        for group, least in zip(self.optimizer.param_groups, self.min_lrs, strict=True):
            lower = max(float(group["lr"]) * self.factor, least)
            if float(group["lr"]) - lower > self.eps:
                group["lr"] = lower
        if any(group["lr"] > least for group, least in zip(self.optimizer.param_groups, self.min_lrs, strict=True)):
            return
        self.reset_start -= 1
        if self.reset_start <= 0:
            for group, rate in zip(self.optimizer.param_groups, self._init_lrs, strict=True):
                group["lr"] = rate
            self._start_over()

    def _raise_rates(self) -> None:
        for group, most in zip(self.optimizer.param_groups, self.max_lrs, strict=True):
            higher = min(float(group["lr"]) / self.factor, most)
            if higher - float(group["lr"]) > self.eps:
                group["lr"] = higher
        self.reset_start = self._reset_every

    def get_last_lr(self) -> list[Any]:
        """The rates after the last step."""
        return self._last_lr

    def state_dict(self) -> dict[str, Any]:
        """Counters, rates and the moving average."""
        state: dict[str, Any] = {key: getattr(self, key) for key in self._STATE}
        state["best"] = None if math.isinf(self.best) else self.best
        if self.smooth:
            state["_streaming_avg"] = {"values": list(self._window), "sum": self._window_sum}
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Accepts our state and that of transformers' class; the optimizer gets its rates back."""
        for key in self._STATE:
            setattr(self, key, state_dict[key])
        best = state_dict["best"]
        self.best = (math.inf if self.mode == "min" else -math.inf) if best is None else best
        average = state_dict.get("_streaming_avg", {})
        self._window, self._window_sum = list(average.get("values", [])), average.get("sum", 0.0)
        for group, rate in zip(self.optimizer.param_groups, self._last_lr, strict=True):
            group["lr"] = rate


@cache
def _both(theirs: type) -> Any:
    """Ours, which does the work, and transformers', for ``isinstance``."""
    return type(GreedyLR.__name__, (GreedyLR, theirs), {"__module__": GreedyLR.__module__})
