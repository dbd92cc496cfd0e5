"""Checksums of weights: whether copies in several processes are still the same, to the last bit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

#: Numbers that are looked at together: what is needed besides the weights stays small.
_CHUNK = 2**22
#: Odd, so that no single bit can change without changing the sum.
_MIX = 0x1E3779B97F4A7C15
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksums(tensors: Iterable[Tensor]) -> Tensor:
    """One number for each tensor, from its bits and where they stand; nothing waits for the device.

    >>> one = torch.tensor([1.0, 2.0, 3.0])
    >>> bool(checksums([one]) == checksums([one.clone()])), bool(checksums([one]) == checksums([one[[1, 0, 2]]]))
    (True, False)
    """
    with torch.no_grad():
        return torch.stack([_checksum(tensor.detach()) for tensor in tensors])


def _checksum(tensor: Tensor) -> Tensor:
    flat = tensor.contiguous().reshape(-1)
    bits = flat.view(_INTEGERS[flat.element_size()]) if not flat.is_complex() else torch.view_as_real(flat).reshape(-1)
    if bits.is_floating_point():
        bits = bits.view(_INTEGERS[bits.element_size()])
    total = torch.full((), tensor.numel(), dtype=torch.int64, device=tensor.device)
    places = torch.arange(min(_CHUNK, bits.numel()), dtype=torch.int64, device=tensor.device) * (2 * _MIX) + 1
    for chunk in bits.split(_CHUNK):
        total = total * _MIX + (chunk.to(torch.int64) * places[: len(chunk)]).sum()
    return total


def in_minority(digests: Sequence[int]) -> list[int]:
    """Ranks whose digest is not the one that most have; all of them where no digest has more than another.

    >>> in_minority([7, 7, 8]), in_minority([7, 7]), in_minority([7, 8])
    ([2], [], [0, 1])
    """
    counts = Counter(digests).most_common()
    if len(counts) == 1:
        return []
    if counts[0][1] == counts[1][1]:
        return list(range(len(digests)))
    return [rank for rank, digest in enumerate(digests) if digest != counts[0][0]]
