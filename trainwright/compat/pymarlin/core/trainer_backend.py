"""How a training is carried out: descriptions that the Trainer reads, and the base class for a loop of one's own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trainwright.compat.pymarlin.utils.differential_privacy import refuse_differential_privacy
from trainwright.compat.pymarlin.utils.distributed import DistributedTrainingArguments
from trainwright.config.backends import BACKENDS
from trainwright.data.sharding import train_sampler, val_sampler

#: Parts of PyMarlin's own loop that subclasses used to replace one by one.
_PARTS_OF_A_LOOP = ("_forward_backward", "_forward", "_backward", "process_global_step", "_clip_gradients", "optimize")


@dataclass
class TrainerBackendArguments:
    """What the ``init`` of a backend of one's own receives."""

    model: Any
    device: Any
    max_train_steps_per_epoch: int | None
    max_val_steps_per_epoch: int | None
    distributed_training_args: DistributedTrainingArguments
    optimizers: Iterable[Any]
    schedulers: Iterable[Any] | None = None
    gradient_accumulation: int = 1
    clip_grads: bool = True
    max_grad_norm: float = 1.0
    disable_tqdm: bool = False
    enable_amp: bool = True
    amp_backend_native: bool = False
    amp_backend_apex: bool = False
    amp_level_apex: str = "O1"
    opacus_params: dict[str, Any] = field(default_factory=dict)


class TrainerBackend(ABC):
    """Implement ``train_dl`` and ``validate_dl`` to write the loop over batches yourself.

    The Trainer then calls them epoch by epoch, in PyMarlin's order; accumulation, clipping, precision and optimizer
    steps are theirs. The backends below are only descriptions: the Trainer's own loop runs them.
    """

    @abstractmethod
    def init(self, args: TrainerBackendArguments) -> None:
        """Before the training."""

    @abstractmethod
    def train_dl(self, dataloader: object, callback: object) -> Any:
        """Train on every batch; returns the collated outputs."""

    @abstractmethod
    def validate_dl(self, dataloader: object) -> Any:
        """Validate on every batch; returns the collated outputs."""

    @abstractmethod
    def get_batches_completed(self) -> int: ...

    @abstractmethod
    def get_global_steps_completed(self) -> int: ...

    @property
    @abstractmethod
    def train_sampler(self) -> Any:
        """What makes a sampler of the training data: called with the dataset."""

    @property
    @abstractmethod
    def val_sampler(self) -> Any:
        """What makes a sampler of validation data."""

    @abstractmethod
    def get_state(self) -> dict[str, Any]: ...

    @abstractmethod
    def update_state(self, state: dict[str, Any] | None) -> None: ...


class SingleProcess(TrainerBackend):
    """One process on one device. Also keeps count, for ``global_steps_finished`` and checkpoints."""

    #: What the Trainer is told.
    name = "sp"

    def __init__(self) -> None:
        self.global_step_completed = 0
        self.batches_completed = 0
        self.seed, self.rank, self.world_size, self.share = 0, 0, 1, 1

    def init(self, args: TrainerBackendArguments) -> None:
        self.args = args

    def train_dl(self, dataloader: object, callback: object) -> Any:
        raise NotImplementedError(
            f"{type(self).__name__} describes how the Trainer trains and has no loop of its own: call Trainer.train(), "
            "or define train_dl and validate_dl in a subclass of TrainerBackend."
        )

    def validate_dl(self, dataloader: object) -> Any:
        return SingleProcess.train_dl(self, dataloader, None)

    def get_batches_completed(self) -> int:
        return self.batches_completed

    def get_global_steps_completed(self) -> int:
        return self.global_step_completed

    @property
    def train_sampler(self) -> Any:
        """Shuffles by (seed, epoch): differently in every epoch, alike after a restart."""
        return train_sampler(self.seed, self.rank, self.world_size, self.share)

    @property
    def val_sampler(self) -> Any:
        """The dataset's own order; with several processes, this one's part of it."""
        return val_sampler(self.rank, self.world_size)

    def get_state(self) -> dict[str, Any]:
        """The counts; the Trainer adds what an exact resume needs."""
        return {"global_step_completed": self.global_step_completed, "batches_completed": self.batches_completed}

    def update_state(self, state: dict[str, Any] | None) -> None:
        if state:
            self.global_step_completed = state["global_step_completed"]
            self.batches_completed = state["batches_completed"]


class SingleProcessAmp(SingleProcess):
    """With mixed precision."""

    name = "sp-amp"

    def __init__(self, enable_amp: bool = True) -> None:
        super().__init__()
        if not enable_amp:
            self.name = "sp"


class SingleProcessBf16(SingleProcess):
    """With mixed precision in bfloat16."""

    name = "sp-bf16"


class SingleProcessFp16(SingleProcess):
    """With mixed precision in float16, and loss scaling."""

    name = "sp-fp16"


class SingleProcessApexAmp(SingleProcess):
    """Refused: apex has long been part of torch."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        refuse_apex()


class SingleProcessDpSgd(SingleProcess):
    """Refused: see opacus."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        refuse_differential_privacy()


class AbstractTrainerBackendDecorator(TrainerBackend):
    """Passes everything on to another backend; override what should be otherwise."""

    def __init__(self, trainer_backend: TrainerBackend) -> None:
        self.trainer_backend = trainer_backend

    def init(self, args: TrainerBackendArguments) -> None:
        self.trainer_backend.init(args)

    def train_dl(self, dataloader: object, callback: object) -> Any:
        return self.trainer_backend.train_dl(dataloader, callback)

    def validate_dl(self, dataloader: object) -> Any:
        return self.trainer_backend.validate_dl(dataloader)

    def get_batches_completed(self) -> int:
        return self.trainer_backend.get_batches_completed()

    def get_global_steps_completed(self) -> int:
        return self.trainer_backend.get_global_steps_completed()

    @property
    def train_sampler(self) -> Any:
        return self.trainer_backend.train_sampler

    @property
    def val_sampler(self) -> Any:
        return self.trainer_backend.val_sampler

    def get_state(self) -> dict[str, Any]:
        return self.trainer_backend.get_state()

    def update_state(self, state: dict[str, Any] | None) -> None:
        self.trainer_backend.update_state(state)


class DDPTrainerBackend(AbstractTrainerBackendDecorator):
    """Several processes, started by torchrun, that share every batch; ``DDPTrainerBackend(SingleProcessAmp())``."""

    def __init__(self, trainer_backend: TrainerBackend, gather_frequency: int | None = None) -> None:
        super().__init__(trainer_backend)
        #: Accepted for PyMarlin's sake: outputs are gathered whole, in main memory.
        self.gather_frequency = gather_frequency


def build_trainer_backend(trainer_backend_name: str, *args: Any, **kwargs: Any) -> TrainerBackend:
    """The backend of that name.

    >>> native_name(build_trainer_backend("ddp-amp"))
    'ddp-amp'
    """
    if trainer_backend_name.endswith("-apex"):
        refuse_apex()
    if trainer_backend_name.endswith("-dp"):
        refuse_differential_privacy()
    # Checkpointers of this door save a module whole, from one process.
    known = [name for name in BACKENDS if name.startswith(("sp", "ddp"))]
    if trainer_backend_name not in known:
        raise ValueError(f"There is no backend {trainer_backend_name!r}; there are: {', '.join(known)}.")
    kind, _, precision = trainer_backend_name.partition("-")
    classes = {"": SingleProcess, "amp": SingleProcessAmp, "bf16": SingleProcessBf16, "fp16": SingleProcessFp16}
    gather_frequency = kwargs.pop("gather_frequency", None)
    single = classes[precision](*args, **kwargs)
    return DDPTrainerBackend(single, gather_frequency) if kind == "ddp" else single


def refuse_apex() -> None:
    """Say what to use."""
    raise ValueError("apex is not used here: torch has its own mixed precision, take backend 'sp-amp' or 'ddp-amp'.")


def description_in(backend: TrainerBackend) -> SingleProcess | None:
    """The description in a backend, however decorated; None for a backend with a loop of its own."""
    if _has_own_loop(backend):
        return None
    if isinstance(backend, AbstractTrainerBackendDecorator):
        return description_in(backend.trainer_backend)
    return backend if isinstance(backend, SingleProcess) else None


def native_name(backend: TrainerBackend) -> str:
    """What the Trainer calls it."""
    found = description_in(backend)
    assert found is not None
    is_distributed = isinstance(backend, DDPTrainerBackend)
    return found.name.replace("sp", "ddp", 1) if is_distributed else found.name


def _has_own_loop(backend: TrainerBackend) -> bool:
    ours = (TrainerBackend, SingleProcess, AbstractTrainerBackendDecorator)
    return any(
        getattr(type(backend), name) not in [getattr(kind, name) for kind in ours]
        for name in ("train_dl", "validate_dl")
    )


def refuse_parts_of_a_loop(backend: TrainerBackend) -> None:
    """A subclass that replaces parts of a loop which is not there would find that nobody calls them."""
    unused = [name for name in _PARTS_OF_A_LOOP if hasattr(backend, name)]
    if unused and not _has_own_loop(backend):
        raise ValueError(
            f"{type(backend).__name__} defines {', '.join(unused)}, which is never called: the loop is trainwright's. "
            "Define train_dl and validate_dl for a loop of your own, on_end_backward in the module to change "
            "gradients, or step differently in the optimizers you return."
        )


class OutputCollector:
    """Collects what steps return; tensors are joined along their first dimension when they are asked for.

    >>> collector = OutputCollector()
    >>> for number in (1.0, 2.0):
    ...     collector.collect((torch.tensor(number), "text"))
    >>> collector.all_outputs
    [tensor([1., 2.]), ['text', 'text']]
    """

    def __init__(self, *, on_device: bool = False) -> None:
        #: Leave tensors where they are until they are asked for: moving them waits for the device.
        self._on_device = on_device
        self.reset()

    def reset(self) -> None:
        self._pieces: list[list[Any]] = []

    def collect(self, outputs: object) -> None:
        """Keep one step's outputs, detached: a tensor, or a list or tuple of several things."""
        several = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        for index, output in enumerate(several):
            if len(self._pieces) <= index:
                self._pieces.append([])
            if isinstance(output, Tensor):
                output = output.detach()
                output = output.reshape(1) if output.ndim == 0 else output
            self._pieces[index].append(output if self._on_device else _on_host(output))

    def extend(self, other: OutputCollector) -> None:
        """Take over what another one collected."""
        for index, pieces in enumerate(other._pieces):
            if len(self._pieces) <= index:
                self._pieces.append([])
            self._pieces[index] += [_on_host(piece) for piece in pieces]

    @property
    def all_outputs(self) -> list[Any]:
        """Each output of all steps: one tensor in main memory; a list where there is no single shape."""
        return [_joined(pieces) for pieces in self._pieces]

    def get_state(self) -> list[Any]:
        """For a checkpoint: tensors, and lists of what JSON holds."""
        return self.all_outputs

    def update_state(self, state: Iterable[Any]) -> None:
        self._pieces = [[output] if isinstance(output, Tensor) else list(output) for output in state]


def _joined(pieces: list[Any]) -> Any:
    on_host = [_on_host(piece) for piece in pieces]
    tensors = [piece for piece in on_host if isinstance(piece, Tensor)]
    if len(tensors) == len(on_host) and len({(t.shape[1:], t.dtype) for t in tensors}) == 1:
        return torch.cat(tensors)
    return on_host


def _on_host(piece: object) -> Any:
    if isinstance(piece, Tensor):
        return piece.cpu()
    if isinstance(piece, Mapping):
        return {key: _on_host(value.detach() if isinstance(value, Tensor) else value) for key, value in piece.items()}
    return piece
