"""Curves to zoom into, for ``trainwright report --interactive``: plotly's own script is in the file, with the data."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np

from trainwright.config.errors import ConfigError
from trainwright.plots.curves import thinned
from trainwright.plots.drawing import COLOURS, plain
from trainwright.report.blocks import Live, Page, Section
from trainwright.report.sections.curves import Series, series_of
from trainwright.report.stored_run import StoredRun

_MOST_CURVES, _MOST_POINTS = 24, 4000
_LOOK = {
    "margin": {"l": 60, "r": 10, "t": 30, "b": 40},
    "height": 320,
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "font": {"color": "#7a8087"},
    "colorway": list(COLOURS),
    "showlegend": True,
    "hovermode": "x unified",
}


def with_interactive_curves(page: Page, run: StoredRun) -> Page:
    """The page with a drawing of plotly's for each logged number in place of the pictures of curves."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise ConfigError(
            "--interactive needs plotly: pip install 'trainwright[interactive]'. Without it the report has pictures."
        ) from None
    found = series_of(run.metrics)
    losses = [name for name in found if name == "loss" or (name.startswith("eval_") and name.endswith("loss"))]
    groups = ([losses] if losses else []) + [[name] for name in found if name not in losses]
    groups = groups[:_MOST_CURVES]
    if not groups:
        return page
    drawn = {f"curve{place}": _figure([found[name] for name in names]) for place, names in enumerate(groups)}
    # No character of a name can end the script.
    data = json.dumps(drawn).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    draw = (
        f"for (const [place, figure] of Object.entries({data})) "
        "Plotly.newPlot(place, figure.data, figure.layout, {responsive: true, displayModeBar: false});"
    )
    curves = Section("Curves", [Live(place) for place in drawn])
    sections = [curves if section.title == "Curves" else section for section in page.sections]
    return replace(page, sections=sections, scripts=f"<script>{get_plotlyjs()}</script><script>{draw}</script>")


def _figure(series: list[Series]) -> dict[str, Any]:
    return {
        "data": [_trace(one) for one in series],
        "layout": {**_LOOK, "xaxis": {"title": {"text": "step"}}, "yaxis": {"exponentformat": "power"}},
    }


def _trace(series: Series) -> dict[str, Any]:
    known = np.isfinite(series.values) & np.isfinite(series.steps)
    x, y = thinned(series.steps[known], series.values[known], _MOST_POINTS)
    # Plotly reads some HTML and mathematics in names.
    name = plain(series.name).translate(str.maketrans("&<>$", "+()S"))
    return {"type": "scatter", "mode": "lines", "name": name, "x": x.tolist(), "y": y.tolist()}
