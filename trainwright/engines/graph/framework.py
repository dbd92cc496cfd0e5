"""What another framework has to bring so that torch models train on it: arrays, gradients, a compiler, operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from torch import Tensor

#: From flat arrays to flat arrays: the only kind of function that every compiler takes.
ArrayFunction = Callable[..., tuple[Any, ...]]


class Framework(Protocol):
    """A second framework. Everything else (capture, optimizers, the loop) is written once, over these."""

    #: As in ``TrainingArguments(engine=...)``.
    name: str
    #: ATen overload (``torch.ops.aten.add.Tensor``) -> the same on this framework's arrays. Called with what the node
    #: of the graph holds: arrays in place of tensors, numbers, lists, ``torch.dtype`` as they are.
    operations: Mapping[Any, Callable[..., Any]]

    def array(self, tensor: Tensor) -> Any:
        """A copy of ``tensor`` on this framework's device. Arrays know ``+ - * /`` and ``.sum()``."""
        ...

    def shared(self, tensor: Tensor) -> Any:
        """The same for what belongs to one batch: over several devices its first dimension may be cut."""
        ...

    def tensor(self, array: Any) -> Tensor:
        """A copy of ``array`` in main memory."""
        ...

    def compile(self, function: ArrayFunction) -> ArrayFunction:
        """``function`` as one graph, compiled when it is first called; it is always called with the same shapes."""
        ...

    def with_gradients(self, function: ArrayFunction, count: int) -> ArrayFunction:
        """Of a ``function`` that returns ``(loss, *rest)``: one that returns ``(loss, *rest, *gradients)``.

        Gradients are those of the loss alone, with respect to the first ``count`` arguments.
        """
        ...
