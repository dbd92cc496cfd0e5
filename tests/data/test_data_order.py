"""Orders are permutations, and functions of (seed, epoch) alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import RandomSampler, Sampler, WeightedRandomSampler

from trainwright.data.order import (
    LengthGroupedOrder,
    LengthSortedOrder,
    Order,
    RandomOrder,
    SeededOrder,
    SequentialOrder,
    mixed_seed,
    seeded,
)

quick = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**31)
epochs = st.integers(0, 1000)


def orders(n: int, seed: int) -> list[Order]:
    lengths = [(index * 7919) % 31 for index in range(n)]
    return [
        RandomOrder(n, seed),
        SequentialOrder(n),
        LengthGroupedOrder(lengths, 4, seed),
        LengthSortedOrder(lengths),
        SeededOrder(RandomSampler(range(n)) if n else [], seed),
    ]


@quick
@given(n=st.integers(0, 200), seed=seeds, epoch=epochs)
def test_every_order_is_a_permutation_that_repeats(n: int, seed: int, epoch: int) -> None:
    before = torch.get_rng_state()
    for first, second in zip(orders(n, seed), orders(n, seed), strict=True):
        first.set_epoch(epoch)
        second.set_epoch(epoch + 1)
        list(second)  # what was walked before must not matter
        second.set_epoch(epoch)
        assert sorted(first) == list(range(n)) == sorted(first.indices())
        assert list(first) == list(second) == first.indices()
        assert len(first) == n
    assert torch.equal(before, torch.get_rng_state())


@quick
@given(seed=seeds, epoch=epochs)
def test_random_orders_differ_between_epochs(seed: int, epoch: int) -> None:
    unseeded = SeededOrder(RandomSampler(range(50)), seed)
    for order in (RandomOrder(50, seed), LengthGroupedOrder([5] * 50, 4, seed), unseeded):
        order.set_epoch(epoch)
        first = list(order)
        order.set_epoch(epoch + 1)
        assert list(order) != first


@pytest.mark.parametrize("epoch", [0, 1, 5])
def test_random_order_is_that_of_hugging_face(epoch: int) -> None:
    from accelerate.data_loader import SeedableRandomSampler

    theirs = SeedableRandomSampler(range(33), data_seed=42)
    theirs.set_epoch(epoch)
    ours = RandomOrder(33, 42)
    ours.set_epoch(epoch)
    assert list(ours) == list(theirs)


@pytest.mark.parametrize(("n", "batch_size"), [(1, 1), (7, 4), (100, 3), (1000, 8)])
def test_length_grouping_is_that_of_hugging_face(n: int, batch_size: int) -> None:
    from transformers.trainer_pt_utils import get_length_grouped_indices

    lengths = torch.randint(1, 50, (n,), generator=torch.Generator().manual_seed(n)).tolist()
    order = LengthGroupedOrder(lengths, batch_size, seed=9)
    order.set_epoch(2)
    theirs = get_length_grouped_indices(lengths, batch_size, generator=torch.Generator().manual_seed(11))
    assert list(order) == theirs
    assert lengths[order.indices()[0]] == max(lengths)


def test_length_sorted_is_longest_first() -> None:
    assert list(LengthSortedOrder([3, 9, 9, 1])) == [1, 2, 0, 3]


def test_mixed_seed_tells_parts_apart() -> None:
    values = {mixed_seed(seed, epoch) for seed in range(20) for epoch in range(20)}
    assert len(values) == 400
    assert all(0 <= value < 2**63 for value in values)


class Careless(Sampler[int]):
    """A user's sampler that draws from all the global generators."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(5):
            yield random.randrange(100) * 10000 + np.random.randint(100) * 100 + int(torch.randint(100, ()))

    def __len__(self) -> int:
        return 5


def test_a_users_sampler_becomes_a_function_of_seed_and_epoch() -> None:
    order = SeededOrder(Careless(), seed=3)
    states = random.getstate(), np.random.get_state(legacy=False)["state"]["key"].tolist(), torch.get_rng_state()
    first = list(order)
    order.set_epoch(1)
    second = list(order)
    assert random.getstate() == states[0]
    assert np.random.get_state(legacy=False)["state"]["key"].tolist() == states[1]
    assert torch.equal(torch.get_rng_state(), states[2])
    torch.manual_seed(12345)
    random.seed(1)
    order.set_epoch(0)
    assert list(order) == first != second
    assert list(SeededOrder(Careless(), seed=4)) != first


def test_a_users_own_generator_is_respected() -> None:
    def sampler() -> WeightedRandomSampler:
        return WeightedRandomSampler([1.0] * 40, 40, generator=torch.Generator().manual_seed(7))

    expected = list(sampler())
    order = SeededOrder(sampler(), seed=0)
    assert list(order) == expected == list(order)
    order.set_epoch(1)
    assert list(order) != expected


def test_seeded_leaves_samplers_that_know_epochs_and_translates_plain_shuffling() -> None:
    order = RandomOrder(5, 1)
    assert seeded(order, 9) is order
    shuffled = seeded(RandomSampler(range(12)), 42)
    assert isinstance(shuffled, RandomOrder)
    assert list(shuffled) == list(RandomOrder(12, 42))
    assert isinstance(seeded(RandomSampler(range(12), replacement=True), 42), SeededOrder)


def test_a_sampler_without_length_is_refused() -> None:
    class Endless:
        def __iter__(self) -> Any:
            return iter(int, 1)

    with pytest.raises(ValueError, match="Endless has no length"):
        seeded(Endless(), 0)


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        SequentialOrder(-1)
    with pytest.raises(ValueError, match="batch_size"):
        LengthGroupedOrder([1], 0, 0)
