"""Several runs next to each other: the settings that differ, the numbers, the curves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainwright.config.errors import ConfigError
from trainwright.plots.curves import Line, curves
from trainwright.report.blocks import Block, Page, Picture, Section, Table
from trainwright.report.json_forms import ComparedRun, Comparison
from trainwright.report.page import refuse_what_is_no_run
from trainwright.report.sections.curves import series_of
from trainwright.report.showing import last_numbers
from trainwright.report.state import state_of
from trainwright.report.stored_run import StoredRun
from trainwright.report.time_spent import goodput
from trainwright.report.words import duration, shortened, value_of

#: They differ in all runs, and say nothing.
_OF_THE_FOLDER = {"output_dir", "run_name", "logging_dir", "resume_from_checkpoint", "resume", "hub_model_id"}
_MOST_RUNS, _MOST_PICTURES = 30, 16
#: Marks a setting that a run does not have.
MISSING = "-"


def runs_to_compare(folders: list[Path]) -> list[StoredRun]:
    """The runs, in the order in which they were named."""
    if len(folders) < 2:
        raise ConfigError("A comparison needs two runs or more: trainwright compare runs/a runs/b.")
    if len(folders) > _MOST_RUNS:
        raise ConfigError(f"{len(folders)} runs are too many to compare: name {_MOST_RUNS} at most.")
    for folder in folders:
        refuse_what_is_no_run(folder)
    return [StoredRun(folder) for folder in folders]


def comparison_of(runs: list[StoredRun], html: Path | None = None) -> Comparison:
    """Everything that ``trainwright compare --json`` prints."""
    return {
        "runs": [_facts(run) for run in runs],
        "settings": differing([{**run.config, **run.experiment} for run in runs]),
        "html": None if html is None else str(html),
    }


def _facts(run: StoredRun) -> ComparedRun:
    parts = goodput(run.laps)
    best = run.best
    return {
        "folder": str(run.folder),
        "state": state_of(run.folder).word,
        "step": run.last_step,
        "seconds": round(sum(parts.values()), 3) if parts else None,
        "metrics": last_numbers(run.folder),
        "best": None
        if best is None
        else {"metric": run.config.get("metric_for_best_model"), "value": best[0], "step": best[1]},
    }


def differing(configs: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Settings that are not the same in all of them.

    >>> differing([{"seed": 1, "lr": 0.1}, {"seed": 1, "lr": 0.2, "optim": "sgd"}])
    {'lr': [0.1, 0.2], 'optim': ['-', 'sgd']}
    """
    names = dict.fromkeys(name for config in configs for name in config)
    values = {name: [config.get(name, MISSING) for config in configs] for name in names if name not in _OF_THE_FOLDER}
    return {name: found for name, found in values.items() if any(one != found[0] for one in found)}


def names_of(runs: list[StoredRun]) -> list[str]:
    """Short names that tell the runs apart."""
    short = [run.name for run in runs]
    return short if len(set(short)) == len(short) else [str(run.folder) for run in runs]


def tables_of(found: Comparison, names: list[str]) -> list[tuple[str, Table]]:
    """The comparison as tables, a column for each run."""
    runs = found["runs"]
    rows: list[list[str]] = [
        ["state", *(run["state"] for run in runs)],
        ["step", *("" if run["step"] is None else f"{run['step']:,}" for run in runs)],
        ["time", *("" if run["seconds"] is None else duration(run["seconds"]) for run in runs)],
    ]
    if any(run["best"] for run in runs):
        rows.append(["best", *(_best(run) for run in runs)])
    metrics = dict.fromkeys(name for run in runs for name in run["metrics"])
    for name in list(metrics)[:60]:
        rows.append([shortened(name, 60), *(_metric(run["metrics"], name) for run in runs)])
    head = ["", *(shortened(name, 60) for name in names)]
    tables = [("Numbers", Table(head, rows))]
    settings = [[shortened(name, 60), *map(value_of, values)] for name, values in found["settings"].items()]
    if settings:
        tables.append(("Settings that differ", Table(head, settings)))
    return tables


def _best(run: ComparedRun) -> str:
    best = run["best"]
    return "" if best is None else f"{best['metric']} {value_of(best['value'])} at step {best['step']}"


def _metric(metrics: dict[str, float | None], name: str) -> str:
    if name not in metrics:
        return MISSING
    return "nan" if metrics[name] is None else value_of(metrics[name])


def page_of_comparison(runs: list[StoredRun], found: Comparison) -> Page:
    """The same as a page, with the curves of all runs over each other."""
    names = names_of(runs)
    sections = [Section(title, [table]) for title, table in tables_of(found, names)]
    known = [series_of(run.metrics) for run in runs]
    drawn: list[Block] = []
    for name in list(dict.fromkeys(name for one in known for name in one))[:_MOST_PICTURES]:
        lines = [
            Line(label, one[name].steps, one[name].values)
            for label, one in zip(names, known, strict=True)
            if name in one
        ]
        svg = curves(lines, y_label=name, log="loss" in name, smooth=True)
        if svg:
            drawn.append(Picture(f"{name} of {len(lines)} runs", [("step", svg)]))
    return Page("Comparison of runs", ("", ", ".join(names)), [*sections, Section("Curves", drawn)])
