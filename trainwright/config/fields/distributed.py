"""Several devices. One device is what works today; what these do there is in ``hf_fields``."""

from dataclasses import dataclass, field
from typing import Any

DDP_BACKENDS = ("nccl", "gloo", "mpi", "xccl", "hccl", "cncl", "mccl")


@dataclass(kw_only=True)
class DistributedFields:
    ddp_backend: str | None = field(default=None, metadata={"choices": DDP_BACKENDS})
    """Communication library of torch.distributed."""

    ddp_timeout: int = 1800
    """Seconds a collective operation may wait."""

    ddp_find_unused_parameters: bool | None = None
    """Passed to DistributedDataParallel."""

    ddp_bucket_cap_mb: int | None = None
    """Passed to DistributedDataParallel."""

    ddp_broadcast_buffers: bool | None = None
    """Passed to DistributedDataParallel."""

    ddp_static_graph: bool | None = None
    """Passed to DistributedDataParallel."""

    # A bare --fsdp on the command line means "on".
    fsdp: str | None = field(default=None, metadata={"nargs": "?", "const": "true"})
    """Shard parameters over devices with FSDP."""

    fsdp_config: dict[str, Any] | str | None = None
    """Options of FSDP: a dict, JSON text or the path of a JSON file."""

    deepspeed: dict | str | None = None
    """A DeepSpeed configuration: a dict, JSON text or the path of a JSON file."""

    parallelism_config: object | None = None
    """An accelerate ParallelismConfig."""

    accelerator_config: dict | str | None = None
    """Options HF passes to accelerate: a dict, JSON text or the path of a JSON file."""

    local_rank: int = -1
    """Rank handed over by old launchers; see the property local_process_index."""

    use_cpu: bool = False
    """Stay on the CPU even when there is an accelerator."""
