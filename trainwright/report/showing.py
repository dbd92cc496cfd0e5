"""What a run's folder says about the run: ``trainwright show``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainwright.checkpoint.directory import list_checkpoints, step_of
from trainwright.checkpoint.identity import read_owner
from trainwright.config.errors import ConfigError
from trainwright.report.facts import is_bookkeeping
from trainwright.report.json_forms import ShownRun
from trainwright.report.lines import last_lines, number
from trainwright.report.listing import known, size_below
from trainwright.report.page import HTML
from trainwright.report.sections.settings import said
from trainwright.report.state import state_of
from trainwright.report.stored_run import METRICS, StoredRun
from trainwright.report.words import size_of, value_of, when


def facts_of_run(folder: Path) -> ShownRun:
    """Everything that ``trainwright show --json`` prints."""
    run = StoredRun(folder)
    checkpoints = list_checkpoints(folder)
    if not run.config and read_owner(folder) is None and not checkpoints:
        raise ConfigError(f"{folder} is not the folder of a run: it has no config.yaml, run.json or checkpoint.")
    state = state_of(folder, last_checkpoint=max((step_of(path) for path in checkpoints), default=None))
    best = run.best
    return {
        "folder": str(folder),
        "id": run.id,
        "began": run.began,
        "state": state.text,
        "state_word": state.word,
        "finished": None if run.finished is None else run.finished._asdict(),
        "metrics": last_numbers(folder),
        "best": None
        if best is None
        else {"metric": run.config.get("metric_for_best_model"), "value": best[0], "step": best[1]},
        "checkpoints": [path.name for path in checkpoints],
        "bytes": size_below(folder),
        "report": str(folder / HTML) if (folder / HTML).is_file() else None,
        "settings": said(run.config),
        "history": run.history,
    }


def last_numbers(folder: Path) -> dict[str, float | None]:
    """The newest value of each number that was logged lately."""
    found: dict[str, float | None] = {}
    for line in last_lines(folder / METRICS, 65_536):
        for name, value in line.items():
            if not is_bookkeeping(name) and (one := number(value)) is not None:
                found[name] = known(one)
    return found


def lines_of_run(facts: ShownRun) -> list[str]:
    """The same for people; what somebody else may have written into a file moves no cursor."""
    return [escaped(line) for line in _lines(facts)]


def escaped(line: str) -> str:
    """A line without anything that a terminal obeys.

    >>> escaped("loss\\x1b[2J")
    'loss\\\\x1b[2J'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def _lines(facts: ShownRun) -> list[str]:
    began = "" if facts["began"] is None else f", begun {when(facts['began'])}"
    lines = [f"Run {facts['id'] or 'without a name'} in {facts['folder']}{began}", f"  state        {facts['state']}"]
    shown = [f"{name} {'nan' if value is None else value_of(value)}" for name, value in facts["metrics"].items()]
    if shown:
        lines.append(f"  last         {', '.join(shown[:12])}")
    if (best := facts["best"]) is not None:
        lines.append(f"  best         {best['metric']} {value_of(best['value'])} at step {best['step']}")
    lines.append(f"  checkpoints  {', '.join(facts['checkpoints']) or 'none'}")
    lines.append(f"  size         {size_of(facts['bytes'])}")
    lines.append(f"  report       {facts['report'] or 'none yet: trainwright report ' + facts['folder']}")
    lines.append("  settings     those that are not the defaults, as they are now")
    lines += [f"    {name:<32}{value!r}" for name, value in facts["settings"].items()]
    if not facts["history"]:
        return [*lines, "  history      nothing was changed since it began"]
    lines.append("  history      what was changed while it went on")
    for entry in facts["history"]:
        change = f"{entry['what']}: {entry['from']!r} -> {entry['to']!r}"
        lines.append(f"    step {entry['step']!s:<6} {change}  ({_by(entry)})")
    return lines


def _by(entry: dict[str, Any]) -> str:
    command = entry.get("command")
    words = f", by {' '.join(map(str, command))}" if isinstance(command, list) and command else ""
    return f"{entry.get('effect', 'changed')}, {when(entry.get('when'))}{words}"
