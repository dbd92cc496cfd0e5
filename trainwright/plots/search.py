"""Pictures of a search: its course, what goes with what, and what no other trial beats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trainwright.plots.drawing import COLOURS, FAR, drawing, drawn, plain, svg_of

_BEST, _OTHER = COLOURS[1], COLOURS[0]
#: More lines than that are a carpet.
_MOST_LINES = 200


@drawn
def search_course(numbers: Sequence[int], values: Sequence[float], *, minimize: bool, y_label: str) -> str:
    """Each trial's value, and the best so far as a line.

    >>> search_course([0, 1, 2], [0.5, 0.7, 0.6], minimize=False, y_label="accuracy").startswith("<svg")
    True
    """
    found = [(n, v) for n, v in zip(numbers, values, strict=True) if abs(v) < FAR]
    if len(found) < 2:
        return ""
    x, y = np.asarray([n for n, _ in found]), np.asarray([v for _, v in found], dtype=np.float64)
    best = np.minimum.accumulate(y) if minimize else np.maximum.accumulate(y)
    with drawing(9.2, 2.8) as figure:
        axes = figure.add_subplot()
        axes.scatter(x, y, s=16, color=_OTHER, linewidths=0, label="trial")
        axes.step(x, best, where="post", color=_BEST, label="best so far")
        axes.set_xlabel("trial")
        axes.set_ylabel(plain(y_label))
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)
        return svg_of(figure)


@drawn
def parallel_lines(
    columns: Sequence[tuple[str, Sequence[Any]]], colour_by: Sequence[float], *, minimize: bool, best: int | None = None
) -> str:
    """A line for each trial across its settings and its value; dark lines are good ones, and the best is red.

    ``columns`` are name and values, numbers or words; None where a trial has none. ``best`` is a row.
    """
    rows = len(colour_by)
    if rows < 2 or not columns:
        return ""
    chosen = range(rows) if rows <= _MOST_LINES else range(rows - _MOST_LINES, rows)
    places, ticks = zip(*(_placed(values) for _, values in columns), strict=True)
    ranks = np.argsort(np.argsort(np.asarray(colour_by, dtype=np.float64)))
    goodness = ranks / max(rows - 1, 1)
    goodness = 1 - goodness if minimize else goodness
    with drawing(9.2, 3.4) as figure:
        axes = figure.add_subplot()
        for row in sorted(chosen, key=lambda row: goodness[row]):
            heights = [place[row] for place in places]
            colour, width = (_BEST, 2.0) if row == best else (_OTHER, 1.0)
            alpha = 1.0 if row == best else 0.1 + 0.7 * float(goodness[row]) ** 2
            axes.plot(range(len(columns)), heights, color=colour, alpha=alpha, linewidth=width)
        for column, marks in enumerate(ticks):
            axes.axvline(column, color="#999999", linewidth=0.8)
            for height, word in marks:
                axes.text(column, height, f" {plain(word, 16)}", fontsize=7, va="center")
        axes.set_xticks(range(len(columns)), [plain(name, 22) for name, _ in columns])
        axes.set_yticks([])
        axes.grid(visible=False)
        axes.set_xlim(-0.2, len(columns) - 0.5)
        return svg_of(figure)


def _placed(values: Sequence[Any]) -> tuple[list[float], list[tuple[float, str]]]:
    """Heights from 0 to 1, NaN where there is no value; and words beside the axis."""
    given = [value for value in values if value is not None]
    if given and all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in given):
        numbers = np.asarray([np.nan if value is None else float(value) for value in values])
        spread = numbers[np.isfinite(numbers)]
        logarithmic = bool(spread.min() > 0 and spread.max() > 30 * spread.min())
        scaled = np.log(numbers) if logarithmic else numbers
        low, high = float(np.nanmin(scaled)), float(np.nanmax(scaled))
        heights = (scaled - low) / (high - low) if high > low else np.where(np.isnan(scaled), np.nan, 0.5)
        ends = [(0.0, f"{spread.min():.4g}"), (1.0, f"{spread.max():.4g}")] if high > low else [(0.5, f"{spread[0]:g}")]
        return heights.tolist(), ends
    words = sorted({str(value) for value in given})
    heights_of = {word: (number / (len(words) - 1) if len(words) > 1 else 0.5) for number, word in enumerate(words)}
    found = [float("nan") if value is None else heights_of[str(value)] for value in values]
    return found, [(height, word) for word, height in heights_of.items()]


@drawn
def front_picture(x: Sequence[float], y: Sequence[float], on_front: Sequence[bool], x_label: str, y_label: str) -> str:
    """All trials by two metrics, and the line of those that no other beats in both."""
    across, up, first = np.asarray(x, float), np.asarray(y, float), np.asarray(on_front, bool)
    known = (np.abs(across) < FAR) & (np.abs(up) < FAR)
    across, up, first = across[known], up[known], first[known]
    if len(across) < 2:
        return ""
    with drawing(9.2, 3.2) as figure:
        axes = figure.add_subplot()
        axes.scatter(across[~first], up[~first], s=16, alpha=0.6, color=_OTHER, linewidths=0, label="trial")
        order = np.argsort(across[first])
        axes.plot(across[first][order], up[first][order], color=_BEST, marker="o", markersize=4, label="not beaten")
        if across.min() > 0 and across.max() > 30 * across.min():
            axes.set_xscale("log")
        axes.set_xlabel(plain(x_label))
        axes.set_ylabel(plain(y_label))
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)
        return svg_of(figure)
