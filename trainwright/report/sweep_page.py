"""The report of a sweep, from its ``sweep.json``: the best, the course, what mattered, and every trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainwright.config.errors import ConfigError
from trainwright.core.files import replace_text
from trainwright.core.json_files import read_json
from trainwright.plots.charts import bars
from trainwright.plots.curves import Line, curves
from trainwright.plots.search import front_picture, parallel_lines, search_course
from trainwright.report.blocks import Block, Cards, Code, Page, Picture, Section, Table, Text
from trainwright.report.html_page import html_of
from trainwright.report.lines import number
from trainwright.report.markdown_page import markdown_of
from trainwright.report.page import HTML, MARKDOWN, Written, footer
from trainwright.report.words import shortened, value_of

SWEEP = "sweep.json"
_LARGEST = 2**26
_MOST_ROWS = 300
_MOST_CURVES = 4


def is_sweep(folder: Path) -> bool:
    """Return True for the folder of a sweep."""
    return (folder / SWEEP).is_file()


def read_sweep(folder: Path) -> dict[str, Any]:
    """What ``sweep.json`` says; an error where it is not what a sweep writes."""
    try:
        found = read_json(folder / SWEEP, _LARGEST)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder / SWEEP} cannot be read: {error}.") from None
    lists = isinstance(found, dict) and all(isinstance(found.get(name), list) for name in ("goals", "trials", "best"))
    if not lists or not found["goals"] or not all(isinstance(one, dict) for one in (*found["goals"], *found["trials"])):
        raise ConfigError(f"{folder / SWEEP} is not what a sweep writes: was it changed by hand?")
    return found


def write_sweep_report(folder: Path) -> Written:
    """Write ``report.html`` and ``report.md`` of a sweep."""
    page = sweep_page(folder)
    written = Written(folder / HTML, folder / MARKDOWN)
    replace_text(written.html, html_of(page, footer()), by_several=True)
    replace_text(written.markdown, markdown_of(page), by_several=True)
    return written


def sweep_page(folder: Path) -> Page:
    """The whole report."""
    found = read_sweep(folder)
    done = [one for one in found["trials"] if one.get("state") == "done"]
    sections = [_result(folder, found, done), _course(found, done), _settings(found, done), _trials(found)]
    state = "finished" if found.get("state") == "finished" else "training"
    text = f"{len(done)} of {len(found['trials'])} trials came to their end; {found.get('asked')} were asked for"
    title = shortened(f"{found.get('name')}: sweep", 120)
    return Page(title, (state, text), [section for section in sections if section.blocks])


def _goals(found: dict[str, Any]) -> list[tuple[str, bool]]:
    """(metric, whether less is better)."""
    return [(str(one.get("metric")), one.get("direction") == "minimize") for one in found["goals"]]


def _value(trial: dict[str, Any], name: str) -> float:
    values = trial.get("values")
    value = number(values.get(name)) if isinstance(values, dict) else None
    return float("nan") if value is None else value


def _chosen(trial: dict[str, Any]) -> dict[str, Any]:
    settings = trial.get("settings")
    return settings if isinstance(settings, dict) else {}


def _result(folder: Path, found: dict[str, Any], done: list[dict[str, Any]]) -> Section:
    by_number = {one.get("number"): one for one in done}
    best = [by_number[number] for number in found["best"] if number in by_number]
    if not best:
        return Section("Result", [Text("No trial has come to its end with a number yet.")])
    goals = _goals(found)
    title = "Best trials: none beats another in everything" if len(goals) > 1 else "Best"
    blocks: list[Block] = []
    if len(goals) == 1:
        cards = [(name, value_of(_value(best[0], name)), f"trial {best[0].get('number')}") for name, _ in goals]
        blocks.append(Cards([*cards, ("trials", str(len(found["trials"])), f"{len(done)} came to their end")]))
        rows = [(name, _word(value)) for name, value in _chosen(best[0]).items()]
        blocks.append(Table(("setting", "value"), rows))
    else:
        names = list(dict.fromkeys(name for one in best for name in _chosen(one)))
        head = ("trial", *(name for name, _ in goals), *names)
        rows = [_row(one, goals, names) for one in best[:_MOST_ROWS]]
        blocks.append(Table(head, rows))
        if len(goals) == 2:
            blocks += _front(found, done, goals)
    blocks.append(Text("best.yaml trains the best anew; its folder here holds the trained model."))
    blocks.append(
        Code(f"trainwright train {folder.name}/best.yaml\ntrainwright evaluate {folder.name}/{best[0].get('folder')}")
    )
    return Section(title, blocks)


def _front(found: dict[str, Any], done: list[dict[str, Any]], goals: list[tuple[str, bool]]) -> list[Block]:
    (first, _), (second, _) = goals
    best = set(found["best"])
    drawn = front_picture(
        [_value(one, second) for one in done],
        [_value(one, first) for one in done],
        [one.get("number") in best for one in done],
        second,
        first,
    )
    return [Picture(f"{first} against {second}", [("", drawn)])] if drawn else []


def _course(found: dict[str, Any], done: list[dict[str, Any]]) -> Section:
    blocks: list[Block] = []
    for name, minimize in _goals(found):
        numbers = [int(number(one.get("number")) or 0) for one in done]
        drawn = search_course(numbers, [_value(one, name) for one in done], minimize=minimize, y_label=name)
        if drawn:
            blocks.append(Picture(f"{name} of each trial, and the best so far", [("", drawn)]))
    lines = [line for one in found["trials"][-200:] if (line := _line(one)) is not None]
    goal, minimize = _goals(found)[0]
    lines = sorted(lines, key=lambda line: float(line.y[-1]), reverse=not minimize)[:_MOST_CURVES]
    drawn = curves(lines, x_label="evaluation", y_label=goal) if lines else ""
    if drawn:
        blocks.append(Picture("The best trials while they were trained", [("", drawn)]))
    return Section("Course", blocks)


def _line(trial: dict[str, Any]) -> Line | None:
    points = [point for point in trial.get("course") or [] if isinstance(point, list) and len(point) == 2]
    known = [(x, y) for a, b in points if (x := number(a)) is not None and (y := number(b)) is not None]
    if len(known) < 2:
        return None
    return Line(f"trial {trial.get('number')}", [x for x, _ in known], [y for _, y in known])


def _settings(found: dict[str, Any], done: list[dict[str, Any]]) -> Section:
    blocks: list[Block] = []
    raw = found.get("importance")
    importance = {
        str(name): known
        for name, value in (raw.items() if isinstance(raw, dict) else ())
        if (known := number(value)) is not None
    }
    if importance:
        text = "How much of the spread of the results each setting explains, among the trials that came to their end."
        drawn = bars(importance, x_label="share", most=1.0)
        blocks += [Text(text), *([Picture("importance of the settings", [("", drawn)])] if drawn else [])]
    names = list(dict.fromkeys(name for one in done for name in _chosen(one)))
    goal, minimize = _goals(found)[0]
    if names and len(done) > 1:
        columns = [(name.rpartition(".")[2], [_chosen(one).get(name) for one in done]) for name in names[:8]]
        values = [_value(one, goal) for one in done]
        best = next((row for row, one in enumerate(done) if one.get("number") in found["best"][:1]), None)
        drawn = parallel_lines([*columns, (goal, values)], values, minimize=minimize, best=best)
        if drawn:
            blocks += [Text("Each line is a trial; the red one is the best.")]
            blocks += [Picture("settings and results of all trials", [("", drawn)])]
    return Section("Settings", blocks)


def _trials(found: dict[str, Any]) -> Section:
    goals = _goals(found)
    names = list(dict.fromkeys(name for one in found["trials"] for name in _chosen(one)))
    head = ("trial", *(name for name, _ in goals), *(name.rpartition(".")[2] for name in names), "how it ended")
    rows = [
        (*_row(one, goals, names), shortened(" ".join(filter(None, (one.get("state"), _why(one)))), 160))
        for one in found["trials"][:_MOST_ROWS]
    ]
    blocks: list[Block] = [Table(head, rows)] if rows else []
    if len(found["trials"]) > _MOST_ROWS:
        blocks.append(Text(f"{len(found['trials']) - _MOST_ROWS} more are in {SWEEP}."))
    return Section("All trials", blocks)


def _why(trial: dict[str, Any]) -> str:
    parent = trial.get("parent")
    began = "" if parent is None else f"began with the weights of trial {parent}"
    return f"({trial['reason']})" if trial.get("reason") else began and f"({began})"


def _row(trial: dict[str, Any], goals: list[tuple[str, bool]], names: list[str]) -> tuple[str, ...]:
    values = ("" if _value(trial, name) != _value(trial, name) else value_of(_value(trial, name)) for name, _ in goals)
    chosen = _chosen(trial)
    return (str(trial.get("number")), *values, *(_word(chosen[name]) if name in chosen else "" for name in names))


def _word(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else shortened(str(value), 80)
