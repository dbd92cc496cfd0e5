"""Weights and optimizer state as arrays of a framework, and how they come from torch and go back.

Weights are kept twice: each for itself, as a model takes them, and many in a row, as an optimizer changes them. One
operation on a long array costs what it costs on a short one, and a model has hundreds of weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainwright.engines.graph.framework import Framework
from trainwright.engines.graph.rules import Rule


@dataclass
class Row:
    """Weights that are updated together, one after the other in flat arrays; or one weight in its own shape."""

    names: tuple[str, ...]
    #: None where torch's tensors may be newer.
    weight: Any
    state: list[Any]


class Mirror:
    """The arrays that training changes. They count until they are written back; then torch's tensors do.

    Whoever looks at the model between steps finds torch's tensors, and may change them.
    """

    def __init__(self, framework: Framework) -> None:
        self._framework = framework
        self.weights: dict[str, Any] = {}
        #: Updates that each weight has seen.
        self.steps: dict[str, int] = {}
        #: Whether the arrays count: torch's weights are behind.
        self.is_ahead = False
        self._rows: list[Row] = []
        self._weights_taken = False

    # ---- from torch

    def forget_weights(self) -> None:
        """Read them anew when they are next needed."""
        assert not self.is_ahead
        self._weights_taken = False
        for row in self._rows:
            row.weight = None

    def take_weights(self, model: nn.Module) -> None:
        """Read the model's parameters, unless the arrays are as new."""
        if not self._weights_taken:
            self.weights = {name: self._framework.array(p.detach()) for name, p in model.named_parameters()}
            self._weights_taken = True

    def take_steps(self, model: nn.Module, optimizer: Optimizer) -> None:
        """How many updates each weight has seen, by the optimizer's own state."""
        if not self.steps:
            self.steps = {name: _steps_in(optimizer.state.get(p, {})) for name, p in model.named_parameters()}

    def rows(self, wanted: list[tuple[str, ...]], model: nn.Module, optimizer: Optimizer, rule: Rule) -> list[Row]:
        """Weights and state in rows of these names."""
        parameters = dict(model.named_parameters())
        if [row.names for row in self._rows] != wanted:
            self._write(model, optimizer, rule)
            self.take_weights(model)
            self._rows = [Row(names, None, self._state_of(names, parameters, optimizer, rule)) for names in wanted]
        for row in self._rows:
            if row.weight is None:
                row.weight = self._joined(parameters[name].detach() for name in row.names)
        return self._rows

    def _state_of(
        self, names: tuple[str, ...], parameters: dict[str, nn.Parameter], optimizer: Optimizer, rule: Rule
    ) -> list[Any]:
        """A weight that has no state yet begins with zeros."""
        state = []
        for key in rule.state(parameters[names[0]].shape):
            kept = [optimizer.state.get(parameters[name], {}).get(key) for name in names]
            pairs = zip(kept, names, strict=True)
            state.append(
                self._joined(_nothing_kept(rule, key, parameters[n]) if old is None else old for old, n in pairs)
            )
        return state

    def _joined(self, tensors: Iterable[Tensor]) -> Any:
        """Several as one row; one alone keeps its shape."""
        first, *more = (tensor.detach() for tensor in tensors)
        return self._framework.array(torch.cat([each.reshape(-1) for each in (first, *more)]) if more else first)

    # ---- back to torch

    def give_weights(self, model: nn.Module) -> None:
        """Write the arrays into the model's parameters, which count from now on."""
        if self.is_ahead:
            parameters = dict(model.named_parameters())
            for row in self._rows:
                if row.weight is not None:
                    self._copy(row.weight, [parameters[name] for name in row.names])
        self.is_ahead = False
        self.forget_weights()

    def give_state(self, model: nn.Module, optimizer: Optimizer, rule: Rule) -> None:
        """Write weights and the optimizer's state, in torch's form, and forget them here."""
        self._write(model, optimizer, rule)
        self.steps = {}

    def _write(self, model: nn.Module, optimizer: Optimizer, rule: Rule) -> None:
        self.give_weights(model)
        parameters = dict(model.named_parameters())
        for row in self._rows:
            entries = [optimizer.state[parameters[name]] for name in row.names]
            for key, joined in zip(rule.state(parameters[row.names[0]].shape), row.state, strict=True):
                for name, entry in zip(row.names, entries, strict=True):
                    # In place where it is there, as an optimizer does it: whoever saves may hold on to its tensors.
                    if not isinstance(entry.get(key), Tensor):
                        entry[key] = _nothing_kept(rule, key, parameters[name])
                self._copy(joined, [entry[key] for entry in entries])
            if rule.step_as is not None:
                for name, entry in zip(row.names, entries, strict=True):
                    _write_step(entry, rule.step_as(float(self.steps[name])))
        self._rows = []

    def _copy(self, joined: object, into: list[Tensor]) -> None:
        values = self._framework.tensor(joined).reshape(-1).split([tensor.numel() for tensor in into])
        with torch.no_grad():
            for tensor, value in zip(into, values, strict=True):
                tensor.copy_(value.view(tensor.shape))


def _nothing_kept(rule: Rule, key: str, parameter: Tensor) -> Tensor:
    """What an optimizer keeps of a weight before its first update: zeros."""
    # torch's keep it in the weight's own precision; what is summed over rows needs the wider one.
    wide = not rule.is_elementwise and parameter.dtype in (torch.float16, torch.bfloat16)
    return torch.zeros(rule.state(parameter.shape)[key], dtype=torch.float32 if wide else parameter.dtype)


def _write_step(entry: dict[str, Any], step: Any) -> None:
    if isinstance(step, Tensor) and isinstance(entry.get("step"), Tensor):
        entry["step"].copy_(step)
    else:
        entry["step"] = step


def _steps_in(entry: dict[str, Any]) -> int:
    if "step" in entry:
        return int(entry["step"])
    return int(any(isinstance(value, Tensor) for value in entry.values()))
