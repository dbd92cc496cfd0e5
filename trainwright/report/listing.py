"""All runs below a folder, each in a line: from the ends of their files, so that ten thousand take seconds."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainwright.checkpoint.directory import list_checkpoints
from trainwright.checkpoint.identity import read_owner
from trainwright.core.files import open_regular
from trainwright.core.finished import FILE as FINISHED
from trainwright.core.finished import read_finished
from trainwright.report.json_forms import ListedRun
from trainwright.report.lines import last_lines
from trainwright.report.page import HTML
from trainwright.report.state import state_of
from trainwright.report.stored_run import METRICS, PERFORMANCE, is_run, last_logged, main_metric, planned_in
from trainwright.report.sweep_page import is_sweep
from trainwright.report.words import ago, shortened, size_of, value_of

#: How far below the folder runs are looked for.
_DEEPEST = 4
_PARTS = ("checkpoint-", "previous-", ".")
_BEST = re.compile(rb'"best_metric":\s*(-?[0-9][0-9.eE+-]*|NaN|null)')
_METRIC = re.compile(rb"^metric_for_best_model: *['\"]?([^'\"\r\n]{1,80})", re.MULTILINE)


def runs_below(folder: Path) -> Iterator[Path]:
    """Folders of runs, in the order of their names; also runs inside of runs, but no trials of a sweep below it."""
    yield from _below(folder, 0)


def sweeps_below(folder: Path) -> list[Path]:
    """Folders of sweeps, whose trials :func:`runs_below` leaves out."""
    try:
        with os.scandir(folder) as entries:
            found = sorted(Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []
    return [path for path in found if is_sweep(path)]


def _below(folder: Path, depth: int) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return
    if is_run(folder):
        yield folder
    if depth < _DEEPEST and not (depth and is_sweep(folder)):
        for entry in found:
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(_PARTS):
                yield from _below(Path(entry.path), depth + 1)


def listed(folder: Path, root: Path) -> ListedRun:
    """What there is to say of a run in one line."""
    end, owner, checkpoints = read_finished(folder), read_owner(folder), list_checkpoints(folder)
    # A line may be longer than most files' last kilobytes.
    line = last_logged(last_lines(folder / METRICS, 8192) or last_lines(folder / METRICS, 2**18))
    laps = last_lines(folder / PERFORMANCE) if end is None else []
    asked, best = _best(folder, checkpoints)
    shown = main_metric(line, asked) or (None, None)
    steps = [one["step"] for one in (line, *laps[-1:]) if type(one.get("step")) is int]
    return {
        "folder": _name(folder, root),
        "state": state_of(folder).word,
        "step": end.step if end is not None else max(steps, default=None),
        "max_steps": planned_in(laps) if end is None else end.max_steps,
        "metric": shown[0],
        "last": known(shown[1]),
        "best_metric": asked,
        "best": best,
        "began": None if owner is None else owner.run.began,
        "active": _active(folder),
        "bytes": size_below(folder),
        "report": str(folder / HTML) if (folder / HTML).is_file() else None,
    }


def _name(folder: Path, root: Path) -> str:
    return str(folder.relative_to(root)) if folder != root else str(folder)


def known(value: float | None) -> float | None:
    """JSON has no NaN."""
    return value if value is not None and math.isfinite(value) else None


def _best(folder: Path, checkpoints: list[Path]) -> tuple[str | None, float | None]:
    """Which metric decides, and its best value: from the beginnings of two files, without reading them whole."""
    asked = _METRIC.search(_head(folder / "config.yaml", 16_384))
    name = asked[1].decode("utf-8", "replace").strip() if asked is not None else "null"
    # A run that goes on, or was killed, has the record of an earlier end in its folder.
    is_over = (folder / FINISHED).is_file()
    for place in [folder, *checkpoints[-1:]] if is_over else [*checkpoints[-1:], folder]:
        found = _BEST.search(_head(place / "trainer_state.json", 4096))
        if found is not None:
            return (None if name == "null" else name), known(_number(found[1]))
    return (None if name == "null" else name), None


def _number(text: bytes) -> float | None:
    try:
        return float(text)
    except ValueError:
        # null, or what only looks like a number.
        return None


def _head(path: Path, size: int) -> bytes:
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            return file.read(size)
    except OSError:
        return b""


def _active(folder: Path) -> float | None:
    times = []
    for name in (METRICS, "events.jsonl", "config.yaml"):
        try:
            times.append((folder / name).stat().st_mtime)
        except OSError:
            continue
    return max(times, default=None)


def size_below(folder: Path) -> int:
    """Bytes of all files below a folder; links are not followed."""
    size, waiting = 0, [str(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        size += entry.stat(follow_symlinks=False).st_size
        except OSError:
            continue
    return size


HEAD = ("run", "state", "step", "last", "best", "active", "size")


def row_of(run: ListedRun, now: float) -> tuple[str, ...]:
    """The same as words."""
    last, best = run["last"], run["best"]
    of = run["max_steps"]
    steps = "" if run["step"] is None else f"{run['step']:,}"
    return (
        shortened(run["folder"], 120),
        run["state"],
        f"{steps} of {of:,}" if of is not None and of != run["step"] else steps,
        "" if run["metric"] is None else f"{run['metric']} {'nan' if last is None else value_of(last)}",
        "" if best is None else f"{_short(run['best_metric'])} {value_of(best)}",
        f"{age} ago" if (age := ago(run["active"], now)) else "",
        size_of(run["bytes"]),
    )


def _short(name: Any) -> str:
    return "" if name is None else str(name)
