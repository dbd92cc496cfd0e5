"""Recurrent layers with dropout between them, which torch's own decomposition leaves out without a word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten
_RECURRENT = (_aten.lstm.input, _aten.gru.input, _aten.rnn_tanh.input, _aten.rnn_relu.input)
#: How an operation is expressed by simpler ones.
Decomposition = Callable[..., Any]


def decompositions() -> dict[Any, Decomposition]:
    """torch's table, by which graphs become core operations, with recurrent layers taken one by one.

    Linear layers stay whole: a product that is told to take a matrix the other way round needs no copy of it.
    """
    table = torch.export.default_decompositions()
    table.pop(_aten.linear.default)
    for operation in _RECURRENT:
        table[operation] = _layer_by_layer(table[operation])
    return table


def _layer_by_layer(of_torch: Decomposition) -> Decomposition:
    def run(
        values: Tensor,
        begin: Tensor | list[Tensor],
        weights: list[Tensor],
        has_biases: bool,
        layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[Tensor, ...]:
        # An LSTM has two kinds of state, the others one.
        states = [begin] if isinstance(begin, Tensor) else list(begin)
        each, directions = len(weights) // layers, 1 + bidirectional
        ends: list[tuple[Tensor, ...]] = []
        for number in range(layers):
            own = [state[number * directions : (number + 1) * directions] for state in states]
            values, *end = of_torch(
                values,
                own[0] if isinstance(begin, Tensor) else own,
                weights[number * each : (number + 1) * each],
                has_biases,
                1,
                0.0,
                train,
                bidirectional,
                batch_first,
            )
            ends.append(tuple(end))
            if train and dropout and number < layers - 1:
                values = _aten.native_dropout(values, dropout, True)[0]
        return values, *(torch.cat(kind) for kind in zip(*ends, strict=True))

    return run
