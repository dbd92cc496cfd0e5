"""What AdamW, Adam and SGD do to one weight, in arithmetic that every framework's arrays know.

torch's optimizer object stays the record: its groups hold the rates that schedules move, its state is what checkpoints
store. A rule reads the group, and its state has torch's names. ``more_rules.py`` has the other optimizers'.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

_aten = torch.ops.aten
#: Does an ATen operation (``torch.ops.aten.sqrt.default``) on a framework's arrays.
Do = Callable[..., Any]


class Rule(Protocol):
    """How one weight changes."""

    #: Whether every number of a weight changes by itself, so that many weights may be updated as one long array.
    is_elementwise: bool
    #: What an optimizer's state calls the number of updates so far, as a tensor or a number; None where it keeps none.
    step_as: Callable[[float], Any] | None

    def state(self, shape: torch.Size) -> dict[str, torch.Size]:
        """Names and shapes of what is kept for a weight of ``shape``."""
        ...

    def numbers(self, group: dict[str, Any], step: int) -> list[float]:
        """What the ``step``-th update (the first is 1) of a weight of ``group`` depends on besides arrays."""
        ...

    def updated(
        self, weight: Any, gradient: Any, state: list[Any], numbers: list[Any], do: Do
    ) -> tuple[Any, list[Any]]:
        """The weight and its state after the update."""
        ...


class ElementwiseRule:
    """Keeps arrays of the weight's own shape, under the names in ``kept``."""

    is_elementwise = True
    step_as: Callable[[float], Any] | None = torch.tensor
    kept: tuple[str, ...] = ()

    def state(self, shape: torch.Size) -> dict[str, torch.Size]:
        return dict.fromkeys(self.kept, shape)


class AdamRule(ElementwiseRule):
    """Adam; with ``decoupled``, AdamW: weights decay by themselves and not through the gradient."""

    kept = ("exp_avg", "exp_avg_sq")

    def __init__(self, *, decoupled: bool) -> None:
        self._decoupled = decoupled

    def numbers(self, group: dict[str, Any], step: int) -> list[float]:
        rate, (beta1, beta2) = float(group["lr"]), (float(beta) for beta in group["betas"])
        first, second = 1 - beta1**step, (1 - beta2**step) ** 0.5
        decay = 1 - rate * group["weight_decay"] if self._decoupled else group["weight_decay"]
        return [decay, 1 - beta1, beta2, 1 - beta2, rate / first, second, group["eps"]]

    def updated(
        self, weight: Any, gradient: Any, state: list[Any], numbers: list[Any], do: Do
    ) -> tuple[Any, list[Any]]:
        mean, square = state
        decay, share1, beta2, share2, rate, second, eps = numbers
        if self._decoupled:
            weight = weight * decay
        else:
            gradient = gradient + weight * decay
        mean = mean + (gradient - mean) * share1
        square = square * beta2 + gradient * gradient * share2
        return weight - mean / (do(_aten.sqrt.default, square) / second + eps) * rate, [mean, square]


class SGDRule(ElementwiseRule):
    """Gradient descent, with momentum where there is any."""

    step_as = None

    def __init__(self, *, momentum: bool, nesterov: bool) -> None:
        self._momentum, self._nesterov = momentum, nesterov
        self.kept = ("momentum_buffer",) if momentum else ()

    def numbers(self, group: dict[str, Any], step: int) -> list[float]:
        momentum = float(group["momentum"])
        # The first buffer is the gradient itself.
        keep, take = (0.0, 1.0) if step == 1 else (momentum, 1 - group["dampening"])
        return [float(group["weight_decay"]), momentum, keep, take, float(group["lr"])]

    def updated(
        self, weight: Any, gradient: Any, state: list[Any], numbers: list[Any], do: Do
    ) -> tuple[Any, list[Any]]:
        decay, momentum, keep, take, rate = numbers
        gradient = gradient + weight * decay
        if self._momentum:
            state = [state[0] * keep + gradient * take]
            gradient = gradient + state[0] * momentum if self._nesterov else state[0]
        return weight - gradient * rate, state
