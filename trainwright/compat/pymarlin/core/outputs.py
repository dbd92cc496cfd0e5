"""What steps return, joined."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor


class OutputCollector:
    """Collects what steps return; tensors are joined along their first dimension when they are asked for.

    >>> collector = OutputCollector()
    >>> for number in (1.0, 2.0):
    ...     collector.collect((torch.tensor(number), "text"))
    >>> collector.all_outputs
    [tensor([1., 2.]), ['text', 'text']]
    """

    def __init__(self, *, on_device: bool = False) -> None:
        #: Leave tensors where they are until they are asked for: moving them waits for the device.
        self._on_device = on_device
        self.reset()

    def reset(self) -> None:
        self._pieces: list[list[Any]] = []

    def collect(self, outputs: object) -> None:
        """Keep one step's outputs, detached: a tensor, or a list or tuple of several things."""
        several = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        for index, output in enumerate(several):
            if len(self._pieces) <= index:
                self._pieces.append([])
            if isinstance(output, Tensor):
                output = output.detach()
                output = output.reshape(1) if output.ndim == 0 else output
            self._pieces[index].append(output if self._on_device else _on_host(output))

    def extend(self, other: OutputCollector) -> None:
        """Take over what another one collected."""
        for index, pieces in enumerate(other._pieces):
            if len(self._pieces) <= index:
                self._pieces.append([])
            self._pieces[index] += [_on_host(piece) for piece in pieces]

    @property
    def all_outputs(self) -> list[Any]:
        """Each output of all steps: one tensor in main memory; a list where there is no single shape."""
        return [_joined(pieces) for pieces in self._pieces]

    def get_state(self) -> list[Any]:
        """For a checkpoint: tensors, and lists of what JSON holds."""
        return self.all_outputs

    def update_state(self, state: Iterable[Any]) -> None:
        self._pieces = [[output] if isinstance(output, Tensor) else list(output) for output in state]


def _joined(pieces: list[Any]) -> Any:
    on_host = [_on_host(piece) for piece in pieces]
    tensors = [piece for piece in on_host if isinstance(piece, Tensor)]
    if len(tensors) == len(on_host) and len({(t.shape[1:], t.dtype) for t in tensors}) == 1:
        return torch.cat(tensors)
    return on_host


def _on_host(piece: object) -> Any:
    if isinstance(piece, Tensor):
        return piece.cpu()
    if isinstance(piece, Mapping):
        return {key: _on_host(value.detach() if isinstance(value, Tensor) else value) for key, value in piece.items()}
    return piece
