"""A pass over a network that leaves it as it was: what a forward writes is undone, or refused before it is written."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

#: How deep attributes of attributes are remembered, and how many entries a list may have.
_DEPTH, _MOST_ENTRIES = 4, 10_000

_FIXED = (bool, int, float, complex, str, bytes, type, torch.dtype, torch.device, torch.Size)


@contextlib.contextmanager
def undisturbed(network: nn.Module) -> Iterator[None]:
    """What a pass draws, or keeps in the network (statistics, caches, counters), is undone."""
    before = _Memory(network)
    devices = sorted({parameter.device.index or 0 for parameter in network.parameters() if parameter.is_cuda})
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            before.restore()


class WritesWeights(ValueError):
    """A forward that changes weights: they could be put back only from a copy of all of them."""


class WeightsUnwritten(TorchDispatchMode):
    """Within it an operation that would write into a parameter of ``network`` raises :class:`WritesWeights` instead."""

    supports_higher_order_operators = True

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self._names = {_memory_of(one): name for name, one in network.named_parameters()}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        schema = getattr(func, "_schema", None)
        if schema is not None and schema.is_mutable:
            for tensor in _written(schema, args, kwargs):
                name = self._names.get(_memory_of(tensor))
                if name is not None:
                    raise WritesWeights(f"its forward changes {name}")
        return func(*args, **kwargs)


def _written(schema: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    for number, argument in enumerate(schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[number] if number < len(args) else kwargs.get(argument.name)
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(tensor, Tensor):
                yield tensor


def _memory_of(tensor: Tensor) -> int:
    """Where its numbers are: the same for all its views."""
    try:
        return tensor.untyped_storage()._cdata
    except (RuntimeError, NotImplementedError):
        # A tensor without memory of its own.
        return id(tensor)


class _Memory:
    """What a network's modules keep besides parameters: attributes, lists and dicts in them, tensors, and so on."""

    def __init__(self, network: nn.Module) -> None:
        self._undo: list[Callable[[], None]] = []
        #: By identity, and held, so that none is another one later.
        self._known: dict[int, object] = {}
        self._look_through(network)

    def restore(self) -> None:
        with torch.no_grad():
            for undo in self._undo:
                undo()

    def _look_through(self, network: nn.Module) -> None:
        """A network, and any other that one of its modules keeps out of sight: a teacher in a list, say."""
        for parameter in network.parameters():
            self._known[id(parameter)] = parameter
            self._undo.append(_data_of(parameter))
        modules = [module for module in network.modules() if id(module) not in self._known]
        self._known.update((id(module), module) for module in modules)
        for module in modules:
            self._look_into(vars(module), _DEPTH)

    def _look_at(self, value: Any, depth: int) -> None:
        if value is None or isinstance(value, _FIXED) or id(value) in self._known:
            return
        if isinstance(value, (dict, list, deque, set, tuple)):
            self._look_into(value, depth)
            return
        if isinstance(value, nn.Module):
            self._look_through(value)
            return
        self._known[id(value)] = value
        if isinstance(value, Tensor):
            self._undo.append(_numbers_of(value))
        elif isinstance(value, np.ndarray):
            self._undo.append(_entries_of(value))
        elif depth and hasattr(value, "__dict__") and not callable(value):
            self._look_into(vars(value), depth - 1)

    def _look_into(self, held: Any, depth: int) -> None:
        self._known[id(held)] = held
        if len(held) > _MOST_ENTRIES:
            return
        if not isinstance(held, tuple):
            self._undo.append(_contents_of(held))
        if depth:
            for value in list(held.values()) if isinstance(held, dict) else list(held):
                self._look_at(value, depth - 1)


def _data_of(parameter: nn.Parameter) -> Callable[[], None]:
    before, where = parameter.detach(), _memory_of(parameter)

    def undo() -> None:
        if _memory_of(parameter) != where:
            parameter.data = before

    return undo


def _numbers_of(tensor: Tensor) -> Callable[[], None]:
    copy = tensor.detach().clone()

    def undo() -> None:
        if tensor.shape == copy.shape and tensor.dtype == copy.dtype:
            tensor.detach().copy_(copy)
        else:
            tensor.data = copy

    return undo


def _entries_of(array: Any) -> Callable[[], None]:
    copy = array.copy()

    def undo() -> None:
        if array.flags.writeable:
            array[...] = copy

    return undo


def _contents_of(held: Any) -> Callable[[], None]:
    before = dict(held) if isinstance(held, dict) else list(held)

    def undo() -> None:
        now = dict(held) if isinstance(held, dict) else list(held)
        if _is_the_same(now, before):
            return
        held.clear()
        held.extend(before) if isinstance(held, (list, deque)) else held.update(before)

    return undo


def _is_the_same(now: Any, before: Any) -> bool:
    if len(now) != len(before):
        return False
    if isinstance(now, dict):
        return list(now) == list(before) and all(now[name] is before[name] for name in now)
    return all(one is other for one, other in zip(now, before, strict=True))
