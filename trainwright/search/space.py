"""The space of a search: which settings are tried, and from which values they are chosen."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainwright.config.errors import ConfigError
from trainwright.config.loading import Loaded
from trainwright.config.registry import suggestion
from trainwright.config.yaml12 import Place

_FORMS = ("choices", "range", "log_range", "step", "when")
_HOW = "a list of choices, {range: [low, high]}, or {log_range: [low, high]}"
#: What a trial decides for itself.
_NOT_SEARCHED = ("name", "search", "trust")
_FOLDERS = ("output_dir", "run_name", "resume", "resume_from_checkpoint", "logging_dir")
#: So many points of a grid are more than anybody trains.
_MOST_POINTS = 1_000_000


@dataclass(frozen=True)
class Choices:
    """One of several values."""

    values: tuple[Any, ...]

    @property
    def labels(self) -> list[Any]:
        """What Optuna knows them by: themselves, or lists and mappings as JSON."""
        return [value if _is_scalar(value) else json.dumps(value, sort_keys=True) for value in self.values]

    def ends(self) -> list[Any]:
        return list(self.values)

    def points(self) -> list[Any] | None:
        return list(self.values)

    def suggest(self, trial: Any, name: str) -> Any:
        labels = self.labels
        return self.values[labels.index(trial.suggest_categorical(name, labels))]


@dataclass(frozen=True)
class Range:
    """Whole numbers between two whole ones, otherwise any number between them; both ends belong to it."""

    low: float
    high: float
    step: float | None = None
    log: bool = False

    @property
    def is_whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int) and not isinstance(self.step, float)

    def ends(self) -> list[Any]:
        return [self.low, self.high]

    def points(self) -> list[Any] | None:
        """All values, where there are finitely many that are evenly spread."""
        if self.log or (self.step is None and not self.is_whole):
            return None
        step = self.step or 1
        count = math.floor((self.high - self.low) / step + 1e-9) + 1
        return [self.low + number * step for number in range(min(count, _MOST_POINTS + 1))]

    def suggest(self, trial: Any, name: str) -> Any:
        if self.is_whole:
            step = 1 if self.step is None else int(self.step)
            return trial.suggest_int(name, int(self.low), int(self.high), step=step, log=self.log)
        return trial.suggest_float(name, self.low, self.high, step=self.step, log=self.log)


@dataclass(frozen=True)
class Parameter:
    """One setting that is searched."""

    name: str
    values: Choices | Range
    #: Searched only where these others have one of these values.
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    @property
    def place(self) -> Place:
        return tuple(self.name.split("."))

    def is_active(self, chosen: Mapping[str, Any]) -> bool:
        return all(name in chosen and chosen[name] in values for name, values in self.when.items())


class Space:
    """All settings that are searched, each behind those that it depends on."""

    def __init__(self, parameters: list[Parameter]) -> None:
        self.parameters = parameters

    def suggest(self, trial: Any) -> dict[str, Any]:
        """Values of one trial, by name."""
        chosen: dict[str, Any] = {}
        for parameter in self.parameters:
            if parameter.is_active(chosen):
                chosen[parameter.name] = parameter.values.suggest(trial, parameter.name)
        return chosen

    def grid(self) -> list[dict[str, Any]]:
        """Every combination once, the last parameter changing first."""
        return list(itertools.islice(self._points({}, self.parameters), _MOST_POINTS))

    def _points(self, chosen: dict[str, Any], left: list[Parameter]) -> Iterator[dict[str, Any]]:
        if not left:
            yield chosen
            return
        parameter, *others = left
        if not parameter.is_active(chosen):
            yield from self._points(chosen, others)
            return
        for value in parameter.values.points() or ():
            yield from self._points({**chosen, parameter.name: value}, others)

    def label(self, name: str, value: Any) -> Any:
        """What Optuna knows the value by."""
        values = next(one.values for one in self.parameters if one.name == name)
        return values.labels[values.values.index(value)] if isinstance(values, Choices) else value


def read_space(loaded: Loaded, written: Mapping[str, Any]) -> Space:
    """``search.space`` of an experiment, checked; an error names the line."""
    if not written:
        raise loaded.error(("search", "space"), f"it is empty: name settings, each with {_HOW}.")
    found = [_parameter(loaded, str(name), value) for name, value in written.items()]
    names = [parameter.name for parameter in found]
    for parameter in found:
        place = ("search", "space", parameter.name)
        for other in parameter.when:
            if other not in names:
                raise loaded.error((*place, "when"), f"{other} is not searched{suggestion(other, names)}.")
        inner = [name for name in names if name != parameter.name and f"{name}.".startswith(f"{parameter.name}.")]
        if inner:
            raise loaded.error(place, f"{inner[0]} is a part of it: search one of the two.")
    return Space(_ordered(loaded, found))


def _parameter(loaded: Loaded, name: str, written: Any) -> Parameter:
    place = ("search", "space", name)
    parts = name.split(".")
    if not all(parts) or parts[0] in _NOT_SEARCHED or parts[-1] in _FOLDERS:
        raise loaded.error(place, "it cannot be searched; name a setting, such as training.learning_rate.")
    if len(parts) < 2:
        raise loaded.error(place, f"write where it stands, such as training.{name} or model.options.{name}.")
    if isinstance(written, list):
        return Parameter(name, _choices(loaded, place, written))
    if not isinstance(written, dict):
        raise loaded.error(place, f"{written!r} should be {_HOW}.")
    for key in written:
        if key not in _FORMS:
            raise loaded.error((*place, key), f"there is no such key{suggestion(str(key), _FORMS)}; write {_HOW}.")
    kinds = [key for key in ("choices", "range", "log_range") if key in written]
    if len(kinds) != 1:
        raise loaded.error(place, f"it should have one of choices, range and log_range, and has {len(kinds)}.")
    kind = kinds[0]
    when = _conditions(loaded, (*place, "when"), written.get("when"))
    if kind == "choices":
        if "step" in written:
            raise loaded.error((*place, "step"), "choices have no step.")
        return Parameter(name, _choices(loaded, (*place, kind), written[kind]), when)
    return Parameter(name, _range(loaded, (*place, kind), written[kind], written.get("step"), kind), when)


def _choices(loaded: Loaded, place: Place, written: Any) -> Choices:
    if not isinstance(written, list) or not written:
        raise loaded.error(place, f"{written!r} should be a list of values to choose from.")
    if any(isinstance(value, float) and not math.isfinite(value) for value in written):
        raise loaded.error(place, "values must be finite.")
    for number, value in enumerate(written):
        if value in written[:number]:
            raise loaded.error(place, f"{value!r} is there twice (1, 1.0 and true are the same here).")
    return Choices(tuple(written))


def _range(loaded: Loaded, place: Place, written: Any, step: Any, kind: str) -> Range:
    if not isinstance(written, list) or len(written) != 2 or not all(_is_number(value) for value in written):
        raise loaded.error(place, f"{written!r} should be two numbers, [low, high].")
    low, high = written
    if not low < high:
        raise loaded.error(place, f"[{low}, {high}]: the first should be less than the second.")
    log = kind == "log_range"
    if log and low <= 0:
        raise loaded.error(place, f"{low}: a range of logarithms begins above zero.")
    if isinstance(low, float) or isinstance(high, float) or isinstance(step, float):
        low, high = float(low), float(high)
    if step is not None:
        if log or not _is_number(step) or not 0 < step <= high - low:
            raise loaded.error((*place[:-1], "step"), f"{step!r} should be a number that fits into the range.")
        # The last value is one that the steps reach.
        steps = math.floor((high - low) / step + 1e-9)
        high = low + steps * step
    return Range(low, high, step, log)


def _conditions(loaded: Loaded, place: Place, written: Any) -> dict[str, tuple[Any, ...]]:
    if written is None:
        return {}
    if not isinstance(written, dict) or not written:
        raise loaded.error(place, f"{written!r} should be settings with values, such as {{training.optim: sgd}}.")
    return {str(name): tuple(value) if isinstance(value, list) else (value,) for name, value in written.items()}


def _ordered(loaded: Loaded, parameters: list[Parameter]) -> list[Parameter]:
    """Each behind those that its condition names."""
    ordered: list[Parameter] = []
    left = list(parameters)
    while left:
        known = {parameter.name for parameter in ordered}
        ready = [parameter for parameter in left if parameter.when.keys() <= known]
        if not ready:
            place = ("search", "space", left[0].name, "when")
            raise loaded.error(place, "the conditions depend on each other in a circle.")
        ordered.append(ready[0])
        left.remove(ready[0])
    return ordered


def refuse_grid(loaded: Loaded, space: Space) -> None:
    """A grid has points only where each setting has finitely many values."""
    for parameter in space.parameters:
        if parameter.values.points() is None:
            raise loaded.error(
                ("search", "space", parameter.name), "a grid needs choices, whole numbers, or a range with a step."
            )
    if len(space.grid()) >= _MOST_POINTS:
        raise ConfigError(f"The grid has {_MOST_POINTS:,} points or more: use method: tpe or random.")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))
