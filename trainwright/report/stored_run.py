"""A run as its directory tells of it; each file is read when it is first asked for, and may be missing or nonsense."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from trainwright.checkpoint.directory import list_checkpoints, step_of
from trainwright.checkpoint.identity import read_owner
from trainwright.config.stored_arguments import stored_arguments, stored_experiment
from trainwright.core.config_history import read_history
from trainwright.core.finished import Finished, read_finished
from trainwright.core.json_files import read_json, read_text
from trainwright.report.lines import Entry, last_lines, number, read_lines
from trainwright.report.time_spent import Lap, laps_of

METRICS, EVENTS, PERFORMANCE = "metrics.jsonl", "events.jsonl", "performance.jsonl"
SAMPLES, EVALUATION, LAYERS = "samples.jsonl", "evaluation.json", "layers.json"
HISTOGRAMS, PROFILE = "histograms.jsonl", "profile/summary.md"
#: Any of these makes a folder a run.
MARKS = ("config.yaml", "run.json", METRICS)


class StoredRun:
    """What there is to know of the run in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @cached_property
    def config(self) -> dict[str, Any]:
        return stored_arguments(self.folder) or {}

    @cached_property
    def experiment(self) -> dict[str, Any]:
        """Model, data, phases and callbacks of an experiment, by dotted names."""
        return stored_experiment(self.folder)

    @cached_property
    def history(self) -> list[Entry]:
        return [dict(change) for change in read_history(self.folder)]

    @cached_property
    def environment(self) -> dict[str, Any]:
        return self._json("env.json")

    @cached_property
    def metrics(self) -> list[Entry]:
        return read_lines(self.folder / METRICS)

    @cached_property
    def events(self) -> list[Entry]:
        # Of a folder in which several runs were made, one after the other, those of the last.
        owner = read_owner(self.folder)
        since = -math.inf if owner is None else owner.run.began - 1.0
        found = read_lines(self.folder / EVENTS, 2**26)
        return [event for event in found if (number(event.get("time")) or math.inf) >= since]

    @cached_property
    def performance(self) -> list[Entry]:
        return read_lines(self.folder / PERFORMANCE, 2**26)

    @cached_property
    def laps(self) -> list[Lap]:
        """The same as numbers."""
        return laps_of(self.performance)

    @cached_property
    def samples(self) -> list[Entry]:
        return read_lines(self.folder / SAMPLES, 2**22)

    @cached_property
    def histograms(self) -> list[Entry]:
        return read_lines(self.folder / HISTOGRAMS, 2**25)

    @cached_property
    def profile(self) -> str:
        """What a profile of some steps said, in Markdown."""
        try:
            return read_text(self.folder / PROFILE, 2**16)
        except (OSError, ValueError):
            return ""

    @cached_property
    def evaluation(self) -> dict[str, Any]:
        """Details of the last evaluation: counts of classes, samples with the greatest loss."""
        return self._json(EVALUATION)

    @cached_property
    def layers(self) -> list[Entry]:
        found = self._json(LAYERS).get("layers")
        return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []

    @cached_property
    def finished(self) -> Finished | None:
        return read_finished(self.folder)

    @cached_property
    def id(self) -> str | None:
        owner = read_owner(self.folder)
        return None if owner is None else owner.run.id

    @cached_property
    def began(self) -> float | None:
        owner = read_owner(self.folder)
        if owner is not None:
            return owner.run.began
        return next((time for line in self.metrics[:1] if (time := number(line.get("time"))) is not None), None)

    @cached_property
    def checkpoints(self) -> list[str]:
        return [path.name for path in list_checkpoints(self.folder)]

    @cached_property
    def last_checkpoint_step(self) -> int | None:
        return max((step_of(self.folder / name) for name in self.checkpoints), default=None)

    @cached_property
    def best(self) -> tuple[float, int | None] | None:
        """Value and step of the best evaluation, by ``metric_for_best_model``."""
        return best_in(self.config.get("metric_for_best_model"), self._is_greater_better, self.metrics)

    @property
    def _is_greater_better(self) -> bool:
        return self.config.get("greater_is_better") is True

    def best_of(self, metric: str, *, is_greater_better: bool) -> tuple[float, int | None] | None:
        """Best value of any logged metric, and its step."""
        return best_in(metric, is_greater_better, self.metrics)

    @cached_property
    def last_step(self) -> int | None:
        """The newest step that anything tells of."""
        known = [line.get("step") for line in (*self.metrics[-1:], *self.performance[-1:])]
        steps = [step for step in (*known, self.last_checkpoint_step) if isinstance(step, int)]
        return max(steps, default=None) if self.finished is None else self.finished.step

    @cached_property
    def max_steps(self) -> int | None:
        """Where it ends, or was to end."""
        if self.finished is not None:
            return self.finished.max_steps
        return planned_in(self.performance)

    @cached_property
    def failure(self) -> Entry | None:
        """The event that says that an error ended the run, where that is its state."""
        return failure_in(self.folder) if self.finished is None else None

    def _json(self, name: str) -> dict[str, Any]:
        try:
            found = read_json(self.folder / name)
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


def best_in(metric: object, is_greater_better: bool, metrics: list[Entry]) -> tuple[float, int | None] | None:
    """The best value of the evaluation ``metric`` among logged ones, and its step."""
    if not isinstance(metric, str):
        return None
    key = metric if metric.startswith("eval_") else f"eval_{metric}"
    best: tuple[float, int | None] | None = None
    for line in metrics:
        value = number(line.get(key))
        if value is None or value != value:
            continue
        if best is None or (value > best[0] if is_greater_better else value < best[0]):
            step = line.get("step")
            best = value, step if isinstance(step, int) else None
    return best


def planned_in(performance: list[Entry]) -> int | None:
    """The number of steps that a run was to have, by its newest line about performance."""
    found = performance[-1].get("max_steps") if performance else None
    return found if type(found) is int and found > 0 else None


def last_logged(lines: list[Entry]) -> Entry:
    """The newest line of a training or an evaluation; not the summary at its end."""
    return next((line for line in reversed(lines) if "train_loss" not in line), {})


def main_metric(line: Mapping[str, Any], wanted: object = None) -> tuple[str, float] | None:
    """The number of a log line that says most: the metric that decides, else a loss."""
    names = [name for name in (wanted, f"eval_{wanted}") if isinstance(name, str)]
    for name in [*names, "eval_loss", "loss", "train_loss"]:
        value = number(line.get(name))
        if value is not None:
            return name, value
    # One of several sets.
    for name, value in line.items():
        if name.startswith("eval_") and name.endswith("_loss") and (found := number(value)) is not None:
            return name, found
    return None


def is_run(folder: Path) -> bool:
    """Return True where ``folder`` looks like the directory of a run."""
    return any((folder / name).is_file() for name in MARKS)


def failure_in(folder: Path) -> Entry | None:
    """The newest event that says that an error ended the run, if nothing has been done since."""
    found = next(
        (event for event in reversed(last_lines(folder / EVENTS, 65_536)) if event.get("kind") == "failed"), None
    )
    if found is None:
        return None
    then = number(found.get("time")) or 0.0
    # Of a line about performance, when its process began: the last one of the process that failed comes after.
    since = [line.get("time") for line in last_lines(folder / METRICS)[-1:]]
    since += [line.get("start") for line in last_lines(folder / PERFORMANCE)[-1:]]
    return None if any((number(time) or 0.0) > then + 1.0 for time in since) else found
