"""Which process this is, as PyMarlin tells it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch.utils.data.distributed import DistributedSampler

from trainwright.config.backends import rank_from_environment


@dataclass
class DistributedTrainingArguments:
    """Ranks of this process; ``TrainerArguments(distributed_training_args=None)`` reads them from the environment."""

    local_rank: int = 0
    global_rank: int = 0
    world_size: int = 1
    #: "nccl" or "gloo"; None takes what fits the device.
    backend: str | None = None
    init_method: str = "env://"
    gather_frequency: int | None = None


@dataclass
class DistributedPreprocessArguments:
    """Which of several machines prepares data here."""

    local_rank: int = 0
    global_rank: int = 0
    world_size: int = 1
    #: How many machines there are, and processes on each.
    node_count: int = 1
    local_size: int = 1
    #: None: found from ``global_rank`` and ``local_size``.
    node_rank: int | None = None


class SequentialDistributedSampler(DistributedSampler[Any]):
    """This process's part of a dataset, in the dataset's own order."""

    def __init__(self, dataset: Any, num_replicas: int | None = None, rank: int | None = None, **more: Any) -> None:
        super().__init__(dataset, num_replicas=num_replicas, rank=rank, shuffle=False, **more)


def ranks_already_set(args: DistributedTrainingArguments) -> bool:
    """Whether both ranks are known."""
    return args.local_rank > -1 and args.global_rank > -1


def ranks_from_environment(environment: Mapping[str, str] = os.environ) -> DistributedTrainingArguments:
    """What the launcher said; one process where there was none.

    >>> ranks_from_environment({"LOCAL_RANK": "1", "RANK": "3", "WORLD_SIZE": "4"}).global_rank
    3
    """
    place = rank_from_environment(environment)
    return DistributedTrainingArguments(place.local_rank, place.rank, place.world_size)


def fetch_ranks_from_azureml() -> DistributedTrainingArguments:
    """The ranks that Open MPI has given, as under AzureML."""
    return ranks_from_environment()


def fetch_ranks_from_torch_distributed_launch() -> DistributedTrainingArguments:
    """The ranks that torchrun has given."""
    return ranks_from_environment()


def agreed_ranks(given: DistributedTrainingArguments | None) -> DistributedTrainingArguments:
    """The ranks that are given, which must be those of the environment, or those."""
    found = ranks_from_environment()
    if given is not None and (given.global_rank, given.world_size) != (found.global_rank, found.world_size):
        raise ValueError(
            f"distributed_training_args say process {given.global_rank} of {given.world_size}, the launcher's "
            f"environment {found.global_rank} of {found.world_size}: start with torchrun and leave them out."
        )
    return given or found


def fetch_ranks_from_azureml_preprocess() -> DistributedPreprocessArguments:
    """Which of several machines this is, as Open MPI says it; the only one where it says nothing."""
    place = rank_from_environment(os.environ)
    on_each = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", place.world_size)) or 1
    machines = max(place.world_size // on_each, 1)
    return DistributedPreprocessArguments(place.local_rank, place.rank, place.world_size, machines, on_each)


def rank_zero_only(function: Callable[..., Any]) -> Callable[..., Any]:
    """Call ``function`` in the first process only; the others wait for it and get None."""

    @functools.wraps(function)
    def wrapped(*args: object, **kwargs: object) -> Any:
        from torch import distributed

        result = function(*args, **kwargs) if ranks_from_environment().global_rank == 0 else None
        if distributed.is_available() and distributed.is_initialized():
            distributed.barrier()
        return result

    return wrapped
