"""How numbers are spread, over the steps: the median, where most of them lie, and the outermost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainwright.plots.drawing import COLOURS, drawing, drawn, plain, svg_of

#: Shares of the numbers that lie below each line of a picture: the outer band has 96 % of them, the inner 68 %.
SHARES = (0.02, 0.16, 0.5, 0.84, 0.98)


@drawn
def bands(name: str, x: Sequence[float], quantiles: Sequence[Sequence[float]], *, x_label: str = "step") -> str:
    """One picture of ``quantiles``: for each ``x`` the values at :data:`SHARES`. Empty without two points.

    >>> bands("weight", [1, 2], [[-2, -1, 0, 1, 2], [-3, -1, 0, 1, 3]]).startswith("<svg")
    True
    """
    across, values = np.asarray(x, dtype=np.float64), np.asarray(quantiles, dtype=np.float64)
    if len(across) < 2 or values.shape != (len(across), len(SHARES)):
        return ""
    with drawing(4.5, 2.2, layout=None) as figure:
        axes = figure.add_axes((0.17, 0.21, 0.8, 0.66))
        for low, high, alpha in ((0, 4, 0.18), (1, 3, 0.35)):
            axes.fill_between(across, values[:, low], values[:, high], color=COLOURS[0], alpha=alpha, linewidth=0)
        axes.plot(across, values[:, 2], color=COLOURS[0])
        axes.set_title(plain(name, 52), loc="left", fontsize=8)
        axes.set_xlabel(plain(x_label))
        return svg_of(figure)
