"""Arithmetic over all gradients or all weights of a model at once, compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from trainwright.engines.graph.framework import ArrayFunction, Framework
from trainwright.engines.graph.mirror import Mirror
from trainwright.engines.graph.rules import Rule

_aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)


class Updates:
    """Sums, norms and updates of a model's weights; each compiled once for a set of weights."""

    def __init__(self, framework: Framework, model: nn.Module) -> None:
        self._framework = framework
        self._compiled: dict[Any, ArrayFunction] = {}
        self._shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        self._dtypes = {name: parameter.dtype for name, parameter in model.named_parameters()}

    def _function(self, key: object, function: ArrayFunction) -> ArrayFunction:
        if key not in self._compiled:
            self._compiled[key] = self._framework.compile(function)
        return self._compiled[key]

    def sum(self, names: tuple[str, ...], some: Sequence[Any], more: Sequence[Any]) -> list[Any]:
        """``some`` + ``more``, array by array."""
        half = len(some)
        add = self._function(("sum", names), lambda *a: tuple(x + y for x, y in zip(a[:half], a[half:], strict=True)))
        return list(add(*some, *more))

    def norm(self, gradients: dict[str, Any]) -> float:
        """The length of all gradients as one vector."""
        names = tuple(gradients)

        def norm_of(*arrays: object) -> tuple[Any, ...]:
            flat = self._in_a_row([self._wide(a, self._dtypes[name]) for name, a in zip(names, arrays, strict=True)])
            return (self._do(_aten.sqrt.default, (flat * flat).sum()),)

        (norm,) = self._function(("norm", names), norm_of)(*gradients.values())
        return float(self._framework.tensor(norm))

    def apply(
        self,
        rule: Rule,
        mirror: Mirror,
        gradients: dict[str, Any],
        model: nn.Module,
        optimizer: Optimizer,
        scale: float,
    ) -> None:
        """Update the weights that have a gradient, which counts ``scale`` times, in ``mirror``."""
        groups = self._together(rule, gradients, mirror, model, optimizer)
        rows = mirror.rows([names for names, _ in groups], model, optimizer, rule)
        numbers = [rule.numbers(group, mirror.steps[names[0]] + 1) for names, group in groups]
        wide = torch.float64 if torch.float64 in self._dtypes.values() else torch.float32
        table = torch.tensor([scale, *(number for row in numbers for number in row)], dtype=wide)
        update = self._function(
            ("update", *(row.names for row in rows)), self._update_of(rule, [r.names for r in rows])
        )
        arrays = [array for row in rows for array in (row.weight, *row.state)]
        arrays += [gradients[name] for row in rows for name in row.names]
        results = iter(update(*arrays, self._framework.array(table)))
        for row in rows:
            row.weight, *row.state = (next(results) for _ in range(1 + len(row.state)))
            for name in row.names:
                mirror.weights[name] = next(results)
                mirror.steps[name] += 1
        mirror.is_ahead = True

    def _together(
        self, rule: Rule, gradients: dict[str, Any], mirror: Mirror, model: nn.Module, optimizer: Optimizer
    ) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
        """Weights that are updated with the same numbers, and the optimizer's group they are in.

        The groups are looked up each time: an optimizer that reads a checkpoint makes them anew.
        """
        named = {parameter: name for name, parameter in model.named_parameters()}
        found: dict[Any, tuple[list[str], dict[str, Any]]] = {}
        for number, group in enumerate(optimizer.param_groups):
            for name in (named[parameter] for parameter in group["params"]):
                if name in gradients:
                    key = (number, mirror.steps[name], self._dtypes[name]) if rule.is_elementwise else name
                    found.setdefault(key, ([], group))[0].append(name)
        return [(tuple(names), group) for names, group in found.values()]

    def _update_of(self, rule: Rule, rows: list[tuple[str, ...]]) -> ArrayFunction:
        kept = [len(rule.state(self._shapes[names[0]])) for names in rows]

        def update(*arrays: Any) -> tuple[Any, ...]:
            *given, table = arrays
            scale, *numbers = (self._do(_aten.select.int, table, 0, at) for at in range(int(table.shape[0])))
            each = len(numbers) // len(rows)
            own, gradients = iter(given), iter(given[sum(kept) + len(rows) :])
            results: list[Any] = []
            for place, names in enumerate(rows):
                dtype = self._dtypes[names[0]]
                weight, *state = (self._wide(next(own), dtype) for _ in range(1 + kept[place]))
                gradient = self._wide(self._joined([next(gradients) for _ in names]), dtype) * scale
                its = numbers[place * each : (place + 1) * each]
                changed, state = rule.updated(weight, gradient, state, its, self._do)
                narrow = self._narrow(changed, dtype)
                kept_in = dtype if rule.is_elementwise or dtype not in _HALF else torch.float32
                results += [narrow, *(self._narrow(array, kept_in) for array in state), *self._apart(narrow, names)]
            return tuple(results)

        return update

    def _joined(self, arrays: list[Any]) -> Any:
        return arrays[0] if len(arrays) == 1 else self._in_a_row(arrays)

    def _in_a_row(self, arrays: list[Any]) -> Any:
        return self._do(_aten.cat.default, [self._do(_aten.view.default, array, [-1]) for array in arrays], 0)

    def _apart(self, row: object, names: tuple[str, ...]) -> list[Any]:
        if len(names) == 1:
            return [row]
        parts, start = [], 0
        for shape in (self._shapes[name] for name in names):
            end = start + shape.numel()
            part = self._do(_aten.slice.Tensor, row, 0, start, end)
            parts.append(self._do(_aten.view.default, part, list(shape)))
            start = end
        return parts

    def _wide(self, array: object, dtype: torch.dtype) -> Any:
        """Half precision is added up and divided in single: 1e-8 is nothing in float16."""
        return self._do(_aten._to_copy.default, array, dtype=torch.float32) if dtype in _HALF else array

    def _narrow(self, array: object, dtype: torch.dtype) -> Any:
        # A product with a number of the table may have become wider than the weight.
        return self._do(_aten._to_copy.default, array, dtype=dtype)

    def _do(self, operation: object, *args: object, **kwargs: object) -> Any:
        return self._framework.operations[operation](*args, **kwargs)
