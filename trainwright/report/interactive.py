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
from trainwright.report.sections.curves import Series, series_groups
from trainwright.report.stored_run import StoredRun

_MOST_CURVES, _MOST_POINTS = 24, 4000
_GRID = {"gridcolor": "rgba(122,128,135,0.25)", "zerolinecolor": "rgba(122,128,135,0.4)"}
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
#: What one chooses above a drawing.
_SCALES = {
    "type": "buttons",
    "direction": "right",
    "x": 1,
    "xanchor": "right",
    "y": 1.15,
    "bgcolor": "rgba(0,0,0,0)",
    "buttons": [
        {"label": name, "method": "relayout", "args": [{"yaxis.type": kind}]}
        for name, kind in (("linear", "linear"), ("logarithmic", "log"))
    ],
}


def with_interactive_curves(page: Page, run: StoredRun) -> Page:
    """The page with a drawing of plotly's for each logged number in place of the pictures of curves."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise ConfigError(
            "--interactive needs plotly: pip install 'trainwright[interactive]'. Without it the report has pictures."
        ) from None
    groups = [one for one in series_groups(run) if one][:_MOST_CURVES]
    if not groups:
        return page
    drawn = {f"curve{place}": _figure(series) for place, series in enumerate(groups)}
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
        "layout": {
            **_LOOK,
            "xaxis": {**_GRID, "title": {"text": "step"}},
            "yaxis": {**_GRID, "exponentformat": "power"},
            "updatemenus": [_SCALES],
        },
    }


def _trace(series: Series) -> dict[str, Any]:
    known = np.isfinite(series.values) & np.isfinite(series.steps)
    x, y = thinned(series.steps[known], series.values[known], _MOST_POINTS)
    # Plotly reads some HTML and mathematics in names.
    name = plain(series.name).translate(str.maketrans("&<>$", "+()S"))
    return {"type": "scatter", "mode": "lines", "name": name, "x": x.tolist(), "y": y.tolist()}
