"""``from accmt import accelerator``: what scripts ask of Accelerate's object before there is a Trainer."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from trainwright.compat.accmt.strategies import launched
from trainwright.config import TrainingArguments
from trainwright.config.backends import ProcessRank, rank_from_environment
from trainwright.core.process_numbers import ProcessNumbers
from trainwright.engines.torch.backends import DistributedProcesses, SingleProcess
from trainwright.engines.torch.moving import move
from trainwright.engines.torch.targets import unwrap

Function = Callable[..., Any]


class ThisProcess(ProcessNumbers):
    """This process among the others that the launcher started, under Accelerate's names; it trains nothing.

    In a training ``trainer.accelerator`` and ``self.accelerator`` of a module offer more.

    >>> ThisProcess().num_processes, ThisProcess().is_main_process
    (1, True)
    """

    def __getattr__(self, name: str) -> Any:
        offered = ", ".join(sorted(each for each in dir(type(self)) if not each.startswith("_")))
        raise AttributeError(
            f"accelerator has no {name!r} before a training; it offers {offered}. trainer.accelerator, and "
            "self.accelerator in a module, offer more while fit() runs."
        )

    @property
    def _place(self) -> ProcessRank:
        return rank_from_environment()

    @property
    def num_processes(self) -> int:
        return self._place.world_size

    @property
    def process_index(self) -> int:
        return self._place.rank

    @property
    def local_process_index(self) -> int:
        return self._place.local_rank

    @property
    def device(self) -> torch.device:
        """Where this process will train."""
        return _arguments().device

    @property
    def mixed_precision(self) -> str:
        """ "no", "bf16" or "fp16", as ``launch --strat`` has it."""
        backend = launched().get("backend", "")
        return next((kind for kind in ("bf16", "fp16") if backend.endswith(kind)), "no")

    @property
    def distributed_type(self) -> str:
        """Accelerate's word for how the processes work together."""
        way = launched().get("backend", "").partition("-")[0]
        return way.upper() if way in ("fsdp", "deepspeed") else _arguments().distributed_state.distributed_type

    # ---- with the others

    @functools.cached_property
    def _processes(self) -> SingleProcess:
        """The way to the other processes, found when it is first needed; a training goes on with the same."""
        if not self.use_distributed:
            return SingleProcess()
        found = DistributedProcesses(self.process_index, self.local_process_index, self.num_processes)
        found.start(_arguments())
        return found

    def wait_for_everyone(self) -> None:
        """Wait until every process has come here."""
        self._processes.barrier()

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Let the first process do something before the others."""
        if not self.is_main_process:
            self.wait_for_everyone()
        yield
        if self.is_main_process:
            self.wait_for_everyone()

    @contextmanager
    def local_main_process_first(self) -> Iterator[None]:
        """Let the first process of each machine do something before the others there."""
        if not self.is_local_main_process:
            self.wait_for_everyone()
        yield
        if self.is_local_main_process:
            self.wait_for_everyone()

    def gather(self, tensor: Any) -> Any:
        """The rows of all processes, one after another; also of tensors inside tuples, lists and dicts."""
        if not self.use_distributed:
            return tensor
        parts = self._processes.gather(move(tensor, torch.device("cpu")))
        return move(_joined(parts), self.device)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """As :meth:`gather`; with ``use_gather_object`` what each process has becomes one list."""
        if not self.use_distributed:
            return input_data
        if use_gather_object:
            return [item for part in self._processes.gather(input_data) for item in part]
        return self.gather(input_data)

    def reduce(self, tensor: Tensor, reduction: str = "sum", scale: float = 1.0) -> Tensor:
        """Sum or mean over the processes."""
        if not self.use_distributed:
            return tensor
        return self._processes.sum(tensor) * scale / (self.num_processes if reduction == "mean" else 1)

    # ---- in one of them

    def print(self, *values: object, **kwargs: Any) -> None:
        """Print in the first process of each machine."""
        if self.is_local_main_process:
            print(*values, **kwargs)

    def on_main_process(self, function: Function) -> Function:
        """Only the first process runs ``function``; elsewhere it returns None."""
        return _only_where(function, lambda: self.is_main_process)

    def on_local_main_process(self, function: Function) -> Function:
        """Only the first process of each machine runs ``function``."""
        return _only_where(function, lambda: self.is_local_main_process)

    def on_last_process(self, function: Function) -> Function:
        """Only the last process runs ``function``."""
        return _only_where(function, lambda: self.is_last_process)

    def on_process(self, function: Function | None = None, process_index: int | None = None) -> Function:
        """Only that process runs ``function``; without a function it is a decorator."""
        if function is None:
            return functools.partial(self.on_process, process_index=process_index)
        return _only_where(function, lambda: self.process_index == process_index)

    def on_local_process(self, function: Function | None = None, local_process_index: int | None = None) -> Function:
        """Only that process of each machine runs ``function``; without a function it is a decorator."""
        if function is None:
            return functools.partial(self.on_local_process, local_process_index=local_process_index)
        return _only_where(function, lambda: self.local_process_index == local_process_index)

    def unwrap_model(self, model: Any, *args: object, **kwargs: object) -> Any:
        """The model itself; nothing is wrapped here."""
        return unwrap(model)


def _only_where(function: Function, is_here: Callable[[], bool]) -> Function:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) if is_here() else None

    return run


def _arguments() -> TrainingArguments:
    """What a training of this process would be told."""
    return TrainingArguments(report_to="none", use_cpu=os.environ.get("ACCMT_CPU", "0") == "1")


def _joined(parts: list[Any]) -> Any:
    first = parts[0]
    if isinstance(first, Mapping):
        return {key: _joined([part[key] for part in parts]) for key in first}
    if isinstance(first, (list, tuple)):
        return type(first)(_joined(list(each)) for each in zip(*parts, strict=True))
    return torch.cat([part.reshape(1) if part.ndim == 0 else part for part in parts])
