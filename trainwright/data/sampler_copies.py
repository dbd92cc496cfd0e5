"""Copies of samplers, to be tried out while the sampler itself stays as it is."""

from __future__ import annotations

import copy
import types
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trainwright.randomness import generators
from trainwright.randomness.own_generators import look

#: How far from the sampler something lies that is still copied.
_DEEPEST = 5
#: Bytes of an array that is still copied: what is larger is data.
_LARGEST = 2**26
_ATOMS = (type(None), bool, int, float, complex, str, bytes, range, slice, type, types.ModuleType, types.FunctionType)
_SIMPLE = frozenset((int, float, str, bool, bytes, type(None)))
_CONTAINERS = (list, tuple, set, frozenset, deque, dict)


def twin(sampler: object) -> Any:
    """A copy of ``sampler`` that remembers by itself; None where one cannot be had.

    Numbers, containers, arrays, generators and objects that hold these are copied; datasets, models and functions are
    the same for both.
    """
    if any("iterator" in reason for reason in look({"sampler": sampler}).unknown.values()):
        # Both would walk along the same one.
        return None
    try:
        return _Copier().copied(sampler, 0)
    except Exception:
        # Objects may refuse to be copied in any way they like.
        return None


class _Copier:
    def __init__(self) -> None:
        self._made: dict[int, Any] = {}
        #: The originals: a number that is the id of one must not become that of another.
        self._kept: list[Any] = []

    def copied(self, value: object, depth: int) -> Any:
        if isinstance(value, _ATOMS) or depth > _DEEPEST or (depth and _is_shared(value)):
            return value
        if id(value) not in self._made:
            self._kept.append(value)
            self._made[id(value)] = self._copy(value, depth)
        return self._made[id(value)]

    def _copy(self, value: object, depth: int) -> Any:
        if isinstance(value, torch.Generator):
            return torch.Generator(value.device).set_state(value.get_state())
        if generators.kind_of(value) is not None:
            return copy.deepcopy(value)
        if isinstance(value, Tensor):
            return value.detach().clone()
        if isinstance(value, np.ndarray):
            return value.copy()
        if type(value) in _CONTAINERS:
            return self._container(value, depth)
        return self._object(value, depth)

    def _container(self, value: Any, depth: int) -> Any:
        if not isinstance(value, dict) and set(map(type, value)) <= _SIMPLE:
            return copy.copy(value)
        if isinstance(value, dict):
            return {key: self.copied(part, depth + 1) for key, part in value.items()}
        made = [self.copied(part, depth + 1) for part in value]
        return deque(made, value.maxlen) if isinstance(value, deque) else type(value)(made)

    def _object(self, value: object, depth: int) -> Any:
        made = copy.copy(value)
        if made is not value and hasattr(made, "__dict__"):
            self._made[id(value)] = made
            for name, part in list(vars(made).items()):
                vars(made)[name] = self.copied(part, depth + 1)
        return made


def _is_shared(value: object) -> bool:
    """Return True for what a pass reads and does not change: data, large arrays and models."""
    if isinstance(value, (np.ndarray, Tensor)):
        return value.nbytes > _LARGEST
    is_data = hasattr(type(value), "__getitem__") and not isinstance(value, _CONTAINERS)
    return is_data or isinstance(value, nn.Module)
