"""Shares of a whole, matrices, scatter plots and bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from trainwright.plots.drawing import COLOURS, FAR, drawing, drawn, plain, svg_of


@drawn
def share_bar(parts: Mapping[str, float], colours: Mapping[str, str] | None = None) -> str:
    """One bar that is cut into ``parts``, each with its percentage.

    >>> share_bar({"compute": 8.0, "data": 2.0}).startswith("<svg")
    True
    """
    total = sum(parts.values())
    if total <= 0:
        return ""
    with drawing(9.2, 1.0) as figure:
        axes = figure.add_subplot()
        left = 0.0
        for number, (name, value) in enumerate(parts.items()):
            share = value / total
            colour = (colours or {}).get(name, COLOURS[number % len(COLOURS)])
            axes.barh([0], [share], left=[left], color=colour, label=f"{plain(name)} {share:.1%}", height=0.7)
            left += share
        axes.set_xlim(0, 1)
        axes.set_axis_off()
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=3, handlelength=1, handleheight=1)
        return svg_of(figure)


@drawn
def matrix(names: Sequence[str], counts: Sequence[Sequence[float]]) -> str:
    """A confusion matrix: rows are what is true, columns what was predicted."""
    table = np.asarray(counts, dtype=np.float64)
    size = len(names)
    if not size or table.shape != (size, size):
        return ""
    edge = min(1.6 + 0.34 * size, 8.0)
    with drawing(edge + 0.6, edge) as figure:
        axes = figure.add_subplot()
        shares = table / np.maximum(table.sum(1, keepdims=True), 1)
        axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="equal")
        axes.grid(visible=False)
        if size <= 40:
            labels = [plain(name, 14) for name in names]
            axes.set_xticks(range(size), labels, rotation=60 if max(map(len, labels)) > 3 else 0, ha="center")
            axes.set_yticks(range(size), labels)
        if size <= 20:
            for row, column in np.argwhere(table > 0):
                ink = "white" if shares[row, column] > 0.5 else "#555555"
                text = f"{table[row, column]:g}"
                axes.text(column, row, text, ha="center", va="center", color=ink, fontsize=7)
        axes.set_xlabel("predicted")
        axes.set_ylabel("true")
        return svg_of(figure)


@drawn
def scatter(x: Sequence[float], y: Sequence[float], *, x_label: str, y_label: str, diagonal: bool = False) -> str:
    """Points, with the line on which both are equal if asked for."""
    across, up = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    known = (np.abs(across) < FAR) & (np.abs(up) < FAR)
    across, up = across[known], up[known]
    if len(across) < 2:
        return ""
    with drawing(4.4, 3.2) as figure:
        axes = figure.add_subplot()
        axes.scatter(across, up, s=8, alpha=0.6, color=COLOURS[0], linewidths=0)
        if diagonal:
            low, high = min(across.min(), up.min()), max(across.max(), up.max())
            axes.plot([low, high], [low, high], color="#999999", linewidth=0.8, linestyle=":")
        axes.set_xlabel(plain(x_label))
        axes.set_ylabel(plain(y_label))
        return svg_of(figure)


@drawn
def histogram(values: Sequence[float], *, x_label: str) -> str:
    """How often which values occur."""
    numbers = np.asarray(values, dtype=np.float64)
    numbers = numbers[np.abs(numbers) < FAR]
    if len(numbers) < 2:
        return ""
    low, high = float(numbers.min()), float(numbers.max())
    # Numbers that are the same but for rounding leave no room for bins.
    room = max(abs(low), abs(high), 1e-30) * 1e-6
    if high - low < room:
        low, high = low - room, high + room
    with drawing(4.4, 3.2) as figure:
        axes = figure.add_subplot()
        axes.hist(numbers, bins=30, range=(low, high), color=COLOURS[0])
        axes.set_xlabel(plain(x_label))
        axes.set_ylabel("samples")
        return svg_of(figure)


@drawn
def bars(values: Mapping[str, float], *, x_label: str, most: float | None = None) -> str:
    """A bar for each name, from top to bottom."""
    if not values:
        return ""
    with drawing(9.2, 0.8 + 0.2 * len(values)) as figure:
        axes = figure.add_subplot()
        axes.barh([plain(name, 48) for name in values], list(values.values()), color=COLOURS[0], height=0.7)
        axes.invert_yaxis()
        axes.grid(visible=False)
        axes.set_xlabel(plain(x_label))
        if most is not None:
            axes.set_xlim(0, most)
        axes.tick_params(axis="y", labelsize=7)
        return svg_of(figure)
