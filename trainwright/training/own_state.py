"""State of somebody's own in a checkpoint: whatever ``get_state()`` returns and ``update_state()`` takes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainwright.checkpoint.states import join_state, split_state
from trainwright.training.hooks import is_ours, is_overridden
from trainwright.training.setup import Setup


class OwnState:
    """A silent callback whose state is that of ``owner``; the class's name tells whose it is."""

    #: Whoever asks whether only our own code takes part must be told no.
    runs_users_code = True

    def __init__(self, owner: Any, device: torch.device | None = None) -> None:
        self._owner, self._device = owner, device

    def state_dict(self) -> dict[str, Any]:
        tensors, plain = split_state(self._owner.get_state(), f"{type(self._owner).__name__}.get_state()")
        on_device = [name for name, tensor in tensors.items() if not tensor.is_cpu]
        return {"tensors": tensors, "values": {"state": plain, "on_device": on_device}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        values, device = state["values"], getattr(self._owner, "device", None) or self._device
        tensors: dict[str, Tensor] = {
            name: tensor.to(device) if name in values["on_device"] else tensor
            for name, tensor in state["tensors"].items()
        }
        self._owner.update_state(join_state(tensors, values["state"]))


class BackendState(OwnState):
    """Of a backend that the user wrote."""

    _is_internal = True


class SubclassState(OwnState):
    """Of a Trainer subclass."""

    _is_internal = True


def own_states(setup: Setup) -> list[OwnState]:
    """What keeps the state of a subclass and of a user's backend, where there is any."""
    found: list[OwnState] = []
    if is_overridden(setup.hooks(), "get_state") and is_overridden(setup.hooks(), "update_state"):
        found.append(SubclassState(setup.hooks(), setup.args.device))
    if not is_ours(setup.backend):
        found.append(BackendState(setup.backend, setup.args.device))
    return found
