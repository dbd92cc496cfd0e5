"""How weights and gradients were spread over the steps, from ``histograms.jsonl`` (``log_histograms``)."""

from __future__ import annotations

import numpy as np

from trainwright.plots.bands import SHARES, bands
from trainwright.report.blocks import Beside, Block, Folded, Picture, Section, Text
from trainwright.report.lines import Entry, number
from trainwright.report.stored_run import StoredRun
from trainwright.report.words import shortened

#: Parameters that have a picture, evenly spread over the network; steps that are drawn; bins that a line may have.
_MOST, _MOST_STEPS, _MOST_BINS = 8, 200, 1000
_EXPLAINED = (
    "The line is the median. 68 % of the numbers lie in the dark band, 96 % in the light one. Gradients that shrink "
    "towards nothing, or grow from layer to layer, are seen here first."
)


def spread_section(run: StoredRun) -> Section:
    """Gradients and weights of some layers, each in a picture."""
    section = Section("Weights and gradients")
    lines = run.histograms
    lines = lines[:: max(1, -(-len(lines) // _MOST_STEPS))]
    for kind in ("gradients", "weights"):
        pictures = _pictures(lines, kind)
        if pictures:
            blocks: list[Block] = [Beside(pictures)]
            section.blocks += blocks if kind == "gradients" else [Folded("Weights", blocks)]
    if section.blocks:
        section.blocks.insert(0, Text(_EXPLAINED))
    return section


def _pictures(lines: list[Entry], kind: str) -> list[Picture]:
    known: dict[str, list[tuple[float, list[float]]]] = {}
    for line in lines:
        found, step = line.get(kind), number(line.get("step"))
        if not isinstance(found, dict) or step is None:
            continue
        for name, one in found.items():
            if (values := _quantiles(one)) is not None:
                known.setdefault(name, []).append((step, values))
    # Matrices say more than the few numbers of a bias; of many, some from every part of the network.
    drawable = [name for name, points in known.items() if len(points) > 1]
    names = [name for name in drawable if not name.endswith("bias")] or drawable
    chosen = [names[place] for place in np.linspace(0, len(names) - 1, min(_MOST, len(names))).astype(int)]
    pictures = []
    for name in chosen:
        steps, values = zip(*known[name], strict=True)
        drawn = bands(f"{name}, {kind}", steps, values)
        if drawn:
            alt = shortened(f"{kind} of {name}: median from {values[0][2]:.3g} to {values[-1][2]:.3g}", 200)
            pictures.append(Picture(alt, [("", drawn)]))
    return pictures


def _quantiles(histogram: object) -> list[float] | None:
    """The values below which :data:`SHARES` of the numbers lie, between the edges of the bins in proportion.

    >>> _quantiles({"low": 0.0, "high": 4.0, "counts": [1, 1, 1, 1]})[2]
    2.0
    """
    if not isinstance(histogram, dict):
        return None
    low, high, counts = number(histogram.get("low")), number(histogram.get("high")), histogram.get("counts")
    if low is None or high is None or not np.isfinite([low, high]).all() or not high > low:
        return None
    if not isinstance(counts, list) or not 0 < len(counts) <= _MOST_BINS:
        return None
    numbers = [number(one) for one in counts]
    if any(one is None or not 0 <= one < 2**63 for one in numbers) or not sum(one or 0 for one in numbers):
        return None
    cumulated = np.concatenate([[0.0], np.cumsum(np.array(numbers, dtype=np.float64))])
    edges = np.linspace(low, high, len(counts) + 1)
    return np.interp(SHARES, cumulated / cumulated[-1], edges).tolist()
