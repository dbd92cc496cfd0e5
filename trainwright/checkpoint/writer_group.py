"""Several processes that write one checkpoint: what they tell each other meanwhile.

They have a process group of their own: training goes on in the other one, and two threads in one group would take each
other's messages. What is exchanged is JSON and tensors, never pickles.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainwright.checkpoint.pieces import Piece, nbytes, owners, put_in


class WriterGroup:
    """The writers of a run's checkpoints; every process of the run makes one at the same moment."""

    def __init__(self, seconds: float) -> None:
        self._group: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=seconds))
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def exchange(self, value: object) -> list[Any]:
        """What every process says, in the order of rank."""
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        lengths = [torch.zeros((), dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor(len(text)), group=self._group)
        longest = int(max(lengths))
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(text)] = text
        heard = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(heard, padded, group=self._group)
        return [json.loads(bytes(said[: int(length)].numpy())) for said, length in zip(heard, lengths, strict=True)]

    def whole_tensors(self, own: Mapping[str, Piece], copies: set[str]) -> dict[str, Tensor]:
        """Of all tensors, those that fall to this process, put together from everybody's pieces.

        ``own`` has the same names everywhere; of those in ``copies`` another process has the same piece.
        """
        parts = {name: [piece.offset, list(piece.tensor.shape)] for name, piece in own.items() if name not in copies}
        held = self.exchange(parts)
        chosen = owners({name: nbytes(piece) for name, piece in own.items()}, self.size)
        mine: dict[str, Tensor] = {}
        for name, piece in own.items():
            owner = chosen[name]
            # Of what every process has whole, its own copy will do.
            holders = [owner] if piece.is_whole else [rank for rank in range(self.size) if name in held[rank]]
            if owner != self.rank:
                if self.rank in holders and piece.tensor.numel():
                    dist.send(_bytes(piece.tensor), dst=owner, group=self._group)
                continue
            if piece.is_whole:
                mine[name] = piece.tensor
                continue
            whole = torch.empty(piece.shape, dtype=piece.tensor.dtype)
            for rank in holders:
                offset, shape = held[rank][name]
                part = piece.tensor
                if rank != self.rank:
                    part = torch.empty(shape, dtype=piece.tensor.dtype)
                    if part.numel():
                        dist.recv(_bytes(part), src=rank, group=self._group)
                put_in(whole, part, tuple(offset))
            mine[name] = whole
        return mine


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
