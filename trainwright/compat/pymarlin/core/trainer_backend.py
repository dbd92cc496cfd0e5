"""How a training is carried out: descriptions that the Trainer reads, and the base class for a loop of one's own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trainwright.compat.pymarlin.core.batch_loop import PARTS_OF_A_LOOP, BatchLoop
from trainwright.compat.pymarlin.core.module_interface import Stage
from trainwright.compat.pymarlin.core.outputs import OutputCollector
from trainwright.compat.pymarlin.utils.checkpointer.contents import check_counts
from trainwright.compat.pymarlin.utils.differential_privacy import (
    DifferentialPrivacyArguments,
    NoDPWrap,
    import_opacus,
    refuse_several_processes,
)
from trainwright.compat.pymarlin.utils.distributed import DistributedTrainingArguments
from trainwright.config.backends import BACKENDS
from trainwright.config.warnings import warn
from trainwright.data.sharding import train_sampler, val_sampler

__all__ = [
    "AbstractTrainerBackendDecorator",
    "DDPTrainerBackend",
    "OutputCollector",
    "SingleProcess",
    "SingleProcessAmp",
    "SingleProcessApexAmp",
    "SingleProcessBf16",
    "SingleProcessDpSgd",
    "SingleProcessFp16",
    "TrainerBackend",
    "TrainerBackendArguments",
    "build_trainer_backend",
]


@dataclass
class TrainerBackendArguments:
    """What the ``init`` of a backend receives."""

    model: Any = None
    device: Any = "cpu"
    #: Samples in an optimizer step, over all processes.
    train_batch_size: int = 1
    max_train_steps_per_epoch: int | None = None
    max_val_steps_per_epoch: int | None = None
    distributed_training_args: DistributedTrainingArguments = field(default_factory=DistributedTrainingArguments)
    optimizers: Iterable[Any] = ()
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
    differential_privacy_args: DifferentialPrivacyArguments | None = None


class TrainerBackend(ABC):
    """Implement ``train_dl`` and ``validate_dl`` to write the loop over batches yourself.

    The Trainer then calls them epoch by epoch, in PyMarlin's order; accumulation, clipping, precision and optimizer
    steps are theirs. The backends below only describe how to train: the Trainer's own loop runs them, unless a subclass
    replaces a part of :class:`BatchLoop`.
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


class SingleProcess(BatchLoop, TrainerBackend):
    """One process on one device. Also keeps count, for ``global_steps_finished`` and checkpoints."""

    #: What the Trainer is told.
    name = "sp"

    def __init__(self) -> None:
        self.global_step_completed = 0
        self.batches_completed = 0
        self.seed, self.rank, self.world_size, self.share = 0, 0, 1, 1

    def init(self, args: TrainerBackendArguments) -> None:
        self.args, self.model = args, args.model

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
            check_counts(state)
            self.global_step_completed = state["global_step_completed"]
            self.batches_completed = state["batches_completed"]


class SingleProcessAmp(SingleProcess):
    """With mixed precision."""

    name = "sp-amp"

    def __init__(self, enable_amp: bool = True) -> None:
        super().__init__()
        self.enable_amp = enable_amp
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
    """Differential privacy as opacus does it: every sample's gradient is clipped, and noise is added to their sum.

    One process; an epoch runs in PyMarlin's loop over batches, and a resume starts with an epoch.
    ``accountant.get_epsilon(delta)`` says how much privacy has been spent. Optimizers in a ``NoDPWrap`` are left alone.
    """

    name = "sp-dp"

    def __init__(self) -> None:
        super().__init__()
        self.accountant = import_opacus().accountants.RDPAccountant()

    def init(self, args: TrainerBackendArguments) -> None:
        super().init(args)
        privacy = args.differential_privacy_args
        if privacy is None:
            raise ValueError("backend 'sp-dp' needs differential_privacy_args=DifferentialPrivacyArguments(...).")
        if args.clip_grads:
            raise ValueError("With differential privacy every sample's gradient is clipped already: clip_grads=False.")
        opacus = import_opacus()
        self.model.train()
        self.model = opacus.GradSampleModule(self.model)
        found = list(args.optimizers)
        for place, optimizer in enumerate(found):
            if isinstance(optimizer, NoDPWrap):
                found[place] = optimizer.optimizer
                continue
            found[place] = noisy = opacus.optimizers.DPOptimizer(
                optimizer,
                noise_multiplier=privacy.noise_multiplier,
                max_grad_norm=privacy.per_sample_max_grad_norm,
                expected_batch_size=args.train_batch_size,
            )
            noisy.attach_step_hook(self.accountant.get_optimizer_hook_fn(sample_rate=privacy.sample_rate))
        self.args.optimizers = found

    def _forward_backward(self, callback: Any, batch: Any) -> Any:
        if self._waiting:
            # What waits is clipped and added up; noise comes once, with the step.
            for optimizer in self._noisy(self.args.optimizers):
                optimizer.signal_skip_step(do_skip=True)
                optimizer.step()
                optimizer.zero_grad()
        outputs = self._forward(batch, Stage.TRAIN, self.global_step_completed + 1)
        outputs = [outputs] if isinstance(outputs, Tensor) else outputs
        # Not divided by the accumulation: the optimizer divides the sum by the number of samples.
        outputs[0].backward()
        callback.on_end_backward(self.global_step_completed, outputs[0])
        return outputs

    @staticmethod
    def _noisy(optimizers: Iterable[Any]) -> list[Any]:
        return [optimizer for optimizer in optimizers if hasattr(optimizer, "signal_skip_step")]

    def get_state(self) -> dict[str, Any]:
        """With what has been spent: a resumed run goes on counting."""
        spent = [list(step) for step in self.accountant.history]
        return {**super().get_state(), "privacy_spent": spent}

    def update_state(self, state: dict[str, Any] | None) -> None:
        super().update_state(state)
        self.accountant.history = [tuple(step) for step in (state or {}).get("privacy_spent", ())]


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
    if trainer_backend_name == "sp-dp":
        return SingleProcessDpSgd()
    if trainer_backend_name.endswith("-dp"):
        refuse_several_processes()
    # Checkpointers of this door save a module whole, from one process.
    known = [name for name in BACKENDS if name.startswith(("sp", "ddp"))]
    if trainer_backend_name not in known:
        raise ValueError(f"There is no backend {trainer_backend_name!r}; there are: {', '.join([*known, 'sp-dp'])}.")
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


def _innermost(backend: TrainerBackend) -> TrainerBackend:
    return _innermost(backend.trainer_backend) if isinstance(backend, AbstractTrainerBackendDecorator) else backend


def native_name(backend: TrainerBackend) -> str:
    """What the Trainer calls it."""
    found = _innermost(backend)
    assert isinstance(found, SingleProcess)
    is_distributed = isinstance(backend, DDPTrainerBackend)
    return found.name.replace("sp", "ddp", 1) if is_distributed else found.name


def _has_own_loop(backend: TrainerBackend) -> bool:
    ours = (TrainerBackend, SingleProcess, AbstractTrainerBackendDecorator)
    # Also ``backend.optimize = mine``, of one object.
    return any(name in getattr(backend, "__dict__", {}) for name in PARTS_OF_A_LOOP) or any(
        getattr(type(backend), name, None) not in [getattr(kind, name, None) for kind in ours]
        for name in PARTS_OF_A_LOOP
    )


def init_described(backend: TrainerBackend, counts: SingleProcess | None, args: TrainerBackendArguments) -> None:
    """``init`` the backend; what it changes in the arguments of a loop that is not its own is said to do nothing."""
    before = dict(vars(args))
    backend.init(args)
    if counts is None:
        return
    after = vars(getattr(counts, "args", args))
    changed = [name for name, value in before.items() if name in after and not _is_same(after[name], value)]
    if changed:
        warn(
            f"{type(backend).__name__}.init() changed {', '.join(changed)} of its arguments, which has no effect: its "
            "loop is the Trainer's. Set it in TrainerArguments or in the module, or give the backend a loop of its own "
            "(train_dl)."
        )


def _is_same(one: Any, other: Any) -> bool:
    plain = (int, float, str, torch.device)
    return one is other or (isinstance(one, plain) and isinstance(other, plain) and one == other)


def warn_of_late_parts(backend: TrainerBackend) -> None:
    """Say so where a part of the loop was replaced after the Trainer had chosen its own."""
    if description_in(backend) is None:
        warn(
            f"A part of {type(backend).__name__}'s loop was replaced after the Trainer was made, which has no effect: "
            "replace it first, then pass the backend to the Trainer."
        )


def tell_samplers(backend: TrainerBackend, seed: int, share: int, ranks: DistributedTrainingArguments) -> None:
    """Give ``SingleProcess``, however decorated and whoever's loop it has, what its samplers need."""
    found = _innermost(backend)
    if isinstance(found, SingleProcess):
        found.seed, found.share = seed, share
        found.rank, found.world_size = ranks.global_rank, ranks.world_size


def refuse_wrapping_alone(backend: TrainerBackend) -> None:
    """Around a loop of the user's own, several processes would each train a model of their own."""
    if type(backend) is DDPTrainerBackend:
        raise ValueError(
            f"DDPTrainerBackend cannot share gradients for {type(backend.trainer_backend).__name__}, whose loop is its "
            "own: wrap the model in torch's DistributedDataParallel in its init(), and pass it without "
            "DDPTrainerBackend."
        )
