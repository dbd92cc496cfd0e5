"""Batch samplers: whole epochs, exact tails, and a budget that holds."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from trainwright.data.batches import FixedBatches, TokenBudgetBatches
from trainwright.data.order import RandomOrder, SequentialOrder

quick = settings(max_examples=40, deadline=None)


@quick
@given(
    n=st.integers(0, 60), size=st.integers(1, 9), skip=st.integers(0, 12), drop=st.booleans(), epoch=st.integers(0, 9)
)
def test_fixed_batches_start_anywhere(n: int, size: int, skip: int, drop: bool, epoch: int) -> None:
    batches = FixedBatches(RandomOrder(n, 1), size, drop)
    batches.set_epoch(epoch)
    whole = list(batches)
    order = RandomOrder(n, 1)
    order.set_epoch(epoch)
    assert whole == list(BatchSampler(order, size, drop))
    assert len(batches) == len(whole)
    batches.start_at(skip)
    assert len(batches) == len(whole)
    assert list(batches) == whole[skip:]
    assert list(batches) == whole, "start_at is for one iteration"


def test_an_iterator_that_is_never_walked_does_not_take_the_start() -> None:
    batches = FixedBatches(SequentialOrder(6), 2)
    batches.start_at(2)
    iter(batches)  # torch's loader with workers does this
    assert list(batches) == [[4, 5]]
    assert list(batches) == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("workers", [0, 1])
def test_torchs_own_loader_starts_there_too(workers: int) -> None:
    batches = FixedBatches(SequentialOrder(6), 2)
    loader: DataLoader[int] = DataLoader(range(6), batch_sampler=batches, num_workers=workers)  # type: ignore[arg-type]
    batches.start_at(2)
    assert [batch.tolist() for batch in loader] == [[4, 5]]
    assert len(list(loader)) == 3


def test_fixed_batches_take_any_sampler() -> None:
    class Told:
        epoch = -1

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Any:
            return iter([self.epoch, 1, 2])

    batches = FixedBatches(Told(), 2)
    batches.set_epoch(4)
    assert list(batches) == [[4, 1], [2]]
    with pytest.raises(TypeError, match="Told has no length"):
        len(batches)
    assert list(FixedBatches([5, 6, 7], 2)) == [[5, 6], [7]]


@pytest.mark.parametrize("size", [0, -1])
def test_wrong_batch_sizes_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match="batch_size"):
        FixedBatches(SequentialOrder(3), size)
    with pytest.raises(ValueError, match="counts batches from 0"):
        FixedBatches(SequentialOrder(3), 1).start_at(-1)


lengths_lists = st.lists(st.integers(0, 40), max_size=120)


@quick
@given(
    lengths=lengths_lists,
    budget=st.integers(40, 200),
    seed=st.integers(0, 2**31),
    epoch=st.integers(0, 50),
    skip=st.integers(0, 30),
    multiple=st.sampled_from([None, 1, 8]),
)
def test_token_budget(lengths: list[int], budget: int, seed: int, epoch: int, skip: int, multiple: int | None) -> None:
    def make() -> TokenBudgetBatches:
        return TokenBudgetBatches(RandomOrder(len(lengths), seed), lengths, budget, seed, pad_to_multiple_of=multiple)

    before = torch.get_rng_state()
    batches = make()
    batches.set_epoch(epoch)
    whole = list(batches)
    unit = multiple or 1
    for batch in whole:
        width = math.ceil(max(1, *(lengths[index] for index in batch)) / unit) * unit
        assert width * len(batch) <= budget
    assert sorted(index for batch in whole for index in batch) == list(range(len(lengths)))
    assert len(batches) == len(whole) == make().batches_in_epoch(epoch)
    batches.start_at(skip)
    assert list(batches) == whole[skip:]
    assert list(batches) == whole
    again = make()
    again.batches_in_epoch(epoch + 1)  # asking about another epoch changes nothing
    again.set_epoch(epoch)
    assert list(again) == whole
    assert torch.equal(before, torch.get_rng_state())


def test_token_budget_keeps_padding_small_and_epochs_different() -> None:
    lengths = torch.randint(5, 200, (3000,), generator=torch.Generator().manual_seed(0)).tolist()
    batches = TokenBudgetBatches(RandomOrder(3000, 0), lengths, 2048, seed=0)
    first = list(batches)
    padded = sum(max(lengths[i] for i in batch) * len(batch) for batch in first)
    assert padded / sum(lengths) < 1.05
    assert len(first) < 1.15 * sum(lengths) / 2048
    batches.set_epoch(1)
    assert list(batches) != first
    # Neighbouring batches are not sorted by length: the shuffle is over the whole epoch.
    widths = [max(lengths[i] for i in batch) for batch in first]
    assert sorted(widths) != widths != sorted(widths, reverse=True)


def test_token_budget_drops_only_the_batch_that_is_not_full() -> None:
    kept = TokenBudgetBatches(SequentialOrder(10), [4] * 10, 12, seed=0)
    dropped = TokenBudgetBatches(SequentialOrder(10), [4] * 10, 12, seed=0, drop_last=True)
    assert sorted(map(len, kept)) == [1, 3, 3, 3]
    assert sorted(map(len, dropped)) == [3, 3, 3]
    assert len(dropped) == 3


def test_token_budget_repeats_an_unseeded_sampler() -> None:
    batches = TokenBudgetBatches(RandomSampler(range(30), replacement=True), [3] * 30, 9, seed=5)
    batches.set_epoch(2)
    first = list(batches)
    batches.set_epoch(3)
    other = list(batches)
    torch.manual_seed(99)
    batches.set_epoch(2)
    assert list(batches) == first != other


def test_a_sample_that_never_fits_is_refused_with_the_fix() -> None:
    with pytest.raises(
        ValueError, match=r"sample 1 has length 70.*1 more.*max_tokens_per_batch to at least 90.*truncate"
    ):
        TokenBudgetBatches(SequentialOrder(3), [5, 70, 90], 64, seed=0)
