"""An optimizer's state put back as it was saved: torch's own ``load_state_dict`` changes some of it."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from trainwright.engines.torch.joint import JointOptimizer


def load_exactly(optimizer: Optimizer, state_dict: dict[str, Any], of_own_type: Collection[Tensor] = ()) -> None:
    """``optimizer.load_state_dict``, and then what it changed as it was.

    torch casts every tensor to its parameter's type, takes a tensor that two states share for two, and loses text.

    Args:
        of_own_type: Tensors in ``state_dict`` that had another type than their parameter when they were saved.
    """
    stored = dict(state_dict["state"])
    with warnings.catch_warnings():
        # What torch loses of complex numbers is put back below.
        warnings.filterwarnings("ignore", "Casting complex values to real")
        optimizer.load_state_dict(state_dict)
    again = _Again(of_own_type)
    for number, entries in _states(optimizer):
        if number in stored:
            again.value(stored[number], entries)


def _states(optimizer: Optimizer) -> Iterator[tuple[int, Any]]:
    """Give the state of each parameter that has one, by the parameter's number."""
    number = 0
    for part in optimizer.optimizers if isinstance(optimizer, JointOptimizer) else [optimizer]:
        for parameter in (p for group in part.param_groups for p in group["params"]):
            if parameter in part.state:
                yield number, part.state[parameter]
            number += 1


class _Again:
    def __init__(self, of_own_type: Collection[Tensor]) -> None:
        self._of_own_type = {id(tensor) for tensor in of_own_type}
        self._known: dict[int, Tensor] = {}

    def value(self, stored: Any, loaded: Any) -> Any:
        """``loaded``, with the types and the shared tensors of ``stored``; a dict is changed in place."""
        if isinstance(stored, Tensor) and isinstance(loaded, Tensor):
            # No parameter's type holds a complex number unless it is complex itself.
            is_own = id(stored) in self._of_own_type or stored.is_complex()
            if is_own and stored.dtype != loaded.dtype:
                loaded = stored.to(loaded.device)
            return self._known.setdefault(id(stored), loaded)
        if isinstance(stored, dict) and isinstance(loaded, dict):
            loaded.update({key: self.value(stored[key], item) for key, item in loaded.items() if key in stored})
        elif type(stored) is type(loaded) and type(stored) in (list, tuple) and len(stored) == len(loaded):
            return type(stored)(self.value(was, now) for was, now in zip(stored, loaded, strict=True))
        # torch reads text as a sequence, and makes a text of its iterator.
        return stored if isinstance(stored, str) and isinstance(loaded, str) else loaded


def adopt_sharded_parameters(optimizer: Optimizer, before: dict[str, nn.Parameter], model: nn.Module) -> None:
    """Give an optimizer that was made for the whole model the parts that took its parameters' place."""
    if optimizer.state:
        raise ValueError(
            "optimizers= was given one that has taken steps already, and FSDP replaces the parameters it knows: pass "
            "a new one, or optimizer_cls_and_kwargs=."
        )
    now = dict(model.named_parameters())
    new = {id(old): now[name] for name, old in before.items()}
    for group in optimizer.param_groups:
        group["params"] = [new.get(id(parameter), parameter) for parameter in group["params"]]
