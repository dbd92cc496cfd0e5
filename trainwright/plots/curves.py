"""Curves: numbers over steps, time or tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainwright.plots.drawing import COLOURS, drawing, plain, svg_of

#: More points than that are drawn on top of each other: of each group of neighbours the least and the greatest stay.
MOST_POINTS = 800
#: Few points are shown as dots too: two evaluations are a line that says nothing.
_FEW = 25


@dataclass(frozen=True)
class Line:
    """One curve."""

    name: str
    x: Sequence[float]
    y: Sequence[float]

    def finite(self) -> tuple[np.ndarray, np.ndarray]:
        x, y = np.asarray(self.x, dtype=np.float64), np.asarray(self.y, dtype=np.float64)
        known = np.isfinite(x) & np.isfinite(y) & (np.abs(y) < 1e200) & (np.abs(x) < 1e200)
        return x[known], y[known]


def curves(
    lines: Sequence[Line],
    *,
    x_label: str = "step",
    size: tuple[float, float] = (7.2, 2.6),
    log: bool = False,
    marks: Sequence[tuple[float, str]] = (),
) -> str:
    """``lines`` over each other, as an SVG; ``marks`` are upright lines with a word. Empty without two numbers.

    >>> curves([Line("loss", [1, 2, 3], [3.0, 2.0, 1.5])]).startswith("<svg")
    True
    """
    found = [(line.name, *thinned(*line.finite())) for line in lines]
    found = [(name, x, y) for name, x, y in found if len(x)]
    if sum(len(x) for _, x, _ in found) < 2:
        return ""
    with drawing(*size) as figure:
        axes = figure.add_subplot()
        for number, (name, x, y) in enumerate(found):
            dots = "o" if len(x) <= _FEW else None
            axes.plot(x, y, color=COLOURS[number % len(COLOURS)], marker=dots, markersize=3.5, label=f" {plain(name)}")
        for place, word in marks:
            axes.axvline(place, color="#999999", linewidth=0.8, linestyle=":")
            axes.text(place, 1.0, plain(word, 24), transform=axes.get_xaxis_transform(), fontsize=7, va="bottom")
        values = np.concatenate([y for _, _, y in found])
        if log and values.min() > 0 and values.max() > 30 * values.min():
            axes.set_yscale("log")
        axes.set_xlabel(plain(x_label))
        axes.legend(loc="upper right", ncols=min(len(found), 4))
        return svg_of(figure)


def thinned(x: np.ndarray, y: np.ndarray, most: int = MOST_POINTS) -> tuple[np.ndarray, np.ndarray]:
    """At most about ``most`` points with the same outline.

    >>> x, y = thinned(np.arange(10_000.0), np.sin(np.arange(10_000.0)))
    >>> len(x) <= MOST_POINTS, bool(y.max() > 0.999)
    (True, True)
    """
    if len(x) <= most:
        return x, y
    size = math.ceil(len(x) / (most // 2))
    groups = [slice(start, start + size) for start in range(0, len(x), size)]
    kept = {group.start + int(place) for group in groups for place in (y[group].argmin(), y[group].argmax())}
    chosen = sorted(kept)
    return x[chosen], y[chosen]
