"""Which samples each process gets."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler

from trainwright.config.backends import ProcessRank
from trainwright.data.feed import TrainFeed
from trainwright.data.order import RandomOrder, SequentialOrder
from trainwright.data.rebuild import resumable_loader, shared_evaluation, shared_training
from trainwright.data.sharding import ShardedOrder, ShardedRows, train_sampler, val_sampler

#: Numbers as a dataset.
ROWS: Any = range


@given(
    n=st.integers(0, 60),
    world=st.integers(1, 5),
    batch=st.integers(1, 4),
    accumulation=st.integers(1, 3),
    epoch=st.integers(0, 2),
)
def test_every_step_has_the_samples_that_one_process_would_have(
    n: int, world: int, batch: int, accumulation: int, epoch: int
) -> None:
    order = RandomOrder(n, seed=1)
    order.set_epoch(epoch)
    whole = order.indices()
    share = batch * accumulation
    parts = [ShardedOrder(RandomOrder(n, 1), rank, world, batch, accumulation=accumulation) for rank in range(world)]
    for part in parts:
        part.set_epoch(epoch)
        assert len(part.indices()) == len(part)
        # The same number of steps everywhere, or the others would wait for ever.
        assert math.ceil(len(part) / share) == math.ceil(n / (share * world))
    for step in range(math.ceil(n / (share * world))):
        is_last = (step + 1) * share * world > n
        mine = [
            index
            for part in parts
            if not (part.ends_with_filler and is_last)
            for index in part.indices()[step * share : (step + 1) * share]
        ]
        assert sorted(mine) == sorted(whole[step * share * world : (step + 1) * share * world])
    for number in range(n // (batch * world)):
        # Those of one micro-batch too, in the order of processes.
        together = [index for part in parts for index in part.indices()[number * batch : (number + 1) * batch]]
        assert together == whole[number * batch * world : (number + 1) * batch * world]


@given(n=st.integers(0, 60), world=st.integers(1, 5), batch=st.integers(1, 4), accumulation=st.integers(1, 3))
def test_with_drop_last_every_process_has_whole_batches_only(n: int, world: int, batch: int, accumulation: int) -> None:
    parts = [
        ShardedOrder(SequentialOrder(n), rank, world, batch, accumulation=accumulation, drop_below=batch * world)
        for rank in range(world)
    ]
    assert {len(part) for part in parts} == {n // (batch * world) * batch}
    assert sorted(index for part in parts for index in part.indices()) == list(
        range(n // (batch * world) * batch * world)
    )


@given(n=st.integers(0, 40), world=st.integers(1, 6))
def test_evaluation_is_shared_out_without_repeats_and_in_order(n: int, world: int) -> None:
    parts = [val_sampler(rank, world)(range(n)) for rank in range(world)]
    assert [index for part in parts for index in part] == list(range(n))


def test_loaders_are_shared_once() -> None:
    place = ProcessRank(1, 1, 2)
    loader = shared_training(resumable_loader(DataLoader(ROWS(20), batch_size=3), 0), place, 2)
    assert [batch.tolist() for batch in loader] == [[3, 4, 5], [9, 10, 11], [15, 16, 17], [19]]
    again = shared_training(loader, place, 2)
    assert [batch.tolist() for batch in again] == [[3, 4, 5], [9, 10, 11], [15, 16, 17], [19]]
    evaluated = shared_evaluation(DataLoader(ROWS(5), batch_size=2), place, 0)
    assert [batch.tolist() for batch in evaluated] == [[3, 4]]
    theirs = DataLoader(ROWS(8), sampler=DistributedSampler(ROWS(8), num_replicas=2, rank=1))
    assert shared_training(theirs, place, 1) is theirs


def test_samplers_for_loaders_that_a_module_builds() -> None:
    make = train_sampler(seed=0, rank=0, world_size=2, share=4)
    sampler = make(range(21))
    assert isinstance(sampler, ShardedOrder)
    first = list(sampler)
    sampler.set_epoch(1)
    assert list(sampler) != first
    assert isinstance(train_sampler(0, 0, 1, 4)(range(9)), RandomOrder)
    assert isinstance(val_sampler(0, 2)(range(9)), ShardedRows)


def test_only_the_last_batch_of_a_whole_epoch_is_a_filler() -> None:
    place = ProcessRank(1, 1, 2)
    loader = shared_training(resumable_loader(DataLoader(ROWS(9), batch_size=2), 0), place, 2)
    assert [batch.tolist() for batch in loader] == [[2, 3], [6, 7], [8]]
    feed = TrainFeed(loader, 2, len(loader))
    fillers = []
    for _ in feed.groups():
        fillers.append(feed.on_filler())
    assert fillers == [False, True]
