"""Metrics over all predictions of an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

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
    """Computed for each batch; the values are averaged over batches."""

    def add_batch(self, *args: object) -> None:
        self._batches.append((self._values(self.compute(*(self._kept(arg) for arg in args))),))

    def result(self, gather: Gather = lambda value: [value]) -> dict[str, float]:
        found = [values for part in gather(self._batches) for (values,) in part]
        self.clear()
        return {name: sum(values[name] for values in found) / len(found) for name in (found[0] if found else {})}


def means_of(numbers: Mapping[str, list[Any]], gather: Gather) -> dict[str, float]:
    """The mean of each list over the batches of all processes, of which some may have had none."""
    parts = gather({name: [float(value) for value in values] for name, values in numbers.items()})
    names = dict.fromkeys(name for part in parts for name in part)
    together = {name: [value for part in parts for value in part.get(name, [])] for name in names}
    return {name: sum(values) / len(values) for name, values in together.items() if values}


def metrics_by_set(metrics: object) -> dict[Any, list[Metric]]:
    """``metrics``, one, several, or by validation set, as lists by set; None is every set."""
    if metrics is None:
        return {}
    sets = dict(metrics) if isinstance(metrics, Mapping) else {None: metrics}
    found = {key: list(value) if isinstance(value, (list, tuple, set)) else [value] for key, value in sets.items()}
    for value in (metric for group in found.values() for metric in group):
        if not isinstance(value, Metric):
            raise ValueError(f"metrics: {value!r} is no Metric.")
    return found


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
