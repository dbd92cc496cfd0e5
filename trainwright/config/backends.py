"""The names of backends, and what the launcher says about this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from trainwright.config.registry import check_name
from trainwright.config.shipped import SHIPPED

if TYPE_CHECKING:
    from trainwright.config.fields import AllFields

PRECISIONS = ("amp", "bf16", "fp16")
BACKENDS = tuple(
    way if precision is None else f"{way}-{precision}"
    for way in SHIPPED["strategy"]
    for precision in (None, *PRECISIONS)
)
"""Every name of ours that ``backend=`` takes; registered strategies take the same endings."""


class ProcessRank(NamedTuple):
    """One process among those of a run."""

    rank: int
    local_rank: int
    world_size: int


ALONE = ProcessRank(0, 0, 1)


#: Names of (rank, rank on this machine, number of processes), by launcher: torchrun, and Open MPI.
_LAUNCHERS = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
)


def rank_from_environment(environment: Mapping[str, str] = os.environ) -> ProcessRank:
    """What the launcher says: torchrun, others that set the same variables, or mpirun.

    >>> rank_from_environment({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"})
    ProcessRank(rank=3, local_rank=1, world_size=4)
    """
    for names in _LAUNCHERS:
        size = environment.get(names[2], "")
        if not size.isdigit() or int(size) <= 1:
            continue
        missing = [name for name in names if not environment.get(name, "").isdigit()]
        if missing:
            raise ValueError(
                f"{names[2]}={size}, but {', '.join(missing)} not set: start the script with "
                f"`torchrun --nproc-per-node=N script.py`, or unset {names[2]} for one process."
            )
        return ProcessRank(*(int(environment[name]) for name in names))
    return ALONE


def split_name(name: str) -> tuple[str, str | None]:
    """The strategy and the precision that a backend's name says; a strategy that is not one lists those that are.

    >>> split_name("sp-bf16")
    ('sp', 'bf16')
    """
    if not isinstance(name, str):
        raise ValueError(f"backend={name!r} must be a name; an object of your own goes to Trainer(backend=...).")
    way, _, ending = name.rpartition("-")
    precision = ending if way and ending in PRECISIONS else None
    way = name if precision is None else way
    check_name("strategy", way, f"backend={name!r} (a strategy, perhaps with -amp, -bf16 or -fp16)")
    return way, precision


def derive_backend(args: AllFields, supports_bf16: Callable[[], bool]) -> None:
    """Check ``args.backend`` against the launcher and set the precision it names.

    ``supports_bf16()`` is asked only for ``-amp``, which means bf16 where the device computes it and fp16 elsewhere.
    """
    place = rank_from_environment()
    if args.backend is None:
        return
    way, precision = split_name(args.backend)
    if way == "sp" and place.world_size > 1:
        raise ValueError(
            f"backend={args.backend!r} is for one process, but {place.world_size} were started: use "
            f"{args.backend.replace('sp', 'ddp', 1)!r}, or start the script with plain `python`."
        )
    if precision is None:
        return
    chosen = precision if precision != "amp" else "bf16" if supports_bf16() else "fp16"
    other = "fp16" if chosen == "bf16" else "bf16"
    if not getattr(args, other):
        setattr(args, chosen, True)
    elif precision != "amp":
        raise ValueError(f"backend={args.backend!r} and {other}=True contradict each other: leave one of them out.")
