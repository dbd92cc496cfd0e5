"""What an optimizer remembers about a weight."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

#: Entries that hold weights, not a memory of gradients: schedule-free's z, ASGD's average, master copies.
_HOLDS_WEIGHTS = frozenset({"z", "ax", "master_param", "master_weight", "param", "weight"})


def _entries(optimizer: Optimizer, parameter: nn.Parameter) -> Iterator[tuple[str, Tensor]]:
    if optimizer is None:
        return
    for key, value in (optimizer.state.get(parameter) or {}).items():
        if isinstance(value, Tensor) and value.shape == parameter.shape and value.dim():
            yield key, value


@torch.no_grad()
def reset_momenta(optimizer: Optimizer, parameter: nn.Parameter, where: Tensor | None = None) -> None:
    """Forget past gradients, everywhere or only at ``where``; the weights an optimizer keeps become zero there too."""
    for key, value in _entries(optimizer, parameter):
        if where is not None:
            value.masked_fill_(where, 0)
        elif key not in _HOLDS_WEIGHTS:
            value.zero_()
    step = (optimizer.state.get(parameter) or {}).get("step") if optimizer is not None else None
    if where is None and isinstance(step, Tensor):
        # The correction for moments that start at zero starts again with them.
        step.zero_()


@torch.no_grad()
def mask_kept_weights(optimizer: Optimizer, parameter: nn.Parameter, mask: Tensor) -> None:
    """Put ``mask`` on the copies of a weight that an optimizer keeps: the weight is made from them at each step."""
    for key, value in _entries(optimizer, parameter):
        if key in _HOLDS_WEIGHTS:
            value.masked_fill_(~mask, 0)


@torch.no_grad()
def replace_parameters(optimizer: Optimizer, mapping: dict[Any, tuple[Any, Callable[[Any], Any] | None]]) -> None:
    """Let ``optimizer`` train the new parameters in place of the old; its memory follows.

    >>> old, new = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))
    >>> sgd = torch.optim.SGD([old], lr=1.0, momentum=0.9)
    >>> old.grad = torch.arange(3.0); sgd.step()
    >>> replace_parameters(sgd, {old: (new, lambda tensor: tensor[1:])})
    >>> sgd.state[new]["momentum_buffer"]
    tensor([1., 2.])
    """
    if optimizer is None:
        return
    if inner := getattr(optimizer, "optimizers", None):
        for one in inner:
            replace_parameters(one, mapping)
        return
    for group in optimizer.param_groups:
        present: list[Any] = []
        for old in group["params"]:
            new, kept = mapping.get(old, (old, None))
            if new is not old:
                _move_state(optimizer.state, old, new, kept)
            if new is not None:
                present.append(new)
        group["params"][:] = present


def _move_state(state: Any, old: Any, new: Any, kept: Callable[[Any], Any] | None) -> None:
    entries = state.pop(old, None)
    if entries is None or new is None:
        return
    state[new] = {
        key: kept(value).clone() if kept and isinstance(value, Tensor) and value.shape == old.shape else value
        for key, value in entries.items()
    }
