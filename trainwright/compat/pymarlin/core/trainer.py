"""PyMarlin's Trainer: it reads the arguments, and ``trainwright.Trainer`` does the work."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

import torch

from trainwright.callbacks.progress import PrinterCallback
from trainwright.checkpoint.states import split_state
from trainwright.compat.pymarlin.core.adapter import MarlinModule, Progress, Supply
from trainwright.compat.pymarlin.core.bridge import Bridge, compare_epochs, exact_part, go_on_after
from trainwright.compat.pymarlin.core.loaders import Loaders
from trainwright.compat.pymarlin.core.module_interface import ModuleInterface
from trainwright.compat.pymarlin.core.own_loop import OwnLoop
from trainwright.compat.pymarlin.core.plain_module import as_module, refuse_weights_not_held
from trainwright.compat.pymarlin.core.trainer_arguments import (
    TrainerArguments,
    batch_sizes,
    chosen_backend,
    native_settings,
)
from trainwright.compat.pymarlin.core.trainer_backend import (
    TrainerBackend,
    TrainerBackendArguments,
    description_in,
    init_described,
    native_name,
    refuse_wrapping_alone,
    tell_samplers,
    warn_of_late_parts,
)
from trainwright.compat.pymarlin.utils import stats
from trainwright.compat.pymarlin.utils.checkpointer.checkpoint_utils import (
    AbstractCheckpointer,
    Checkpoint,
    DefaultCheckpointer,
    DefaultCheckpointerArguments,
)
from trainwright.compat.pymarlin.utils.checkpointer.contents import check_trainer_state, naming_the_file
from trainwright.compat.pymarlin.utils.differential_privacy import DifferentialPrivacyArguments
from trainwright.compat.pymarlin.utils.distributed import DistributedTrainingArguments, agreed_ranks
from trainwright.compat.pymarlin.utils.stats.basic_stats import BasicStats
from trainwright.compat.pymarlin.utils.writer import build_writer
from trainwright.compat.pymarlin.utils.writer.base import WriterInitArguments, new_folder
from trainwright.config import TrainingArguments
from trainwright.config.batch_sizes import BatchSizes
from trainwright.trainer import Trainer as NativeTrainer

__all__ = [
    "AbstractTrainer",
    "DefaultCheckpointerArguments",
    "DifferentialPrivacyArguments",
    "DistributedTrainingArguments",
    "Trainer",
    "TrainerArguments",
    "WriterInitArguments",
    "stats",
]

logger = logging.getLogger("trainwright")


class AbstractTrainer(ABC):
    """What a trainer can do."""

    @abstractmethod
    def train(self) -> Any:
        """Train."""

    @abstractmethod
    def validate(self) -> Any:
        """Validate."""


class Trainer(AbstractTrainer):
    """Trains a :class:`ModuleInterface`.

    Args:
        module: The model with its data, steps, optimizers and callbacks; any object with the methods will do.
        args: How to train.
        trainer_backend: Instead of ``args.backend``: an object of ``trainer_backend``, or one with a loop of its own.
        checkpointer: Where checkpoints go; by default files, as ``args.checkpointer_args`` say.
    """

    _has_trained = False

    def __init__(
        self,
        module: ModuleInterface,
        args: TrainerArguments,
        trainer_backend: TrainerBackend | None = None,
        checkpointer: AbstractCheckpointer | None = None,
    ) -> None:
        self.logger, self.args = logger, args
        self.trainer_backend = chosen_backend(trainer_backend, args)
        self.module = module = as_module(module, natively=description_in(self.trainer_backend) is not None)
        self._ranks = args.distributed_training_args = agreed_ranks(args.distributed_training_args)
        self._sizes = batch_sizes(args, self._ranks.world_size)
        self._tell_backend()
        self.checkpointer = checkpointer or DefaultCheckpointer(args.checkpointer_args)
        self.checkpointed_states = self.load_checkpoints()
        module.update_state(self.checkpointed_states.module_interface_state)
        module.to(self.device)
        self._progress = Progress()
        self.optimizers, self.schedulers = self._new_tools(args.epochs)
        self.stats = self._new_stats()
        stats.use_stats(self.stats)
        with naming_the_file(self.checkpointer):
            self.update_state(self.checkpointed_states.trainer_state)
            init_described(self.trainer_backend, self._counts, self._backend_arguments())
            self.trainer_backend.update_state(self.checkpointed_states.trainer_backend_state)

    # ---- what users call

    def train(self) -> None:
        """Train and validate, from the first epoch or from where the checkpoint left off.

        A signal ends it with ``trainwright.Preempted`` once everything is saved; made anew with ``load_dir`` set, the
        Trainer goes on exactly there.
        """
        stats.use_stats(self.stats)
        if self._has_trained:
            self.logger.warning("This Trainer has trained already: make a new one, with load_dir set, for more epochs.")
            return
        if isinstance(self.checkpointer, DefaultCheckpointer) and self.checkpointer.args.checkpoint:
            # Now, and not after the first epoch.
            split_state(self.module.get_state(), f"{type(self.module).__name__}.get_state()")
            split_state(self.get_state(), f"{type(self).__name__}.get_state()")
        self._has_trained = True
        try:
            if self._counts is None:
                self._train_by_own_loop()
            else:
                warn_of_late_parts(self.trainer_backend)
                self._train_natively()
            self.module.on_end_train(self.global_steps_finished)
            self.stats.log_long_stats(self.global_steps_finished)
        finally:
            self.stats.finish()

    def validate(self) -> Any:
        """Run every validation loader; returns its collated outputs, in a dict by name if there are several."""
        stats.use_stats(self.stats)
        if self._counts is None:
            results = self._own_loop.validate()
        elif not self._loaders.for_validation:
            results = {}
        else:
            self._adapter.begin_validation()
            self._native.evaluate()
            results = self._adapter.validated
        return results if self._loaders.are_named else next(iter(results.values()), None)

    def save_checkpoint(self, force: bool = False) -> None:
        """Hand the present states to the checkpointer, between steps or outside training; every process calls it."""
        if self._counts is not None and self._native.is_in_train:
            self._bridge.asked = force
            try:
                self._native._save_checkpoint(self._native.model)
            finally:
                self._bridge.asked = None
            return
        if self.is_main_process:
            self.checkpointer.save(self._present_states(), self.last_epoch, force)

    def save_model_checkpoint(self) -> None:
        """Hand the module's state to the checkpointer."""
        if self.is_main_process:
            self.checkpointer.save_model(self.module.get_state(), self.last_epoch)

    def load_checkpoints(self) -> Checkpoint:
        """What the checkpointer finds; an empty ``Checkpoint`` to start anew."""
        return self.checkpointer.load() or Checkpoint()

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint keeps of the trainer; override it to keep more."""
        state: dict[str, Any] = {"last_epoch": self.last_epoch}
        if self._counts is None:
            # With a loop of ours they are kept together with all else that an exact resume needs.
            state["optimizers"] = [optimizer.state_dict() for optimizer in self.optimizers]
            state["schedulers"] = [scheduler.state_dict() for scheduler in self.schedulers]
        return state

    def update_state(self, state: dict[str, Any] | None) -> None:
        """Take up what ``get_state`` returned when the checkpoint was saved."""
        if not state:
            return
        reset = self.args.reset_optimizers_schedulers
        check_trainer_state(state, with_tools=not reset)
        self.last_epoch = state["last_epoch"]
        left = self.args.epochs - self.last_epoch - 1
        if reset:
            if left > 0:
                self.optimizers, self.schedulers = self._new_tools(left)
            return
        for kind, tools in {"optimizers": self.optimizers, "schedulers": self.schedulers}.items():
            for tool, saved in zip(tools, state.get(kind, ()), strict=False):
                tool.load_state_dict(saved)

    # ---- sizes and places

    @property
    def last_epoch(self) -> int:
        """The last epoch that is finished; -1 before the first is."""
        return self._progress.last_epoch

    @last_epoch.setter
    def last_epoch(self, epoch: int) -> None:
        self._progress.last_epoch = epoch

    @property
    def device(self) -> torch.device:
        """Where this process trains."""
        if self.args.use_gpu and torch.cuda.is_available():
            return torch.device("cuda", self._ranks.local_rank)
        return torch.device("cpu")

    @property
    def is_distributed(self) -> bool:
        return self._ranks.world_size > 1

    @property
    def is_main_process(self) -> bool:
        return self._ranks.global_rank == 0

    @property
    def batch_sizes(self) -> BatchSizes:
        """One optimizer step's samples: per device, per process, and in all."""
        return self._sizes

    @property
    def pergpu_global_batch_size(self) -> int:
        return self._sizes.per_process

    @property
    def train_step_batch_size(self) -> int:
        """Samples that run at once: the largest divisor of this process's share within the limit, given or found."""
        has_found = self.args.gpu_batch_size_limit == "auto" and "_native" in vars(self)
        return self._native.micro_batch_size if has_found else self._sizes.per_device

    @property
    def gradient_accumulation(self) -> int:
        return self._sizes.accumulation

    @property
    def val_step_batch_size(self) -> int:
        return self.args.val_batch_size

    @property
    def train_sampler(self) -> Any:
        return self.trainer_backend.train_sampler

    @property
    def val_sampler(self) -> Any:
        return self.trainer_backend.val_sampler

    @property
    def global_steps_finished(self) -> int:
        return self.trainer_backend.get_global_steps_completed()

    @property
    def total_steps_finished(self) -> int:
        return self.trainer_backend.get_batches_completed()

    @property
    def estimated_global_steps_per_epoch(self) -> int:
        """Optimizer steps of an epoch, exactly; 0 without training data. Reads lengths, draws nothing."""
        return self._loaders.steps_per_epoch()

    # ---- building

    def _tell_backend(self) -> None:
        self._seed = torch.initial_seed() % 2**31
        self._counts = description_in(self.trainer_backend)
        if self._counts is None and self.is_distributed:
            refuse_wrapping_alone(self.trainer_backend)
        tell_samplers(self.trainer_backend, self._seed, self._sizes.per_process, self._ranks)

    def _new_tools(self, epochs: int) -> tuple[list[Any], list[Any]]:
        optimizers, schedulers = self.module.get_optimizers_schedulers(self.estimated_global_steps_per_epoch, epochs)
        optimizers = list(optimizers)
        refuse_weights_not_held(self.module, optimizers, natively=self._counts is not None)
        return optimizers, list(schedulers or [])

    def _new_stats(self) -> BasicStats:
        names = self.args.writers if self.is_main_process else []
        writers = [build_writer(writer, self.args.writer_args) for writer in names]
        collected = BasicStats(self.args.stats_args, [writer for writer in writers if writer is not None])
        collected.device = self.device
        return collected

    def _backend_arguments(self) -> TrainerBackendArguments:
        return TrainerBackendArguments(
            model=self.module,
            device=self.device,
            train_batch_size=self.args.train_batch_size,
            max_train_steps_per_epoch=self.args.max_train_steps_per_epoch,
            max_val_steps_per_epoch=self.args.max_val_steps_per_epoch,
            distributed_training_args=self._ranks,
            optimizers=self.optimizers,
            schedulers=self.schedulers,
            gradient_accumulation=self.gradient_accumulation,
            clip_grads=self.args.clip_grads,
            max_grad_norm=self.args.max_grad_norm,
            disable_tqdm=self.args.disable_tqdm,
            amp_backend_native=self.args.amp_backend_native,
            differential_privacy_args=self.args.differential_privacy_args,
        )

    @cached_property
    def _loaders(self) -> Loaders:
        return Loaders(self.module, self.args, self.trainer_backend, self._sizes, are_cut=self._counts is not None)

    @cached_property
    def _supply(self) -> Supply:
        return Supply(
            train_loader=self._loaders.for_training,
            val_loaders=lambda: self._loaders.for_validation,
            tools=lambda: (self.optimizers, self.schedulers),
            is_save_due=self._is_save_due,
            runs_in_pieces=self.args.gpu_batch_size_limit == "auto",
        )

    def _is_save_due(self, epoch: int) -> bool:
        """Whether the checkpointer will keep an epoch's checkpoint; one of the user's is always asked."""
        if not isinstance(self.checkpointer, DefaultCheckpointer):
            return True
        return epoch % self.checkpointer.args.period == 0 or epoch == self.args.epochs - 1

    def _present_states(self) -> Checkpoint:
        return Checkpoint(self.module.get_state(), self.get_state(), self.trainer_backend.get_state())

    # ---- with the loop of trainwright

    @cached_property
    def _adapter(self) -> MarlinModule:
        assert self._counts is not None
        return MarlinModule(self.module, self._supply, self._progress, self._counts, self.stats)

    @cached_property
    def _bridge(self) -> Bridge:
        return Bridge(
            self.checkpointer,
            self._present_states,
            shares_weights=type(self.module).get_state is ModuleInterface.get_state,
            progress=self._progress,
            epochs=self.args.epochs,
        )

    @cached_property
    def _native(self) -> NativeTrainer:
        saves = not isinstance(self.checkpointer, DefaultCheckpointer) or self.checkpointer.args.checkpoint
        logs = self.args.writer_args.log_dir / "trainwright"
        # A new folder for each run: the logs of earlier ones stay.
        place = new_folder(logs) if self.is_main_process else logs
        settings = native_settings(self.args, self._sizes, native_name(self.trainer_backend), self._seed, place)
        settings["num_train_epochs"] = self._progress.epochs_left(self.args.epochs)
        arguments = TrainingArguments(
            **settings,
            eval_strategy="epoch" if self._loaders.for_validation else "no",
            save_strategy="epoch" if saves else "no",
        )
        native = NativeTrainer(self._adapter, arguments, checkpointer=self._bridge)
        # Writers show what there is to see.
        native.remove_callback(PrinterCallback)
        self._adapter.gather = native.engine.backend.gather
        return native

    def _train_natively(self) -> None:
        reset = self.args.reset_optimizers_schedulers
        exact = exact_part(self.checkpointed_states, self._progress, reset_optimizers=reset)
        # The bridge hands it on; it is not needed twice in memory.
        self._bridge.loaded, self.checkpointed_states = exact, Checkpoint()
        if exact is None and self.last_epoch >= 0:
            go_on_after(self._progress, self.global_steps_finished)
        if exact is not None and self.schedulers and not reset:
            compare_epochs(exact, self._progress.epochs_left(self.args.epochs))
        if self._progress.epochs_left(self.args.epochs) > 0:
            self._native.train(resume_from_checkpoint=True if exact else None)

    # ---- with a loop of the user's

    @cached_property
    def _own_loop(self) -> OwnLoop:
        return OwnLoop(self.module, self.trainer_backend, self._supply, self._progress, self.stats)

    def _train_by_own_loop(self) -> None:
        while self.last_epoch + 1 < self.args.epochs:
            self._own_loop.run_epoch()
            self.save_checkpoint(force=self.last_epoch == self.args.epochs - 1)
        self.save_model_checkpoint()
