"""What all pictures have in common: their look, and how they become SVG text."""

from __future__ import annotations

import base64
import importlib.util
import io
import re
import unicodedata
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any, Literal, ParamSpec

Options = ParamSpec("Options")

#: Told apart also by people who see few colours (Paul Tol's "bright").
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#999999")
#: Numbers beyond it are drawn by nobody.
FAR = 1e200
#: Read on white and on black.
_INK = "#7a8087"
_SETTINGS: dict[str, Any] = {
    "axes.edgecolor": _INK,
    "axes.facecolor": "none",
    "axes.formatter.use_mathtext": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": _INK,
    "axes.labelsize": 9,
    "axes.prop_cycle": None,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": _INK,
    "axes.titlesize": 9,
    "axes.unicode_minus": False,
    "figure.facecolor": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "grid.alpha": 0.25,
    "grid.color": _INK,
    "grid.linewidth": 0.6,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "legend.labelcolor": _INK,
    "lines.linewidth": 1.6,
    "savefig.facecolor": "none",
    # Letters stay letters: smaller, and sharp. The same picture for the same numbers.
    "svg.fonttype": "none",
    "svg.hashsalt": "trainwright",
    "text.color": _INK,
    # A metric may be called "$\\frac{" or what it likes.
    "text.parse_math": False,
    "text.usetex": False,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}


_LONG = re.compile(r"(\d+\.\d\d)\d+")


@cache
def can_draw() -> bool:
    """Return False where matplotlib is not installed: then reports have words and tables alone."""
    return importlib.util.find_spec("matplotlib") is not None


def drawn(draw: Callable[Options, str]) -> Callable[Options, str]:
    """Let ``draw`` return an empty text where nothing can be drawn."""

    @wraps(draw)
    def or_nothing(*args: Options.args, **kwargs: Options.kwargs) -> str:
        return draw(*args, **kwargs) if can_draw() else ""

    return or_nothing


@contextmanager
def drawing(width: float, height: float, *, layout: Literal["constrained"] | None = "constrained") -> Iterator[Any]:
    """A matplotlib figure of so many inches; whatever style the process has chosen is left out of it.

    Without ``layout`` whoever draws sets the margins: to measure all words takes as long as to draw them.
    """
    import matplotlib
    from matplotlib.figure import Figure

    known = {name: value for name, value in _SETTINGS.items() if value is not None and name in matplotlib.rcParams}
    with matplotlib.rc_context(), warnings.catch_warnings():
        # A character that no font here has is drawn by whoever looks at the picture.
        warnings.simplefilter("ignore")
        matplotlib.rcParams.update(matplotlib.rcParamsDefault)
        matplotlib.rcParams.update(known)
        yield Figure(figsize=(width, height), layout=layout)


def svg_of(figure: Any) -> str:
    """The figure as an ``<svg>`` element; within a :func:`drawing`."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    found = text.getvalue()
    # Without the XML declaration and the DOCTYPE, which names an address that nobody has to ask; sizes, which stand in
    # quotes, in fewer digits.
    return re.sub(r'"[^"<>]*"', lambda size: _LONG.sub(r"\1", size[0]), found[found.index("<svg") :])


def as_address(svg: str) -> str:
    """The picture as the ``src`` of an ``<img>``: there no script runs, and names within it meet no others of the page.

    >>> as_address("<svg></svg>")
    'data:image/svg+xml;base64,PHN2Zz48L3N2Zz4='
    """
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode('utf-8', 'replace')).decode()}"


def plain(name: object, longest: int = 40) -> str:
    """A name that may stand in a picture: one line, nothing invisible, not too long.

    >>> plain("loss\\n\\x1b[31m")
    'loss  [31m'
    """
    text = "".join(c if unicodedata.category(c)[0] not in "CZ" else " " for c in str(name)[: longest + 1])
    return text if len(text) <= longest else text[: longest - 1] + "…"
