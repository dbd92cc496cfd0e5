"""Which process this is, as PyMarlin tells it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

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


def ranks_from_environment(environment: Mapping[str, str] = os.environ) -> DistributedTrainingArguments:
    """What the launcher said; one process where there was none.

    >>> ranks_from_environment({"LOCAL_RANK": "1", "RANK": "3", "WORLD_SIZE": "4"}).global_rank
    3
    """
    place = rank_from_environment(environment)
    return DistributedTrainingArguments(place.local_rank, place.rank, place.world_size)


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
