"""A module in its training: what is trained, and what it reaches of the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trainwright.compat.accmt.adapter import AcceleratedModule
from trainwright.compat.accmt.loop import Loop
from trainwright.compat.accmt.modules import AcceleratorModule, is_extended, registered_models

if TYPE_CHECKING:
    from trainwright.compat.accmt.status import TrainingState


class RunOfModule:
    """What a module reaches of its training."""

    def __init__(
        self,
        native: Loop,
        adapter: AcceleratedModule,
        *,
        status: dict[str, Any],
        training_state: TrainingState,
        log_every: int,
    ) -> None:
        self._native, self._adapter = native, adapter
        self.accelerator = native.accelerator
        self.status, self.training_state, self.log_every = status, training_state, log_every

    @property
    def device(self) -> torch.device:
        return self._native.args.device

    def log(self, values: Mapping[str, Any], *, instant: bool) -> None:
        for name, value in values.items():
            if not instant:
                self._adapter.log(name, value)
        if instant:
            self._native.log({name: float(value) for name, value in values.items()})

    def backward(self, loss: Tensor) -> None:
        self._adapter.backward(loss)


def as_module(module: Any, kwargs: dict[str, Any]) -> AcceleratorModule:
    """``module``, or one around the transformers model that it names."""
    if isinstance(module, str):
        return AcceleratorModule.from_hf(module, **kwargs)
    if isinstance(module, tuple) and len(module) == 2:
        return AcceleratorModule.from_hf(module[0], module[1], **kwargs)
    if not isinstance(module, AcceleratorModule):
        raise ValueError(
            f"fit takes an AcceleratorModule, the name of a transformers model, or (name, class), not a "
            f"{type(module).__name__}."
        )
    if kwargs:
        raise ValueError(f"{sorted(kwargs)} would go to from_pretrained, and the module is there already.")
    if not isinstance(getattr(module, "model", None), nn.Module):
        raise ValueError(f"{type(module).__name__} has no self.model: put the torch.nn.Module there in __init__.")
    if registered_models(module) and not is_extended(module):
        raise ValueError(
            f"{type(module).__name__} registers further models, whose optimizers somebody must step: derive it from "
            "ExtendedAcceleratorModule."
        )
    return module
