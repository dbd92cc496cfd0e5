"""Metrics over all predictions of an evaluation."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from trainwright.compat.accmt.status import ONLY_SET, is_speed
from trainwright.config.warnings import TrainwrightWarning

Gather = Callable[[Any], list[Any]]


class Metric:
    """Computes values from what ``validation_step`` returned under this name, over the whole validation set.

    Override :meth:`compute`; it gets each argument joined over all batches (and processes), on the CPU.

    >>> class Accuracy(Metric):
    ...     def compute(self, predictions, references):
    ...         return {"accuracy": (predictions == references).float().mean()}
    >>> metric = Accuracy("accuracy")
    >>> metric.add_batch(torch.tensor([0, 1]), torch.tensor([0, 1]))
    >>> metric.add_batch(torch.tensor([0, 1]), torch.tensor([1, 1]))
    >>> metric.result()
    {'accuracy': 0.75}
    """

    def __init__(
        self,
        name: str,
        greater_is_better: bool | str = True,
        main_metric: str | None = None,
        do_checks: bool = True,
        cast: torch.dtype | str | None = torch.float32,
        *,
        comparator: str | None = None,
    ) -> None:
        # Earlier versions had the comparator in this place.
        sign = greater_is_better if isinstance(greater_is_better, str) else comparator
        if sign is not None and sign not in ("<", "<=", ">", ">="):
            raise ValueError(f"comparator={sign!r} must be one of '<', '<=', '>', '>='.")
        self.name = name
        self.greater_is_better = bool(greater_is_better) if sign is None else sign.startswith(">")
        self.comparator = sign or (">" if self.greater_is_better else "<")
        self.main_metric = name if main_metric is None else main_metric
        self.do_checks = do_checks
        self.cast = getattr(torch, cast) if isinstance(cast, str) else cast
        self._batches: list[tuple[Any, ...]] = []

    def compute(self, *args: Any) -> Mapping[str, Any]:
        """``{"<main metric>": value, ...}`` from the arguments over the whole set."""
        raise NotImplementedError(f"{type(self).__name__} must define compute(*args), returning a dict of values.")

    def add_batch(self, *args: object) -> None:
        """Keep one batch's arguments: tensors, or dicts of them."""
        batch = tuple(self._kept(arg) for arg in args)
        if self.do_checks and self._batches:
            _compare_shapes(self.name, self._batches[-1], batch)
        self._batches.append(batch)

    def _kept(self, value: object) -> Any:
        if isinstance(value, Mapping):
            return {key: self._kept(item) for key, item in value.items()}
        if not isinstance(value, Tensor):
            raise ValueError(f"metric {self.name!r} takes tensors, or dicts of them, not a {type(value).__name__}.")
        value = value.detach().cpu()
        return value.to(self.cast) if self.cast is not None and value.is_floating_point() else value

    def clear(self) -> None:
        self._batches = []

    def result(self, gather: Gather = lambda value: [value]) -> dict[str, float]:
        """The values over all batches, those of other processes too; forgets them."""
        batches = [batch for part in gather(self._batches) for batch in part]
        self.clear()
        if not batches:
            return {}
        joined = [_joined([batch[place] for batch in batches]) for place in range(len(batches[0]))]
        return self._values(self.compute(*joined))

    def _values(self, found: object) -> dict[str, float]:
        if not isinstance(found, Mapping) or self.main_metric not in found:
            raise ValueError(
                f"metric {self.name!r}: compute must return a dict with {self.main_metric!r} in it, its main value "
                f"(main_metric names another), not {found!r}."
            )
        return {str(name): float(value) for name, value in found.items()}


class MetricParallel(Metric):
    """As :class:`Metric`: all processes have all arguments, so nothing is averaged over processes."""


class MetricBatch(Metric):
    """Computed for each batch; the mean over batches, each with the weight of its samples, is the value.

    So a last batch that is smaller counts for less, and one process finds what several find.
    """

    def add_batch(self, *args: object) -> None:
        kept = [self._kept(arg) for arg in args]
        self._batches.append((self._values(self.compute(*kept)), _rows(kept)))

    def result(self, gather: Gather = lambda value: [value]) -> dict[str, float]:
        numbers: dict[str, list[Any]] = {}
        for values, rows in self._batches:
            for name, value in values.items():
                numbers.setdefault(name, []).append((value, rows))
        self.clear()
        return means_of(numbers, gather)


def _rows(arguments: list[Any]) -> int:
    """How many samples a batch's arguments are of."""
    for value in arguments:
        if isinstance(value, Mapping):
            return _rows(list(value.values()))
        if isinstance(value, Tensor) and value.ndim:
            return len(value)
    return 1


def means_of(numbers: Mapping[str, list[Any]], gather: Gather) -> dict[str, float]:
    """The mean of each list of (value, weight) over the batches of all processes, of which some may have had none."""
    own = {name: [(float(value), float(weight)) for value, weight in pairs] for name, pairs in numbers.items()}
    parts = gather(own)
    names = dict.fromkeys(name for part in parts for name in part)
    together = {name: [pair for part in parts for pair in part.get(name, [])] for name in names}
    whole = {name: sum(weight for _, weight in pairs) for name, pairs in together.items()}
    return {
        name: sum(value * weight for value, weight in pairs if weight) / whole[name]
        for name, pairs in together.items()
        if whole[name]
    }


def metrics_by_set(metrics: object) -> dict[Any, list[Metric]]:
    """``metrics``, one, several, or by validation set, as lists by set; None is every set."""
    if metrics is None:
        return {}
    sets = dict(metrics) if isinstance(metrics, Mapping) else {None: metrics}
    found = {key: list(value) if isinstance(value, (list, tuple, set)) else [value] for key, value in sets.items()}
    for value in (metric for group in found.values() for metric in group):
        if not isinstance(value, Metric):
            raise ValueError(f"metrics: {value!r} is no Metric.")
    by_name: dict[Any, list[Metric]] = {}
    for key, group in found.items():
        # Validation sets are known by text: 0 and "0" are the first of a list.
        by_name.setdefault(None if key is None else str(key), []).extend(group)
    return by_name


def check_names(metrics: Mapping[Any, list[Metric]], sets: list[str] | None, taken: Mapping[str, str]) -> None:
    """Every metric has a validation set and a name of its own, before anything is trained.

    ``sets`` are the validation sets, None where there is one without a name; ``taken`` are names that something else
    has, and what that is.
    """
    known = [ONLY_SET] if sets is None else sets
    for key in metrics:
        if key is not None and key not in known:
            raise ValueError(f"metrics has some for {key!r}, and the validation sets are {known}.")
    for key in known:
        names: dict[str, Metric] = {}
        for metric in (*metrics.get(None, []), *metrics.get(key, [])):
            for name in dict.fromkeys((metric.name, metric.main_metric)):
                if name in names:
                    raise ValueError(f"metrics has two of the name {name!r}: give each one of its own (main_metric).")
                if name in taken or is_speed(name):
                    what = taken.get(name, "how fast an evaluation was")
                    raise ValueError(f"metrics: a Metric may not be called {name!r}, which is {what}.")
                names[name] = metric
        # What is measured is known as <set>_<name>.
        for other in (other for other in known if other.startswith(f"{key}_")):
            mixed = next((name for name in names if name.startswith(other.removeprefix(f"{key}_") + "_")), None)
            if mixed is not None:
                raise ValueError(
                    f"{mixed!r} of the validation set {key!r} has the same name as a value of {other!r}: rename one."
                )


def joined_values(metric: Metric, values: Mapping[str, float], found: dict[str, float]) -> None:
    """Put the values of a metric among those that were ``found``; one whose name is taken gets the metric's before."""
    for name, value in values.items():
        free = name if name not in (*found, "loss", "valid_loss") else f"{metric.name}_{name}"
        if free != name:
            warnings.warn(
                f"metric {metric.name!r} returned {name!r}, a name that something else has: it is {free!r} here.",
                TrainwrightWarning,
                stacklevel=2,
            )
        found[free] = value


def _joined(parts: list[Any]) -> Any:
    if isinstance(parts[0], Mapping):
        # A batch, or a process, need not have every key.
        keys = dict.fromkeys(key for part in parts for key in part)
        return {key: _joined([part[key] for part in parts if key in part]) for key in keys}
    return torch.cat([part.reshape(1) if part.ndim == 0 else part for part in parts])


def _compare_shapes(name: str, before: tuple[Any, ...], now: tuple[Any, ...]) -> None:
    if len(before) != len(now):
        raise ValueError(f"metric {name!r} got {len(now)} arguments after {len(before)}.")
    for old, new in zip(before, now, strict=True):
        if isinstance(old, Tensor) and isinstance(new, Tensor) and old.shape[1:] != new.shape[1:]:
            raise ValueError(
                f"metric {name!r}: a batch of shape {tuple(new.shape)} after {tuple(old.shape)}; batches may differ "
                "only in their first dimension."
            )
