"""Torch itself behind the seam of other frameworks: what is written over it can be tested wherever torch is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from trainwright.engines.graph.framework import ArrayFunction


class AsTheyAre(Mapping[Any, Callable[..., Any]]):
    """Every ATen operation, done by torch; without those in ``lacking``."""

    def __init__(self, lacking: set[Any] | None = None) -> None:
        self._lacking = lacking or set()

    def __getitem__(self, key: Any) -> Callable[..., Any]:
        if key in self._lacking:
            raise KeyError(key)
        return key

    def __contains__(self, key: Any) -> bool:
        return key not in self._lacking

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0


class TorchFramework:
    """Counts what it compiles."""

    name = "mindspore"

    def __init__(self, *, lacking: set[Any] | None = None) -> None:
        self.operations = AsTheyAre(lacking)
        self.compiled = 0

    def array(self, tensor: Tensor) -> Tensor:
        return tensor.detach().clone()

    def shared(self, tensor: Tensor) -> Tensor:
        return self.array(tensor)

    def tensor(self, array: Tensor) -> Tensor:
        return array.detach().clone()

    def compile(self, function: ArrayFunction) -> ArrayFunction:
        self.compiled += 1
        return function

    def with_gradients(self, function: ArrayFunction, count: int) -> ArrayFunction:
        def run(*arrays: Tensor) -> tuple[Tensor, ...]:
            weights = [array.detach().requires_grad_() for array in arrays[:count]]
            with torch.enable_grad():
                loss, *rest = function(*weights, *arrays[count:])
                gradients = torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)
            # Without strides of their own, as other frameworks' arrays are.
            plain = [gradient.contiguous() for gradient in gradients]
            return (loss.detach(), *(value.detach() for value in rest), *plain)

        return run
