"""Bags: how often each member sees each sample, decided by the sample's number alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

#: The column in which a batch says which samples of the data it has.
SAMPLE_NUMBER = "sample_number"
_BITS = 32
_MASK = (1 << _BITS) - 1
#: Odd numbers with many bits set, from the golden ratio and from sqrt(2), sqrt(3), sqrt(5).
_FACTORS = (0x9E3779B1, 0x6A09E667, 0xBB67AE85, 0x3C6EF373)
#: More copies of a sample than these come once in ten million.
_MOST_COPIES = 10


def bag_weights(numbers: Tensor, seeds: Sequence[int]) -> Tensor:
    """How many copies of each sample each member's bag has: (members, samples), 1 on average.

    A bag drawn with replacement from many samples holds each of them as often as a Poisson number with mean 1 says
    (37% not at all). Here that number is a function of the member's seed and the sample's number: the same in every
    epoch, batch, process and after a resume.

    >>> bag_weights(torch.arange(6), seeds=[1, 2]).tolist()
    [[0.0, 2.0, 1.0, 1.0, 0.0, 1.0], [0.0, 2.0, 1.0, 1.0, 2.0, 1.0]]
    """
    numbers = numbers.to(torch.int64)
    each = torch.stack([_mixed(numbers, seed) for seed in seeds]).to(torch.float64) / 2**_BITS
    bounds = torch.tensor(_cumulative(), dtype=torch.float64, device=numbers.device)
    return torch.bucketize(each, bounds, right=True).to(torch.float32)


def _cumulative() -> list[float]:
    chances = [math.exp(-1) / math.factorial(count) for count in range(_MOST_COPIES)]
    return [sum(chances[: count + 1]) for count in range(_MOST_COPIES)]


def _mixed(numbers: Tensor, seed: int) -> Tensor:
    """32 bits that depend on every bit of both; whole numbers are the same on every device."""
    value = (numbers ^ (numbers >> _BITS)) & _MASK
    for factor in _FACTORS:
        value = (value + seed * factor + 1) & _MASK
        value = _times(value ^ (value >> 15), factor)
        value = value ^ (value >> 13)
    return value


def _times(value: Tensor, factor: int) -> Tensor:
    """The lower 32 bits of a product, without leaving 63 bits on the way."""
    low, high = value & 0xFFFF, value >> 16
    return (low * factor + (((high * factor) & 0xFFFF) << 16)) & _MASK
