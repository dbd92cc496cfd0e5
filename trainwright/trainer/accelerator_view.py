"""``trainer.accelerator``: the part of Accelerate's object that overrides really use, over our own engine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from trainwright.core.engine import Engine
from trainwright.engines.torch.moving import move
from trainwright.engines.torch.targets import unwrap


class AcceleratorView:
    """So that ``self.accelerator.backward(loss)`` in a subclass works; holds no state of its own."""

    sync_gradients = True

    def __init__(self, engine: Engine, gradient_accumulation_steps: int) -> None:
        self._engine = engine
        self.gradient_accumulation_steps = gradient_accumulation_steps

    def __getattr__(self, name: str) -> Any:
        offered = ", ".join(sorted(n for n in dir(type(self)) if not n.startswith("_")))
        raise AttributeError(f"trainer.accelerator has no {name!r}; it offers {offered}.")

    @property
    def num_processes(self) -> int:
        return self._engine.backend.world_size

    @property
    def process_index(self) -> int:
        return self._engine.backend.rank

    @property
    def local_process_index(self) -> int:
        return self._engine.backend.local_rank

    @property
    def is_main_process(self) -> bool:
        return self.process_index == 0

    @property
    def is_local_main_process(self) -> bool:
        return self.local_process_index == 0

    @property
    def device(self) -> torch.device:
        return self._engine.device

    @property
    def mixed_precision(self) -> str:
        return {torch.float16: "fp16", torch.bfloat16: "bf16", None: "no"}[self._engine.precision.dtype]

    @property
    def scaler(self) -> Any:
        return self._engine.precision.scaler

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """Gradients of ``loss``; scaled where fp16 needs it. The step's gradient is the mean over processes."""
        self._engine.backward(loss if self._engine.is_alone else loss / self.num_processes)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        return self._engine.precision.autocast()

    def no_sync(self, model: nn.Module) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def accumulate(self, *models: nn.Module) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def clip_grad_norm_(self, parameters: Iterable[Tensor], max_norm: float, norm_type: float = 2.0) -> Tensor:
        return nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)

    def unwrap_model(self, model: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        return unwrap(model)

    def gather(self, tensor: Any) -> Any:
        """The rows of all processes, one after another."""
        if self._engine.is_alone:
            return tensor
        parts = self._engine.backend.gather(move(tensor, torch.device("cpu")))
        return move(torch.cat([part.reshape(-1) if part.ndim == 0 else part for part in parts]), self.device)

    def gather_for_metrics(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return self.gather(tensor)

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        if self._engine.is_alone:
            return tensor
        total = self._engine.backend.sum(tensor)
        return total * scale / (self.num_processes if reduction == "mean" else 1)

    def pad_across_processes(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return tensor

    def prepare(self, *objects: Any) -> Any:
        """Moves modules to the device; everything else is ready as it is."""
        ready = [o.to(self.device) if isinstance(o, nn.Module) else o for o in objects]
        return ready[0] if len(ready) == 1 else tuple(ready)

    def wait_for_everyone(self) -> None:
        """Until every process has come here."""
        self._engine.backend.barrier()

    def print(self, *values: Any, **kwargs: Any) -> None:
        print(*values, **kwargs)
