"""What AdamW, Adam and SGD do to one weight, in arithmetic that every framework's arrays know.

torch's optimizer object stays the record: its groups hold the rates that schedules move, its state is what checkpoints
store. A rule reads the group, and its state has torch's names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.optim import Optimizer

#: Settings of torch's optimizers that no rule follows, with the value that leaves them off.
_OFF = {"amsgrad": False, "maximize": False, "capturable": False, "differentiable": False}


class Rule(Protocol):
    """How one weight changes."""

    #: Names of a weight's state, each an array of its shape.
    state: tuple[str, ...]

    def numbers(self, group: dict[str, Any], step: int) -> list[float]:
        """What the ``step``-th update (the first is 1) of a weight of ``group`` depends on besides arrays."""
        ...

    def updated(
        self, weight: object, gradient: object, state: list[Any], numbers: list[Any], sqrt: Callable[[Any], Any]
    ) -> tuple[Any, list[Any]]:
        """The weight and its state after the update."""
        ...


class AdamRule:
    """Adam; with ``decoupled``, AdamW: weights decay by themselves and not through the gradient."""

    state: tuple[str, ...] = ("exp_avg", "exp_avg_sq")

    def __init__(self, *, decoupled: bool) -> None:
        self._decoupled = decoupled

    def numbers(self, group: dict[str, Any], step: int) -> list[float]:
        rate, (beta1, beta2) = float(group["lr"]), (float(beta) for beta in group["betas"])
        first, second = 1 - beta1**step, (1 - beta2**step) ** 0.5
        decay = 1 - rate * group["weight_decay"] if self._decoupled else group["weight_decay"]
        return [decay, 1 - beta1, beta2, 1 - beta2, rate / first, second, group["eps"]]

    def updated(
        self, weight: Any, gradient: Any, state: list[Any], numbers: list[Any], sqrt: Callable[[Any], Any]
    ) -> tuple[Any, list[Any]]:
        mean, square = state
        decay, share1, beta2, share2, rate, second, eps = numbers
        if self._decoupled:
            weight = weight * decay
        else:
            gradient = gradient + weight * decay
        mean = mean + (gradient - mean) * share1
        square = square * beta2 + gradient * gradient * share2
        return weight - mean / (sqrt(square) / second + eps) * rate, [mean, square]


class SGDRule:
    """Gradient descent, with momentum where there is any."""

    def __init__(self, *, momentum: bool, nesterov: bool) -> None:
        self._momentum, self._nesterov = momentum, nesterov
        self.state: tuple[str, ...] = ("momentum_buffer",) if momentum else ()

    def numbers(self, group: dict[str, Any], step: int) -> list[float]:
        momentum = float(group["momentum"])
        # The first buffer is the gradient itself.
        keep, take = (0.0, 1.0) if step == 1 else (momentum, 1 - group["dampening"])
        return [float(group["weight_decay"]), momentum, keep, take, float(group["lr"])]

    def updated(
        self, weight: object, gradient: object, state: list[Any], numbers: list[Any], sqrt: Callable[[Any], Any]
    ) -> tuple[Any, list[Any]]:
        decay, momentum, keep, take, rate = numbers
        gradient = gradient + weight * decay
        if self._momentum:
            state = [state[0] * keep + gradient * take]
            gradient = gradient + state[0] * momentum if self._nesterov else state[0]
        return weight - gradient * rate, state


def rule_for(optimizer: Optimizer, engine: str) -> Rule:
    """The rule of a torch optimizer; refused where there is none."""
    kind = type(optimizer)
    if kind not in (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD):
        raise ValueError(
            f"engine={engine!r} has no {kind.__name__}: choose optim='adamw_torch' or 'sgd', or pass torch's AdamW, "
            "Adam or SGD in optimizers=."
        )
    for group in optimizer.param_groups:
        for name, off in _OFF.items():
            if group.get(name, off) != off:
                raise ValueError(f"engine={engine!r} has no {kind.__name__} with {name}={group[name]}: leave it out.")
    if kind is torch.optim.SGD:
        kinds = {(group["momentum"] != 0, group["nesterov"]) for group in optimizer.param_groups}
        if len(kinds) > 1:
            raise ValueError(f"engine={engine!r} needs SGD with or without momentum (nesterov) for all groups alike.")
        momentum, nesterov = kinds.pop()
        return SGDRule(momentum=momentum, nesterov=nesterov)
    # In newer versions of torch Adam knows decoupled decay too, and AdamW is that.
    return AdamRule(decoupled=kind is torch.optim.AdamW or bool(optimizer.defaults.get("decoupled_weight_decay")))
