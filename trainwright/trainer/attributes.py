"""Attributes of a Trainer that are kept, or found, elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainwright.engines.torch.memory import MemoryReport


class FromSetup:
    """An attribute of the Trainer that is a field of its setup."""

    def __init__(self, name: str | None = None) -> None:
        self._name = name

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self._name = self._name or name

    def __get__(self, trainer: Any, owner: type[Any] | None = None) -> Any:
        assert self._name is not None
        return self if trainer is None else getattr(trainer._setup, self._name)

    def __set__(self, trainer: Any, value: Any) -> None:
        assert self._name is not None
        setattr(trainer._setup, self._name, value)


class Found:
    """An attribute that is looked up until somebody sets it, as copied methods of transformers' Trainer do."""

    def __init__(self, find: Callable[[Any], Any]) -> None:
        self._find = find

    def __get__(self, trainer: Any, owner: type[Any] | None = None) -> Any:
        return self if trainer is None else self._find(trainer)


class StageMemory:
    """transformers' memory tracker over ours; what is measured goes into metrics with ``skip_memory_metrics=False``."""

    def __init__(self, memory: MemoryReport) -> None:
        self._memory = memory

    def start(self) -> None:
        self._memory.start("eval")

    def stop_and_update_metrics(self, metrics: dict[str, Any] | None = None) -> None:
        found = self._memory.stop("eval")
        if metrics is not None:
            metrics.update(found)
