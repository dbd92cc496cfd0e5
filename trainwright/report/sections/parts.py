"""Runs in the folder of a run, beside it in a table; and tables that whoever trained has put into the report."""

from __future__ import annotations

import math
from pathlib import Path

from trainwright.plots.curves import Line, curves
from trainwright.report.blocks import Block, Picture, Section, Table, Text
from trainwright.report.lines import number
from trainwright.report.sections.curves import series_of
from trainwright.report.state import state_of
from trainwright.report.stored_run import StoredRun, is_run, last_logged, main_metric
from trainwright.report.tables import read_tables
from trainwright.report.words import shortened, value_of

_MOST = 20


def tables_section(run: StoredRun) -> Section:
    """What :func:`trainwright.report.tables.add_table` was given."""
    blocks: list[Block] = []
    for title, head, rows in read_tables(run.folder):
        blocks += [Text(title), Table(head, rows)]
    return Section("Side by side", blocks)


def children_of(folder: Path) -> list[StoredRun]:
    """Runs directly below a run, as a demo, a search or a recipe leaves them."""
    try:
        below = sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    except OSError:
        return []
    ours = [path for path in below if not path.name.startswith((".", "checkpoint-", "previous-")) and is_run(path)]
    return [StoredRun(path) for path in ours[:_MOST]]


def children_section(run: StoredRun) -> Section:
    """This run and those in its folder, in numbers."""
    below = children_of(run.folder)
    if not below:
        return Section("Runs in its folder")
    rows = [_row("this run", run), *(_row(child.name, child) for child in below)]
    text = "Each has a report.html of its own in its folder."
    blocks: list[Block] = [Table(("run", "state", "steps", "last", "best"), rows), Text(text)]
    return Section("Runs in its folder", [*blocks, *_together(run, below)])


def _together(run: StoredRun, below: list[StoredRun]) -> list[Block]:
    """The curve that says most, of all of them over each other."""
    known = {"this run": series_of(run.metrics)} | {child.name: series_of(child.metrics) for child in below[:6]}
    last = main_metric(last_logged(run.metrics), run.config.get("metric_for_best_model"))
    if last is None:
        return []
    lines = [Line(name, one[last[0]].steps, one[last[0]].values) for name, one in known.items() if last[0] in one]
    drawn = curves(lines, y_label=last[0], log="loss" in last[0], smooth=True) if len(lines) > 1 else ""
    return [Picture(f"{last[0]} of {len(lines)} runs", [("step", drawn)])] if drawn else []


def _row(name: str, run: StoredRun) -> tuple[str, ...]:
    last = main_metric(last_logged(run.metrics), run.config.get("metric_for_best_model"))
    best = number(run.best[0]) if run.best is not None else None
    return (
        shortened(name, 80),
        state_of(run.folder).word,
        "" if run.last_step is None else f"{run.last_step:,}",
        "" if last is None else f"{last[0]} {value_of(last[1])}",
        "" if best is None or math.isnan(best) else value_of(best),
    )
