"""``trainer.accelerator``: what overrides and callbacks ask of Accelerate's object, answered by our own engine."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from trainwright.callbacks.tracking import TrackerCallback
from trainwright.checkpoint.weights import save_weights
from trainwright.core.engine import Engine
from trainwright.core.process_numbers import ProcessNumbers
from trainwright.engines.torch.memory import release_memory
from trainwright.engines.torch.moving import move
from trainwright.engines.torch.targets import unwrap
from trainwright.training.setup import Setup

#: What Accelerate has and the Trainer does itself, and who to ask instead.
_ELSEWHERE = {
    "save_state": "checkpoints are the Trainer's: set save_strategy, or control.should_save in a callback",
    "load_state": "checkpoints are the Trainer's: call trainer.train(resume_from_checkpoint=...)",
    "register_for_checkpointing": "give the Trainer a callback with state_dict() and load_state_dict(), or override "
    "get_state() and update_state() in your Trainer",
    "register_save_state_pre_hook": "write files in an override of _save_checkpoint, before super()",
    "register_load_state_pre_hook": "read files in an override of _load_from_checkpoint",
    "init_trackers": "trackers are named by report_to=",
}


class AcceleratorView(ProcessNumbers):
    """Accelerate's names over this Trainer: it keeps no state of training, and no second one.

    What is not here raises an error that says what is, or where to turn.
    """

    #: Whether uneven batches are filled up; samples are never repeated here, whatever is set.
    even_batches = True
    #: Every process has its own sampler here: nothing is sent from the first to the others.
    split_batches = False
    is_composable_parallelism_enabled = False

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._engine: Engine = setup.engine
        self.gradient_accumulation_steps = setup.args.gradient_accumulation_steps
        self.dataloader_config = SimpleNamespace(
            split_batches=False, dispatch_batches=None, even_batches=True, use_seedable_sampler=True, non_blocking=False
        )

    def __getattr__(self, name: str) -> Any:
        if name in _ELSEWHERE:
            raise AttributeError(f"trainer.accelerator has no {name!r}: {_ELSEWHERE[name]}.")
        offered = ", ".join(sorted(n for n in dir(type(self)) if not n.startswith("_")))
        raise AttributeError(f"trainer.accelerator has no {name!r}; it offers {offered}.")

    # ---- this process among the others

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
    def device(self) -> torch.device:
        return self._engine.device

    @property
    def distributed_type(self) -> str:
        """Accelerate's word for how the model is spread: NO, MULTI_CPU, MULTI_GPU, FSDP or DEEPSPEED."""
        strategy = self._engine.weights.layout.name
        if strategy in ("fsdp", "deepspeed"):
            return strategy.upper()
        return self._setup.given_args.distributed_state.distributed_type

    @property
    def is_fsdp2(self) -> bool:
        return self._engine.weights.layout.name == "fsdp"

    @property
    def multi_device(self) -> bool:
        return self.use_distributed and self.device.type != "cpu"

    @property
    def parallelism_config(self) -> Any:
        """What ``TrainingArguments(parallelism_config=)`` was given."""
        return self._setup.args.parallelism_config

    @property
    def state(self) -> Any:
        """Accelerate's state, in the names that code reads from it."""
        return SimpleNamespace(
            deepspeed_plugin=self._setup.given_args.deepspeed_plugin,
            fsdp_plugin=None,
            distributed_type=self.distributed_type,
            num_processes=self.num_processes,
            process_index=self.process_index,
            local_process_index=self.local_process_index,
            is_main_process=self.is_main_process,
            device=self.device,
            mixed_precision=self.mixed_precision,
        )

    def wait_for_everyone(self) -> None:
        """Wait until every process has come here."""
        self._engine.backend.barrier()

    @contextlib.contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Let the first process do something before the others."""
        with self._setup.given_args.main_process_first(local=False):
            yield

    @contextlib.contextmanager
    def local_main_process_first(self) -> Iterator[None]:
        """Let the first process of each machine do something before the others there."""
        with self._setup.given_args.main_process_first(local=True):
            yield

    def on_main_process(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate ``function`` so that only the first process runs it; elsewhere it returns None."""

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) if self.is_main_process else None

        return run

    def on_local_main_process(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate ``function`` so that only the first process of each machine runs it."""

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) if self.is_local_main_process else None

        return run

    @contextlib.contextmanager
    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> Iterator[Any]:
        """This process's part of a list, a tuple, a dict of them or a tensor; the first ones get one more."""
        yield _part_of(inputs, self.process_index, self.num_processes, apply_padding)

    def print(self, *values: Any, **kwargs: Any) -> None:
        """Print in the first process of each machine."""
        if self.is_local_main_process:
            print(*values, **kwargs)

    # ---- exchange

    def gather(self, tensor: Any) -> Any:
        """The rows of all processes, one after another; also of tensors inside tuples, lists and dicts."""
        if self._engine.is_alone:
            return tensor
        parts = self._engine.backend.gather(move(tensor, torch.device("cpu")))
        return move(_joined(parts), self.device)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """As :meth:`gather`; objects that are no tensors become one list. No sample is here twice to be dropped."""
        if self._engine.is_alone:
            return input_data
        if use_gather_object or not _has_tensors(input_data):
            parts = self._engine.backend.gather(input_data)
            return [item for part in parts for item in part]
        return self.gather(input_data)

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Sum or mean over the processes."""
        if self._engine.is_alone:
            return tensor
        total = self._engine.backend.sum(tensor)
        return total * scale / (self.num_processes if reduction == "mean" else 1)

    def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
        """Make ``tensor`` as long in ``dim`` as the longest of all processes."""
        if self._engine.is_alone or dim >= tensor.ndim:
            return tensor
        missing = self._engine.most(tensor.shape[dim]) - tensor.shape[dim]
        shape = [missing if axis == dim % tensor.ndim else size for axis, size in enumerate(tensor.shape)]
        padding = tensor.new_full(shape, pad_index)
        return torch.cat([padding, tensor] if pad_first else [tensor, padding], dim=dim)

    # ---- a step

    @property
    def mixed_precision(self) -> str:
        return {torch.float16: "fp16", torch.bfloat16: "bf16", None: "no"}[self._engine.precision.dtype]

    @property
    def scaler(self) -> Any:
        return self._engine.precision.scaler

    @property
    def sync_gradients(self) -> bool:
        """True in the last pass of a step, and outside of steps."""
        return self._engine.is_last_pass

    @property
    def gradient_state(self) -> Any:
        """Accelerate's record of accumulation, in the names that code reads from it."""
        return SimpleNamespace(
            sync_gradients=self.sync_gradients, num_steps=self._setup.current_gradient_accumulation_steps, remainder=-1
        )

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether the last step was not finite and left the weights as they were. Waits for the device."""
        return bool(self._engine.was_bad)

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """Gradients of ``loss``; scaled where fp16 needs it. The step's gradient is the mean over processes."""
        self._engine.backward(loss if self._engine.is_alone else loss / self.num_processes)

    def autocast(self, *_: Any, **__: Any) -> contextlib.AbstractContextManager[Any]:
        return self._engine.precision.autocast()

    def no_sync(self, model: nn.Module) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def accumulate(self, *models: nn.Module) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def clip_grad_norm_(self, parameters: Iterable[Tensor], max_norm: float, norm_type: float = 2.0) -> Tensor:
        return nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)

    def clip_grad_value_(self, parameters: Iterable[Tensor], clip_value: float) -> None:
        nn.utils.clip_grad_value_(parameters, clip_value)

    # ---- models and data

    def unwrap_model(self, model: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        return unwrap(model)

    def prepare(self, *objects: Any, **kwargs: Any) -> Any:
        """Moves modules to the device; everything else is ready as it is."""
        ready = [self.prepare_model(o) if isinstance(o, nn.Module) else o for o in objects]
        return ready[0] if len(ready) == 1 else tuple(ready)

    def prepare_model(
        self, model: nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> nn.Module:
        """A model beside the trained one (a reference, a judge) on the device; the trained one is the Trainer's."""
        if self.use_distributed and not evaluation_mode and model is not self._setup.model:
            _refuse_a_second_trained_model(model)
        model = model if device_placement is False or hasattr(model, "hf_device_map") else model.to(self.device)
        return model.eval() if evaluation_mode else model

    def prepare_data_loader(self, data_loader: Any, *args: Any, **kwargs: Any) -> Any:
        """The Trainer divides loaders between processes where it uses them."""
        return data_loader

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Iterator[Any]:
        """What ``dataloader`` gives after its first ``num_batches``."""
        return (batch for index, batch in enumerate(dataloader) if index >= num_batches)

    def get_state_dict(self, model: nn.Module, unwrap: bool = True) -> dict[str, Tensor]:
        """Weights as one process would have them, on this process; every process must ask."""
        inner = self.unwrap_model(model)
        with self._engine.weights.whole(inner, keep=True):
            return {name: tensor.detach().cpu().clone() for name, tensor in inner.state_dict().items()}

    def free_memory(self, *objects: Any) -> tuple[None, ...]:
        """Give memory back that nothing uses; returns as many None as it was given objects."""
        gc.collect()
        release_memory(self.device)
        return tuple(None for _ in objects)

    clear = free_memory

    # ---- files and trackers

    def save(self, obj: Any, f: str | Path, safe_serialization: bool = True) -> None:
        """Write a dict of tensors as safetensors, from the first process."""
        if not isinstance(obj, dict) or not all(isinstance(value, Tensor) for value in obj.values()):
            raise ValueError(
                "accelerator.save writes dicts of tensors here, as safetensors: use torch.save for others."
            )
        if self.is_main_process:
            from safetensors.torch import save_file

            save_file({name: tensor.detach().cpu().contiguous().clone() for name, tensor in obj.items()}, str(f))

    def save_model(self, model: nn.Module, save_directory: str | Path, *args: Any, **kwargs: Any) -> None:
        """Write the weights as ``model.safetensors``."""
        weights = self.get_state_dict(model)
        if self.is_main_process:
            folder = Path(save_directory)
            folder.mkdir(parents=True, exist_ok=True)
            save_weights(self.unwrap_model(model), folder, weights)

    @property
    def trackers(self) -> list[Any]:
        """The trackers of ``report_to``."""
        callbacks = getattr(self._setup.callbacks, "callbacks", [])
        return [one for callback in callbacks if isinstance(callback, TrackerCallback) for one in callback.trackers]

    def log(self, values: dict[str, Any], step: int | None = None, log_kwargs: Any = None) -> None:
        """Hand numbers to the Trainer's log, and so to every tracker."""
        self._setup.hooks().log(dict(values))

    def end_training(self) -> None:
        """Nothing is left open here."""


def _refuse_a_second_trained_model(model: nn.Module) -> NoReturn:
    raise ValueError(
        f"accelerator.prepare_model({type(model).__name__}) asks for a second trained model, but gradients are "
        "exchanged for the Trainer's own: pass evaluation_mode=True for one that is only asked, or put "
        "both into one module."
    )


def _has_tensors(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_tensors(one) for one in value.values())
    if isinstance(value, (list, tuple)):
        return any(_has_tensors(one) for one in value)
    return isinstance(value, Tensor)


def _joined(parts: list[Any]) -> Any:
    first = parts[0]
    if isinstance(first, dict):
        # A process that had no batch may have noted nothing under a name.
        names = dict.fromkeys(name for part in parts for name in part)
        return {name: _joined([part[name] for part in parts if name in part]) for name in names}
    if isinstance(first, (list, tuple)):
        return type(first)(_joined(list(same)) for same in zip(*parts, strict=True))
    return torch.cat([part.reshape(-1) if part.ndim == 0 else part for part in parts])


def _part_of(inputs: Any, rank: int, processes: int, pad: bool) -> Any:
    if isinstance(inputs, dict):
        return type(inputs)({name: _part_of(value, rank, processes, pad) for name, value in inputs.items()})
    share, extra = divmod(len(inputs), processes)
    start = rank * share + min(rank, extra)
    part = inputs[start : start + share + (rank < extra)]
    missing = (share + bool(extra)) - len(part) if pad else 0
    if missing and isinstance(part, Tensor):
        return torch.cat([part, inputs[-1:].expand(missing, *inputs.shape[1:])])
    return part + inputs[-1:] * missing if missing else part
