"""The names of backends, and what the launcher says about this process."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

WAYS = ("sp", "ddp")
PRECISIONS = ("amp", "bf16", "fp16")
BACKENDS = tuple(
    way if precision is None else f"{way}-{precision}" for way in WAYS for precision in (None, *PRECISIONS)
)
"""Every name that ``backend=`` takes."""


class Place(NamedTuple):
    """One process among those of a run."""

    rank: int
    local_rank: int
    world_size: int


ALONE = Place(0, 0, 1)


def place_from_environment() -> Place:
    """What torchrun (or another launcher that sets RANK, LOCAL_RANK and WORLD_SIZE) says."""
    size = _number("WORLD_SIZE", 1)
    if size <= 1:
        return ALONE
    missing = [name for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise ValueError(
            f"WORLD_SIZE={size}, but {', '.join(missing)} not set: start the script with "
            "`torchrun --nproc-per-node=N script.py`, or unset WORLD_SIZE for one process."
        )
    return Place(_number("RANK", 0), _number("LOCAL_RANK", 0), size)


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else default


def split_name(name: str) -> tuple[str, str | None]:
    """``"ddp-amp"`` -> ``("ddp", "amp")``; a name that is not one lists those that are.

    >>> split_name("sp-bf16")
    ('sp', 'bf16')
    """
    if name not in BACKENDS:
        raise ValueError(f"backend={name!r} is not one of {', '.join(BACKENDS)}.")
    way, _, precision = name.partition("-")
    return way, precision or None


def derive_backend(args: Any, supports_bf16: Callable[[], bool]) -> None:
    """Check ``args.backend`` against the launcher and set the precision it names.

    ``supports_bf16()`` is asked only for ``-amp``, which means bf16 where the device computes it and fp16 elsewhere.
    """
    place = place_from_environment()
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
