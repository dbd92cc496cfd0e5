"""How much of a weight is zero at a given epoch."""

from __future__ import annotations

#: Progress between start and end -> share of the way from the first sparsity to the last.
INTERPOLATIONS = {
    "linear": lambda progress: progress,
    # Fast while there is much to spare, slow towards the end.
    "cubic": lambda progress: 1 - (1 - progress) ** 3,
    "inverse_cubic": lambda progress: 1 - (1 - progress) ** (1 / 3),
}


def interpolate(progress: float, initial: float, final: float, how: str = "cubic") -> float:
    """From ``initial`` to ``final`` while ``progress`` goes from 0 to 1; outside of that the nearer end.

    >>> [round(interpolate(p, 0.05, 0.8), 5) for p in (0, 0.25, 0.5, 0.75, 1)]
    [0.05, 0.48359, 0.70625, 0.78828, 0.8]
    """
    progress = min(max(progress, 0.0), 1.0)
    if progress == 1.0:
        return final
    return initial + (final - initial) * INTERPOLATIONS[how](progress)


def progress_between(epoch: float, start: float, end: float) -> float:
    """Share of the way from ``start`` to ``end``; 1 where they are the same moment."""
    start = max(start, 0.0)
    return 1.0 if end <= start else min(max((epoch - start) / (end - start), 0.0), 1.0)


def checked_interpolation(name: str) -> str:
    """``name``, where it is one of :data:`INTERPOLATIONS`."""
    if name not in INTERPOLATIONS:
        raise ValueError(f"inter_func={name!r} is not known: use one of {', '.join(INTERPOLATIONS)}.")
    return name


def checked_share(value: object, what: str) -> float:
    """``value`` as a share between 0 and 1.

    >>> checked_share("0.9", "final_sparsity")
    0.9
    """
    try:
        share = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ValueError(f"{what}={value!r} must be a number from 0 to 1.") from None
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"{what}={value!r} must be from 0 to 1: 0.9 means that nine weights in ten are zero.")
    return share
