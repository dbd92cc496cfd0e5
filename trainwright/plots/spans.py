"""What lasts from when to when: a bar for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainwright.plots.drawing import COLOURS, drawing, drawn, plain, svg_of


@dataclass(frozen=True)
class Span:
    """One bar: a name, a few words below it, and where it begins and ends."""

    name: str
    words: str
    start: float
    #: None: it goes on to the end.
    end: float | None


@drawn
def spans(rows: Sequence[Span], length: float, *, x_label: str) -> str:
    """``rows`` below each other over ``length``.

    >>> spans([Span("pruning", "to 90 %", 1.0, 4.0)], 5.0, x_label="epoch").startswith("<svg")
    True
    """
    with drawing(9.2, 0.7 + 0.5 * max(len(rows), 1)) as figure:
        axes = figure.add_subplot()
        for place, row in enumerate(rows):
            begin = min(row.start, length)
            end = length if row.end is None else min(row.end, length)
            axes.barh([place], [max(end - begin, length * 0.006)], left=[begin], color=COLOURS[0], height=0.32)
            if row.end is None:
                axes.plot([length], [place], marker=">", color=COLOURS[0], markersize=7, clip_on=False)
            axes.text(0, place + 0.42, plain(row.words, 120), fontsize=7, va="center")
        axes.set_yticks(range(len(rows)), [plain(row.name, 34) for row in rows])
        axes.set_ylim(len(rows) - 0.3, -0.5)
        axes.set_xlim(0, length)
        axes.xaxis.tick_top()
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x")
        axes.set_xlabel(plain(x_label))
        return svg_of(figure)
