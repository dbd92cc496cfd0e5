"""What a run's folder says about the run: ``trainwright show``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from trainwright.checkpoint.directory import list_checkpoints, step_of
from trainwright.checkpoint.identity import read_owner
from trainwright.checkpoint.run_lock import writer_in
from trainwright.config.arguments import TrainingArguments
from trainwright.config.errors import ConfigError
from trainwright.config.stored_arguments import stored_arguments
from trainwright.core.config_history import read_history
from trainwright.core.finished import read_finished
from trainwright.core.json_files import read_json
from trainwright.core.marker import FILE as PREEMPTED


def facts_of_run(folder: Path) -> dict[str, Any]:
    """Everything that ``trainwright show --json`` prints."""
    config, owner = stored_arguments(folder), read_owner(folder)
    checkpoints = list_checkpoints(folder)
    if config is None and owner is None and not checkpoints:
        raise ConfigError(f"{folder} is not the folder of a run: it has no config.yaml, run.json or checkpoint.")
    end = read_finished(folder)
    return {
        "folder": str(folder),
        "id": None if owner is None else owner.run.id,
        "began": None if owner is None else owner.run.began,
        "state": _state(folder, [step_of(path) or 0 for path in checkpoints]),
        "finished": None if end is None else end._asdict(),
        "checkpoints": [path.name for path in checkpoints],
        "settings": _said(config or {}),
        "history": read_history(folder),
    }


def _said(config: dict[str, Any]) -> dict[str, Any]:
    """Arguments that are not the defaults."""
    usual = TrainingArguments(output_dir="").to_dict()
    return {name: value for name, value in config.items() if name not in usual or usual[name] != value}


def lines_of_run(facts: dict[str, Any]) -> list[str]:
    """The same for people; what somebody else may have written into a file moves no cursor."""
    return [
        "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line) for line in _lines(facts)
    ]


def _lines(facts: dict[str, Any]) -> list[str]:
    began = "" if facts["began"] is None else f", begun {_when(facts['began'])}"
    lines = [f"Run {facts['id'] or 'without a name'} in {facts['folder']}{began}", f"  state        {facts['state']}"]
    lines.append(f"  checkpoints  {', '.join(facts['checkpoints']) or 'none'}")
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
    when = entry.get("when")
    return f"{entry.get('effect', 'changed')}, {_when(when)}{words}"


def _when(seconds: object) -> str:
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < 2**40:
        return "at an unknown time"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
