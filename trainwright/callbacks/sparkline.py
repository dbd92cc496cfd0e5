"""A curve in one line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence

_HEIGHTS = "▁▂▃▄▅▆▇█"
#: Where a number is NaN or infinite.
_BROKEN = "x"


def sparkline(points: Sequence[tuple[float, float]], width: int) -> str:
    """``points`` (where, how much) in at most ``width`` characters; neighbours that share one are shown as their mean.

    >>> sparkline([(1, 4.0), (2, 2.0), (3, 1.0), (4, 0.5)], 10)
    '█▄▂▁'
    >>> sparkline([(1, 1.0), (2, float("nan"))], 10)
    '▁x'
    """
    if not points or width < 1:
        return ""
    groups = _grouped(points, width)
    means = [sum(values) / len(values) for values in groups]
    finite = [mean for mean in means if math.isfinite(mean)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    return "".join(_height(mean, low, high) for mean in means)


def _grouped(points: Sequence[tuple[float, float]], width: int) -> list[list[float]]:
    if len(points) <= width:
        return [[value] for _, value in points]
    first, last = points[0][0], points[-1][0]
    groups: list[list[float]] = [[] for _ in range(width)]
    for place, value in points:
        share = (place - first) / (last - first) if last > first else 0.0
        groups[min(int(max(share, 0.0) * width), width - 1)].append(value)
    return [group for group in groups if group]


def _height(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return _BROKEN
    # Halves, so that no difference of two large numbers becomes infinite.
    span = high / 2 - low / 2
    share = (value / 2 - low / 2) / span if span > 0 else 0.0
    return _HEIGHTS[min(round(share * (len(_HEIGHTS) - 1)), len(_HEIGHTS) - 1)]


def thinner(points: tuple[tuple[float, float], ...], most: int) -> tuple[tuple[float, float], ...]:
    """``points``, or where there are more than ``most`` of them the mean of every two neighbours.

    >>> thinner(((1, 4.0), (2, 2.0), (3, 1.0)), 2)
    ((1, 3.0), (3, 1.0))
    """
    if len(points) <= most:
        return points
    pairs = [points[start : start + 2] for start in range(0, len(points), 2)]
    return tuple((pair[0][0], sum(value for _, value in pair) / len(pair)) for pair in pairs)
