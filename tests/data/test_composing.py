"""Several samplers, or collators, as one."""

from __future__ import annotations

import pytest
from torch.utils.data import RandomSampler, SubsetRandomSampler

from trainwright.data.composing import ComposedCollator, ComposedOrder


def test_random_parts_are_a_function_of_seed_and_epoch() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        made = ComposedOrder([SubsetRandomSampler(range(5, 15)), RandomSampler], length=20, seed=seed)
        made.set_epoch(epoch)
        return made.indices()

    assert order(0, 0) == order(0, 0)
    assert sorted(order(0, 0)) == list(range(5, 15))
    assert len({tuple(order(seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}) == 4


def test_lengths_must_stay_and_places_exist() -> None:
    calls: list[int] = []

    def shrinking(indices: list[int]) -> list[int]:
        calls.append(1)
        return indices[: 10 - len(calls)]

    order = ComposedOrder([shrinking], length=10, seed=0)
    with pytest.raises(ValueError, match="every epoch must have the same number"):
        order.indices()
    with pytest.raises(ValueError, match="number 7 of 3 samples"):
        ComposedOrder([range(3), [7]], length=10, seed=0)
    with pytest.raises(ValueError, match="names no sampler"):
        ComposedOrder([], length=10, seed=0)


def test_collators_must_be_functions() -> None:
    with pytest.raises(ValueError, match="list of functions"):
        ComposedCollator([])


def test_what_is_no_sampler_is_named() -> None:
    with pytest.raises(ValueError, match="sampler=5 must be"):
        ComposedOrder([5], length=10, seed=0)
    with pytest.raises(ValueError, match="returned a NoneType; it must return indices"):
        ComposedOrder([lambda indices: None], length=10, seed=0)
    with pytest.raises(ValueError, match="sample 99 of 10"):
        ComposedOrder([lambda indices: [99]], length=10, seed=0)
