"""Curves: numbers over steps, time or tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainwright.plots.drawing import COLOURS, FAR, drawing, drawn, plain, svg_of

#: More points than that are drawn on top of each other: of each group of neighbours the least and the greatest stay.
MOST_POINTS = 480
#: Few points are shown as dots too: two evaluations are a line that says nothing.
_FEW = 25
#: From so many points on, a curve is drawn as a moving mean with the points themselves faintly behind it.
_NOISY = 60


@dataclass(frozen=True)
class Line:
    """One curve."""

    name: str
    x: Sequence[float] | np.ndarray
    y: Sequence[float] | np.ndarray

    def finite(self) -> tuple[np.ndarray, np.ndarray]:
        x, y = np.asarray(self.x, dtype=np.float64), np.asarray(self.y, dtype=np.float64)
        known = np.isfinite(x) & np.isfinite(y) & (np.abs(y) < FAR) & (np.abs(x) < FAR)
        return x[known], y[known]


@drawn
def curves(
    lines: Sequence[Line],
    *,
    x_label: str = "step",
    y_label: str = "",
    size: tuple[float, float] = (9.2, 2.8),
    log: bool = False,
    smooth: bool = False,
    marks: Sequence[tuple[float, str]] = (),
) -> str:
    """``lines`` over each other, as an SVG; ``marks`` are upright lines with a word. Empty without two numbers.

    >>> curves([Line("loss", [1, 2, 3], [3.0, 2.0, 1.5])]).startswith("<svg")
    True
    """
    found = [(line.name, *line.finite()) for line in lines]
    found = [(name, x, y) for name, x, y in found if len(x)]
    if sum(len(x) for _, x, _ in found) < 2:
        return ""
    width, height = size
    with drawing(width, height, layout=None) as figure:
        # Inches for numbers and names at the left, below and above.
        left = 0.85 if y_label else 0.68
        axes = figure.add_axes((left / width, 0.45 / height, 1 - (left + 0.12) / width, 1 - 0.78 / height))
        for number, (name, x, y) in enumerate(found):
            _draw(axes, plain(name), x, y, COLOURS[number % len(COLOURS)], smooth)
        for place, word in marks:
            axes.axvline(place, color="#999999", linewidth=0.8, linestyle=":")
            axes.text(place, 1.0, plain(word, 24), transform=axes.get_xaxis_transform(), fontsize=7, va="bottom")
        values = np.concatenate([y for _, _, y in found])
        if log and values.min() > 0 and values.max() > 30 * values.min():
            axes.set_yscale("log")
            # The usual one writes mathematics.
            axes.yaxis.set_major_formatter(lambda value, place: f"{value:g}")
            # Over few powers of ten, numbers between them too.
            between = "25" if values.max() < 100 * values.min() else ""
            axes.yaxis.set_minor_formatter(lambda value, place: f"{value:g}" if f"{value:e}"[0] in between else "")
            axes.tick_params(axis="y", which="minor", labelsize=7)
        axes.set_xlabel(plain(x_label))
        axes.set_ylabel(plain(y_label))
        # Above the curves, never on one.
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=min(len(found), 4), borderaxespad=0.2)
        return svg_of(figure)


def _draw(axes: Any, name: str, x: np.ndarray, y: np.ndarray, colour: str, smooth: bool) -> None:
    # A name that begins with an underscore is left out of legends otherwise.
    label = f" {name}"
    if smooth and len(x) >= _NOISY:
        axes.plot(*thinned(x, y), color=colour, alpha=0.25, linewidth=0.8)
        axes.plot(*thinned(x, smoothed(y)), color=colour, label=label)
        return
    dots = "o" if len(x) <= _FEW else None
    axes.plot(*thinned(x, y), color=colour, marker=dots, markersize=3.5, label=label)


def smoothed(values: np.ndarray) -> np.ndarray:
    """Each value as the mean of its neighbours, a fiftieth of the curve.

    >>> smoothed(np.array([1.0] * 100)).tolist() == [1.0] * 100
    True
    """
    half = max(len(values) // 100, 1)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    places = np.arange(len(values))
    begin, end = np.maximum(places - half, 0), np.minimum(places + half + 1, len(values))
    return (sums[end] - sums[begin]) / (end - begin)


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
