"""Curves of what was logged and of how fast it went, against steps, time, tokens and operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainwright.plots.curves import Line, curves
from trainwright.report.blocks import Beside, Block, Folded, Picture, Section
from trainwright.report.facts import is_bookkeeping
from trainwright.report.lines import Entry, column
from trainwright.report.stored_run import StoredRun
from trainwright.report.time_spent import Axes, kept_and_redone
from trainwright.report.words import shortened

#: What is written below the picture.
_AXES = {"step": "step", "time": "", "tokens": "tokens", "flops": "floating point operations"}
#: Pictures of evaluation metrics that are open, and all other names that are drawn at all.
_OPEN, _MOST = 4, 24
#: Names that are looked at: each is looked for in every line.
_MOST_NAMES = 500
#: As many as there are colours, and some: more lines over each other say nothing.
_MOST_GROUPS = 10
#: Single curves stand in half the width.
_HALF = (4.5, 2.2)


@dataclass(frozen=True)
class Series:
    """All values of one logged name, by step."""

    name: str
    steps: np.ndarray
    values: np.ndarray


def series_of(lines: Sequence[Entry]) -> dict[str, Series]:
    """Every number that was logged more than once, in the order of its first appearance.

    >>> found = series_of([{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0, "epoch": 1.0}])
    >>> found["loss"].values.tolist()
    [3.0, 2.0]
    """
    # The summary at the end is no point of any curve.
    known = [line for line in lines if "train_loss" not in line]
    steps = column(known, "step")
    # Keys of lines come in a few combinations, however many lines there are.
    names = list(dict.fromkeys(name for keys in dict.fromkeys(map(tuple, known)) for name in keys))[:_MOST_NAMES]
    found = {}
    for name in names:
        if is_bookkeeping(name):
            continue
        values = column(known, name)
        is_there = np.array([name in line for line in known]) & np.isfinite(steps)
        if np.isfinite(values[is_there]).sum() > 1:
            found[name] = Series(name, steps[is_there], values[is_there])
    return found


@dataclass(frozen=True)
class Logged:
    """What was logged, by what it says."""

    losses: list[Series]
    #: Losses of classes or sources: ``log_loss_per``.
    groups: list[Series]
    metrics: list[Series]
    #: The learning rate and the gradient norm.
    driven: list[Series]
    others: list[Series]

    @classmethod
    def of(cls, run: StoredRun) -> Logged:
        found = series_of(run.metrics)
        evaluated = [one for name, one in found.items() if name.startswith("eval_")]
        # The loss of training first: it keeps its colour.
        losses = [*([found["loss"]] if "loss" in found else []), *(one for one in evaluated if _is_loss(one))]
        metrics = [one for one in evaluated if not _is_loss(one)]
        driven = [found[name] for name in ("learning_rate", "grad_norm") if name in found]
        groups = [one for name, one in found.items() if name.startswith("loss/")][:_MOST_GROUPS]
        shown = {one.name for one in (*losses, *metrics, *driven, *groups)}
        return cls(losses, groups, metrics, driven, [one for name, one in found.items() if name not in shown])


def _is_loss(series: Series) -> bool:
    return series.name.endswith("loss")


def series_groups(run: StoredRun) -> list[list[Series]]:
    """Everything that has a curve; each list belongs into one drawing."""
    logged = Logged.of(run)
    single = [*logged.metrics, *logged.driven, *_speed(run), *logged.others]
    return [logged.losses, logged.groups, *([one] for one in single)]


def curve_section(run: StoredRun) -> Section:
    """Loss and metrics first, then what drives them, then the rest in a folder."""
    logged, axes = Logged.of(run), Axes.of(run.laps)
    blocks: list[Block] = []
    if logged.losses:
        blocks.append(_against_all(logged.losses[:6], axes, "loss"))
    if logged.groups:
        blocks.append(_against_all(logged.groups, axes, "loss of each group"))
    blocks += [_against_all([one], axes, one.name) for one in logged.metrics[:_OPEN]]
    small = [*(_plain(one, log=one.name == "grad_norm") for one in logged.driven), *map(_plain, _speed(run))]
    rest = [_plain(one) for one in [*logged.metrics[_OPEN:], *logged.others][:_MOST]]
    blocks = [block for block in blocks if not isinstance(block, Picture) or _is_drawn(block)]
    if small := [picture for picture in small if _is_drawn(picture)]:
        blocks.append(Beside(small))
    if rest := [picture for picture in rest if _is_drawn(picture)]:
        blocks.append(Folded(f"Everything else that was logged ({len(rest)})", [Beside(rest)]))
    return Section("Curves", blocks)


def _is_drawn(picture: Picture) -> bool:
    return any(svg for _, svg in picture.svgs)


def _against_all(series: list[Series], axes: Axes, what: str) -> Picture:
    """One picture for each axis on which the run has got anywhere."""
    tabs = []
    for axis, label in _AXES.items():
        unit = 1.0
        if axis == "time":
            label, unit = _unit_of_time(axes)
        lines = [
            Line(one.name, one.steps if axis == "step" else axes.at(one.steps, axis) / unit, one.values)
            for one in series
        ]
        known = axis == "step" or (len(axes.step) and getattr(axes, axis)[-1] > 0)
        tabs.append((axis, curves(lines, x_label=label, log="loss" in what, smooth=True) if known else ""))
    return Picture(_alt(series, what), tabs)


def _unit_of_time(axes: Axes) -> tuple[str, float]:
    total = axes.time[-1] if len(axes.time) else 0.0
    for name, seconds in (("days", 86_400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if total > 2 * seconds:
            return name, seconds
    return "seconds", 1.0


def _alt(series: list[Series], what: str) -> str:
    """For whoever does not see the picture: where each curve begins and ends."""
    ends = (f"{one.name} from {one.values[0]:.4g} to {one.values[-1]:.4g}" for one in series)
    return shortened(f"{what}: {'; '.join(ends)}")


def _plain(series: Series, *, log: bool = False) -> Picture:
    line = Line(series.name, series.steps, series.values)
    return Picture(_alt([series], series.name), [("step", curves([line], size=_HALF, log=log, smooth=True))])


def _speed(run: StoredRun) -> list[Series]:
    """Throughput, memory and MFU, by step."""
    kept = [lap for lap in kept_and_redone(run.laps)[0] if lap.steps]
    lines, steps = [lap.line for lap in kept], np.array([lap.step for lap in kept], dtype=np.float64)
    rates = ((f"{unit} per second", column(lines, f"{unit}_per_second")) for unit in ("tokens", "samples", "steps"))
    throughput = next((found for found in rates if np.isfinite(found[1]).sum() > 1), None)
    others = [("memory in GiB", column(lines, "memory") / 2**30), ("MFU in %", column(lines, "mfu") * 100)]
    drawn = [one for one in [throughput, *others] if one is not None and np.isfinite(one[1]).sum() > 1]
    return [Series(name, steps, values) for name, values in drawn]
