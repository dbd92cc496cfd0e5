"""What a sweep is asked to do: the ``search`` section of an experiment, checked before anything is trained."""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright.config.errors import ConfigError
from trainwright.config.experiment import SearchSection
from trainwright.config.loading import Loaded, experiment_from
from trainwright.config.overrides import put_value
from trainwright.config.registry import suggestion
from trainwright.config.trust import code_references
from trainwright.config.yaml12 import Document, Place
from trainwright.experiment.building import arguments_for, run_folder, run_name
from trainwright.experiment.measures import less_is_better
from trainwright.experiment.stored import resolved
from trainwright.search.space import Parameter, Space, read_space, refuse_grid

METHODS = ("tpe", "random", "grid", "nsga2")
PRUNERS = ("median", "hyperband", "none")
DIRECTIONS = ("maximize", "minimize")
#: What is known of a model without training it.
MEASURES = ("parameters", "flops", "latency_ms")
_TRIALS = 20
_SECONDS = {"s": 1, "second": 1, "minute": 60, "min": 60, "hour": 3600, "h": 3600, "day": 86400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+?)s?")


@dataclass(frozen=True)
class Goal:
    """One number that should become greatest or least."""

    name: str
    direction: str

    @property
    def is_measured(self) -> bool:
        """Known without training."""
        return self.name in MEASURES

    def value(self, metrics: Mapping[str, float], measured: Mapping[str, float]) -> float:
        if self.is_measured:
            return float(measured[self.name])
        key = self.name if self.name.startswith("eval_") else f"eval_{self.name}"
        if key not in metrics:
            raise unknown_metric(self.name, metrics)
        return float(metrics[key])


class UnknownMetricError(ConfigError):
    """No evaluation of the experiment has the metric that is searched by."""


def unknown_metric(name: str, metrics: Iterable[str]) -> UnknownMetricError:
    """The error that says what there is instead."""
    known = sorted(
        one.removeprefix("eval_")
        for one in metrics
        if one.startswith("eval_") and not one.endswith(("_runtime", "_per_second"))
    )
    return UnknownMetricError(
        f"search.metric: the evaluation has no {name!r}{suggestion(name, known)}; it has "
        f"{', '.join(known) or 'nothing'}, and {', '.join(MEASURES)} are measured."
    )


@dataclass(frozen=True)
class Plan:
    """A sweep that is ready to begin."""

    #: The experiment without its search.
    base: Loaded
    #: Where the study and a folder for each trial are.
    folder: Path
    space: Space
    goals: tuple[Goal, ...]
    trials: int
    method: str
    pruner: str
    seed: int
    #: Seconds after which no trial is begun.
    timeout: float | None
    limits: dict[str, float]
    inherit: bool
    keeps_all: bool
    storage: str

    @property
    def name(self) -> str:
        return run_name(self.base)

    def trial_folder(self, number: int) -> Path:
        return self.folder / f"trial-{number:04d}"

    def document(self) -> dict[str, Any]:
        """Everything that makes trials what they are, as plain data; how long to go on is not among it."""
        searched = [
            {
                "name": one.name,
                **{key: _plain(value) for key, value in dataclasses.asdict(one.values).items()},
                "when": {name: list(values) for name, values in one.when.items()},
            }
            for one in self.space.parameters
        ]
        goals = {goal.name: goal.direction for goal in self.goals}
        search = {"space": searched, "goals": goals, "method": self.method, "prune": self.pruner, "seed": self.seed}
        search |= {"limits": self.limits, "inherit": self.inherit}
        return {"experiment": resolved(self.base), "search": search}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def read_plan(loaded: Loaded) -> Plan:
    """The plan of an experiment with a ``search`` section; an error names the line and the fix."""
    section = loaded.experiment.search
    if section is None:
        raise ConfigError(
            f"{loaded.document.source} has no search: section. Add one, such as search: {{space: "
            "{training.learning_rate: {log_range: [1e-5, 1e-2]}}}."
        )
    space = read_space(loaded, section.space)
    base = dataclasses.replace(loaded, experiment=dataclasses.replace(loaded.experiment, search=None))
    for parameter in space.parameters:
        _refuse_fixed(loaded, parameter.place)
    _check_words(loaded, section)
    goals = _goals(loaded, section)
    for parameter in space.parameters:
        _try_values(loaded, base, parameter)
    if section.method == "grid":
        refuse_grid(loaded, space)
    several = len(goals) > 1
    pruner = section.prune or ("none" if several or all(goal.is_measured for goal in goals) else "median")
    if several and pruner != "none":
        raise loaded.error(("search", "prune"), "with several metrics no trial can be ended early: write none.")
    wanted = run_folder(base)
    return Plan(
        base=base,
        folder=wanted.with_name(f"{wanted.name}-sweep"),
        space=space,
        goals=goals,
        trials=section.trials or (len(space.grid()) if section.method == "grid" else _TRIALS),
        method=section.method,
        pruner=pruner,
        seed=arguments_for(base)[1].seed if section.seed is None else section.seed,
        timeout=_seconds(loaded, section.timeout),
        limits=section.limits,
        inherit=section.inherit,
        keeps_all=section.keep == "all",
        storage=section.storage,
    )


def _check_words(loaded: Loaded, section: SearchSection) -> None:
    allowed: list[tuple[str, Any, tuple[str, ...]]] = [
        ("method", section.method, METHODS),
        ("prune", section.prune or "none", PRUNERS),
        ("direction", section.direction or "maximize", DIRECTIONS),
        ("keep", section.keep, ("best", "all")),
        ("storage", section.storage, ("sqlite", "journal")),
    ]
    for key, value, words in allowed:
        if value not in words:
            raise loaded.error(
                ("search", key), f"{value!r} should be one of {', '.join(words)}{suggestion(value, words)}."
            )
    if section.trials is not None and section.trials < 1:
        raise loaded.error(("search", "trials"), f"{section.trials} should be 1 or more.")
    if section.seed is not None and section.seed < 0:
        raise loaded.error(("search", "seed"), f"{section.seed} should be 0 or more.")
    for name, most in section.limits.items():
        if name not in MEASURES:
            raise loaded.error(
                ("search", "limits", name), f"only {', '.join(MEASURES)} can be limited{suggestion(name, MEASURES)}."
            )
        if not most > 0:
            raise loaded.error(("search", "limits", name), f"{most} should be more than 0.")


def _goals(loaded: Loaded, section: SearchSection) -> tuple[Goal, ...]:
    args = arguments_for(loaded)[1]
    if args.eval_strategy == "no" and args.evaluate_every is None:
        raise loaded.error(("data",), "a search needs data to judge by: set data.eval or data.holdout.")
    if isinstance(section.metric, dict):
        if section.direction is not None:
            raise loaded.error(("search", "direction"), "each metric has its own: {accuracy: maximize, ...}.")
        for name, direction in section.metric.items():
            if direction not in DIRECTIONS:
                raise loaded.error(("search", "metric", name), f"{direction!r} should be maximize or minimize.")
        if section.metric:
            return tuple(Goal(name, direction) for name, direction in section.metric.items())
    name = section.metric or args.metric_for_best_model or "loss"
    name = str(name).removeprefix("eval_")
    by_name = "minimize" if less_is_better(name) or name in MEASURES else "maximize"
    if section.metric is None and args.greater_is_better is not None:
        by_name = "maximize" if args.greater_is_better else "minimize"
    return (Goal(name, section.direction or by_name),)


def _seconds(loaded: Loaded, text: str | None) -> float | None:
    if text is None:
        return None
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None or found[2] not in _SECONDS:
        raise loaded.error(("search", "timeout"), f"{text!r} should be a time, such as 30 minutes or 2 hours.")
    return float(found[1]) * _SECONDS[found[2]]


def _refuse_fixed(loaded: Loaded, place: Place) -> None:
    """What the command line sets cannot be searched too."""
    if any(place[:length] in loaded.from_command_line for length in range(2, len(place) + 1)):
        name = ".".join(map(str, place))
        raise loaded.error(place, f"the command line sets it, and search.space.{name} tries others: keep one.")


def _try_values(loaded: Loaded, base: Loaded, parameter: Parameter) -> None:
    """A value that no training would take is refused now and not after hours."""
    for value in parameter.values.ends():
        try:
            arguments_for(trial_experiment(base, {parameter.name: value}))
        except ConfigError as error:
            place = ("search", "space", parameter.name)
            raise ConfigError(f"{loaded.where(place)}: search.space: {parameter.name}={value!r}: {error}") from None


def trial_experiment(base: Loaded, chosen: Mapping[str, Any], folder: Path | None = None) -> Loaded:
    """The experiment with the values of a trial, which count as written in the file; in ``folder``, if given."""
    data = copy.deepcopy(resolved(base))
    if folder is not None:
        (data.get("checkpoint") or {}).pop("output_dir", None)
        put_value(data, ("training", "output_dir"), str(folder))
        data["name"] = f"{run_name(base)}-{folder.name}"
    for name, value in chosen.items():
        put_value(data, tuple(name.split(".")), copy.deepcopy(value))
    # What the base was allowed to run stays allowed, wherever that was said; nothing else is.
    loaded = experiment_from(Document(data, base.document.source, base.document.lines), trust=True, folder=base.folder)
    if not base.trusted:
        known = {reference for _, reference in code_references(base.experiment)}
        known |= {reference for _, reference in code_references(_as_resolved(base).experiment)}
        for place, reference in code_references(loaded.experiment):
            if reference not in known:
                raise loaded.error(
                    place,
                    f"{reference!r} would run code because a file says so. If you know that code, add --trust on the "
                    "command line.",
                )
    return loaded


def sweep_document(loaded: Loaded) -> dict[str, Any]:
    """The experiment and its search as plain data that means the same from anywhere."""
    section = loaded.experiment.search
    assert section is not None
    usual = {one.name: one.default for one in dataclasses.fields(section)}
    said = {name: value for name, value in vars(section).items() if value != usual[name] and value != {}}
    return {**resolved(loaded), "search": said}


def _as_resolved(base: Loaded) -> Loaded:
    document = Document(resolved(base), base.document.source, base.document.lines)
    return experiment_from(document, trust=True, folder=base.folder)
