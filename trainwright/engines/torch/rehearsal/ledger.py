"""A count of the bytes that live tensors hold, and of the most that they ever held."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

#: CUDA's allocator hands out multiples of this many bytes.
ROUNDED_TO = 512


class Ledger(TorchDispatchMode):
    """While it is active, every new tensor's memory is entered under :attr:`kind` until nothing holds it any more.

    >>> from torch._subclasses.fake_tensor import FakeTensorMode
    >>> with FakeTensorMode(), Ledger() as ledger:
    ...     kept = torch.empty(1024)
    ...     kept = kept * 2 + 1
    >>> ledger.peak, ledger.now
    (12288, 4096)
    """

    def __init__(self) -> None:
        super().__init__()
        #: What new tensors are entered as.
        self.kind = "activations"
        self.held: Counter[str] = Counter()
        #: What was held when most was.
        self.at_peak: Counter[str] = Counter()
        self.now = self.peak = 0
        self._entries: dict[int, tuple[str, int, Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_iter(result):
            if isinstance(value, Tensor):
                self._enter(value, self.kind)
        return result

    @contextmanager
    def entering(self, kind: str) -> Iterator[None]:
        """New tensors are of ``kind`` for a while."""
        before, self.kind = self.kind, kind
        try:
            yield
        finally:
            self.kind = before

    def assign(self, tensor: Tensor, kind: str) -> None:
        """Say what a tensor is, wherever it came from."""
        key = tensor.untyped_storage()._cdata
        if key not in self._entries:
            self._enter(tensor, kind)
            return
        before, size, reference = self._entries[key]
        self._entries[key] = (kind, size, reference)
        self.held[before] -= size
        self.held[kind] += size

    def forget_peak(self) -> None:
        """Begin anew with what is held now."""
        self.peak, self.at_peak = self.now, self.held.copy()

    def _enter(self, tensor: Tensor, kind: str) -> None:
        if tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._entries:
            return
        size = -(-storage.nbytes() // ROUNDED_TO) * ROUNDED_TO
        # The storage's Python object lives as long as the storage, whichever of them is let go of first.
        self._entries[key] = (kind, size, weakref.ref(storage, lambda _: self._leave(key)))
        self.now += size
        self.held[kind] += size
        if self.now > self.peak:
            self.peak, self.at_peak = self.now, self.held.copy()

    def _leave(self, key: int) -> None:
        kind, size, _ = self._entries.pop(key)
        self.now -= size
        self.held[kind] -= size
