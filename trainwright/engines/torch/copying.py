"""Batches on their way to a GPU, beside what it computes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainwright.engines.torch.moving import move

#: Bytes from which on a copy is worth a stream of its own: a smaller one takes less time than that costs.
WORTH_A_STREAM = 2**20


class Copying:
    """Copies batches to ``device``.

    Large ones in pinned memory are copied while the GPU still computes the step before: this process is ahead of it,
    and on the stream of the computation they would wait for their turn.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: torch.cuda.Stream | None = None

    def __reduce__(self) -> tuple[type[Copying], tuple[torch.device]]:
        return Copying, (self.device,)

    def __call__(self, value: object) -> Any:
        if self.device.type != "cuda" or not _is_worth_it(value):
            return move(value, self.device)
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.device)
        computing = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self._stream):
            moved = move(value, self.device)
        computing.wait_stream(self._stream)
        for tensor in torch.utils._pytree.tree_leaves(_plain(moved)):
            if isinstance(tensor, Tensor) and tensor.is_cuda:
                # Its memory may not be used again for another copy before the computation is through with it.
                tensor.record_stream(computing)
        return moved


def _is_worth_it(value: object) -> bool:
    found = [
        one for one in torch.utils._pytree.tree_leaves(_plain(value)) if isinstance(one, Tensor) and not one.is_cuda
    ]
    return sum(one.nbytes for one in found) >= WORTH_A_STREAM and any(one.is_pinned() for one in found)


def _plain(value: Any) -> Any:
    """What torch's trees know, of a batch that is a class of its own."""
    return dict(value) if hasattr(value, "keys") else value
