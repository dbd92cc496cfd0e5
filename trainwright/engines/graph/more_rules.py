"""What RMSprop, Adagrad, Lion and Adafactor do to one weight, and which rule an optimizer of torch has."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from trainwright.engines.graph.rules import AdamRule, Do, ElementwiseRule, Rule, SGDRule
from trainwright.engines.torch.optim_own import Adafactor, Lion

_aten = torch.ops.aten
#: Settings of torch's optimizers that no rule follows, with the value that leaves them off.
_OFF = {"amsgrad": False, "maximize": False, "capturable": False, "differentiable": False}


class RMSpropRule(ElementwiseRule):
    """Steps divided by the root of the running mean square; ``centered`` takes the square of the mean off first."""

    def __init__(self, *, momentum: bool, centered: bool) -> None:
        self._momentum, self._centered = momentum, centered
        self.kept = ("square_avg", *(["momentum_buffer"] * momentum), *(["grad_avg"] * centered))

    def numbers(self, group: dict[str, Any], step: int) -> list[float]:
        alpha = float(group["alpha"])
        return [group["weight_decay"], alpha, 1 - alpha, group["eps"], group["momentum"], float(group["lr"])]

    def updated(
        self, weight: Any, gradient: Any, state: list[Any], numbers: list[Any], do: Do
    ) -> tuple[Any, list[Any]]:
        decay, alpha, share, eps, momentum, rate = numbers
        square, *rest = state
        gradient = gradient + weight * decay
        square = square * alpha + gradient * gradient * share
        spread = square
        if self._centered:
            rest[-1] = rest[-1] + (gradient - rest[-1]) * share
            spread = square - rest[-1] * rest[-1]
        step = gradient / (do(_aten.sqrt.default, spread) + eps)
        if self._momentum:
            step = rest[0] = rest[0] * momentum + step
        return weight - step * rate, [square, *rest]


class AdagradRule(ElementwiseRule):
    """Steps divided by the root of the sum of all squares so far."""

    kept = ("sum",)

    def numbers(self, group: dict[str, Any], step: int) -> list[float]:
        rate = float(group["lr"]) / (1 + (step - 1) * group["lr_decay"])
        return [group["weight_decay"], group["eps"], rate]

    def updated(
        self, weight: Any, gradient: Any, state: list[Any], numbers: list[Any], do: Do
    ) -> tuple[Any, list[Any]]:
        decay, eps, rate = numbers
        gradient = gradient + weight * decay
        total = state[0] + gradient * gradient
        return weight - gradient / (do(_aten.sqrt.default, total) + eps) * rate, [total]


class LionRule(ElementwiseRule):
    """Steps of one size: the sign of a mix of the gradient and its running mean."""

    kept = ("exp_avg",)
    step_as = None

    def numbers(self, group: dict[str, Any], step: int) -> list[float]:
        rate, (beta1, beta2) = float(group["lr"]), group["betas"]
        return [1 - rate * group["weight_decay"], beta1, 1 - beta1, beta2, 1 - beta2, rate]

    def updated(
        self, weight: Any, gradient: Any, state: list[Any], numbers: list[Any], do: Do
    ) -> tuple[Any, list[Any]]:
        decay, beta1, share1, beta2, share2, rate = numbers
        direction = do(_aten.sign.default, state[0] * beta1 + gradient * share1)
        return weight * decay - direction * rate, [state[0] * beta2 + gradient * share2]


class AdafactorRule:
    """Adam-like steps with sums of rows and columns in place of a full second moment."""

    is_elementwise = False
    step_as: Callable[[float], Any] | None = int

    def __init__(self, *, mean: bool, scaled: bool) -> None:
        self._mean, self._scaled = mean, scaled

    def state(self, shape: torch.Size) -> dict[str, torch.Size]:
        kept = {"exp_avg": shape} if self._mean else {}
        if len(shape) < 2:
            return {**kept, "exp_avg_sq": shape}
        return {**kept, "exp_avg_sq_row": shape[:-1], "exp_avg_sq_col": shape[:-2] + shape[-1:]}

    def numbers(self, group: dict[str, Any], step: int) -> list[float]:
        memory = 1.0 - math.pow(step, group["decay_rate"])
        beta1 = group["beta1"] or 0.0
        settings = (group["eps1"], group["eps2"], group["clip_threshold"], group["weight_decay"])
        return [memory, 1 - memory, beta1, 1 - beta1, *settings, float(group["lr"])]

    def updated(
        self, weight: Any, gradient: Any, state: list[Any], numbers: list[Any], do: Do
    ) -> tuple[Any, list[Any]]:
        memory, share, beta1, share1, eps1, eps2, clip, decay, rate = numbers
        own = list(state)
        average = own.pop(0) if self._mean else None
        square = gradient * gradient + eps1
        if len(own) == 1:
            own = [own[0] * memory + square * share]
            step = gradient * do(_aten.rsqrt.default, own[0])
        else:
            rows = own[0] * memory + do(_aten.mean.dim, square, [-1]) * share
            columns = own[1] * memory + do(_aten.mean.dim, square, [-2]) * share
            part = do(_aten.rsqrt.default, rows / do(_aten.mean.dim, rows, [-1], True))
            own, across = [rows, columns], do(_aten.rsqrt.default, columns)
            step = do(_aten.unsqueeze.default, part, -1) * do(_aten.unsqueeze.default, across, -2) * gradient
        one = rate / rate
        if self._scaled:
            rate = rate * do(_aten.maximum.default, self._root_mean_square(weight, do), eps2)
        step = step / do(_aten.maximum.default, self._root_mean_square(step, do) / clip, one) * rate
        if average is not None:
            step = average = average * beta1 + step * share1
        return weight * (one - rate * decay) - step, [*([] if average is None else [average]), *own]

    @staticmethod
    def _root_mean_square(array: Any, do: Do) -> Any:
        return do(_aten.sqrt.default, do(_aten.mean.default, array * array))


def rule_for(optimizer: Optimizer, engine: str) -> Rule:
    """The rule of a torch optimizer; refused where there is none."""
    kind = type(optimizer)
    for group in optimizer.param_groups:
        for name, off in _OFF.items():
            if group.get(name, off) != off:
                raise ValueError(f"engine={engine!r} has no {kind.__name__} with {name}={group[name]}: leave it out.")
    if kind is torch.optim.SGD:
        return SGDRule(**_alike(optimizer, engine, momentum="momentum", nesterov="nesterov"))
    if kind is torch.optim.RMSprop:
        return RMSpropRule(**_alike(optimizer, engine, momentum="momentum", centered="centered"))
    if kind is torch.optim.Adagrad:
        return AdagradRule()
    if kind is Lion:
        return LionRule()
    if kind is Adafactor:
        return AdafactorRule(**_alike(optimizer, engine, mean="beta1", scaled="scale_parameter"))
    if kind in (torch.optim.AdamW, torch.optim.Adam):
        # In newer versions of torch Adam knows decoupled decay too, and AdamW is that.
        return AdamRule(decoupled=kind is torch.optim.AdamW or bool(optimizer.defaults.get("decoupled_weight_decay")))
    raise ValueError(
        f"engine={engine!r} has no {kind.__name__}: choose optim='adamw_torch', 'sgd', 'adafactor', 'rmsprop', "
        "'adagrad' or 'lion', or pass torch's AdamW, Adam, SGD, RMSprop or Adagrad in optimizers=."
    )


def _alike(optimizer: Optimizer, engine: str, **settings: str) -> dict[str, bool]:
    """Which of these settings are on, in all groups alike."""
    found = {tuple(bool(group[name]) for name in settings.values()) for group in optimizer.param_groups}
    if len(found) > 1:
        raise ValueError(
            f"engine={engine!r} needs {type(optimizer).__name__} with or without {' and '.join(settings.values())} for "
            "all groups alike."
        )
    return dict(zip(settings, found.pop(), strict=True))
