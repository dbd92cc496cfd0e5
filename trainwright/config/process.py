"""What the arguments and the launcher say about this process and its device."""

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from trainwright.config.backends import rank_from_environment
from trainwright.config.enums import ParallelMode
from trainwright.config.fields import AllFields, ours
from trainwright.config.fields.logs import LOG_LEVELS
from trainwright.config.probe import probe_for


@dataclass(frozen=True)
class DistributedState:
    """What ``args.distributed_state`` says about this process, under accelerate's names."""

    num_processes: int
    process_index: int
    local_process_index: int
    device: Any

    @property
    def use_distributed(self) -> bool:
        return self.num_processes > 1

    @property
    def is_main_process(self) -> bool:
        return self.process_index == 0

    @property
    def is_local_main_process(self) -> bool:
        return self.local_process_index == 0

    @property
    def distributed_type(self) -> str:
        """accelerate's word for how the processes work together."""
        if not self.use_distributed:
            return "NO"
        return "MULTI_CPU" if self.device.type == "cpu" else f"MULTI_{'GPU' if self.device.type == 'cuda' else 'XPU'}"


class ProcessView(AllFields):
    """Read-only properties with transformers' names."""

    #: What ``optim`` is when nothing is said.
    default_optim = "adamw_torch"
    #: Accelerate's settings objects for these two; the arguments themselves say what acts here.
    deepspeed_plugin = None
    fsdp_plugin_args = None

    @property
    def train_batch_size(self) -> int:
        """Samples per training batch in this process."""
        return self.per_device_train_batch_size * ours(self).engine_devices

    @property
    def eval_batch_size(self) -> int:
        """Samples per evaluation batch in this process."""
        return self.per_device_eval_batch_size * ours(self).engine_devices

    @property
    def device(self) -> Any:
        """The device this process trains on. Loads the framework."""
        probe, index = probe_for(self), self.local_process_index
        if index and self.ddp_backend == "gloo" and not self.use_cpu:
            # NCCL wants a device for each process, gloo does not mind.
            index %= max(probe.device_count(), 1)
        return probe.device(self.use_cpu, index)

    @property
    def n_gpu(self) -> int:
        """Accelerators this process uses: 0 or 1. Loads the framework."""
        return probe_for(self).n_gpu(self.use_cpu)

    @property
    def _n_gpu(self) -> int:
        return self.n_gpu

    @_n_gpu.setter
    def _n_gpu(self, count: int) -> None:
        """Scripts set 1 to keep transformers from spreading a batch over all GPUs, which never happens here."""

    @property
    def _setup_devices(self) -> Any:
        return self.device

    @property
    def _no_sync_in_gradient_accumulation(self) -> bool:
        """Gradients are exchanged once a step, whatever the strategy."""
        return True

    @property
    def distributed_state(self) -> Any:
        """This process among the others, as accelerate's PartialState says it. Loads the framework."""
        return DistributedState(self.world_size, self.process_index, self.local_process_index, self.device)

    @property
    def mixed_precision(self) -> str:
        """``"fp16"``, ``"bf16"`` or ``"no"``."""
        return "fp16" if self.fp16 else "bf16" if self.bf16 else "no"

    @property
    def parallel_mode(self) -> ParallelMode:
        """How work is spread."""
        return ParallelMode.NOT_PARALLEL if self.world_size == 1 else ParallelMode.DISTRIBUTED

    @property
    def world_size(self) -> int:
        """Processes in the run."""
        return rank_from_environment().world_size

    @property
    def data_processes(self) -> int:
        """Processes among which every batch is shared out: all, or one of each group that computes layers together."""
        return max(self.world_size // ours(self).tensor_parallel_size, 1)

    @property
    def process_index(self) -> int:
        """Rank in the run."""
        return rank_from_environment().rank

    @property
    def local_process_index(self) -> int:
        """Rank on this machine."""
        return rank_from_environment().local_rank

    @property
    def should_log(self) -> bool:
        """Whether this process writes logs."""
        return (self.local_process_index if self.log_on_each_node else self.process_index) == 0

    @property
    def should_save(self) -> bool:
        """Whether this process writes checkpoints."""
        return (self.local_process_index if self.save_on_each_node else self.process_index) == 0

    @property
    def ddp_timeout_delta(self) -> timedelta:
        """``ddp_timeout`` as torch.distributed takes it."""
        return timedelta(seconds=self.ddp_timeout)

    @property
    def place_model_on_device(self) -> bool | None:
        """Subclasses may answer False to keep the model where it is; None leaves the choice to the Trainer."""
        return None

    def get_process_log_level(self) -> int:
        """The numeric log level of this process; "passive" is whatever the application has set."""
        level = LOG_LEVELS[self.log_level if self.should_log else self.log_level_replica]
        return logging.getLogger("trainwright").getEffectiveLevel() if level == -1 else level

    @contextlib.contextmanager
    def main_process_first(self, local: bool = True, desc: str = "work") -> Iterator[None]:
        """Let the main process (``local``: of each machine) do something before the others."""
        if self.world_size == 1:
            yield
            return
        is_main = (self.local_process_index if local else self.process_index) == 0
        if not is_main:
            probe_for(self).barrier(self)
        try:
            yield
        finally:
            if is_main:
                probe_for(self).barrier(self)
