"""Training data after a change of settings, and without the batches that are left out."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

from tests.data.test_data_feed import Rows, Stateful, Stream, feed_over
from trainwright.data.batches import FixedBatches, TokenBudgetBatches
from trainwright.data.collators import collate_any
from trainwright.data.feed import TrainFeed
from trainwright.data.loader import Loader
from trainwright.data.order import LengthGroupedOrder, RandomOrder, SequentialOrder


def fixed(
    size: int, n: int = 23, accumulation: int = 1, seed: int = 1, drop: bool = False, **options: Any
) -> TrainFeed:
    order = options.pop("order", None) or RandomOrder(n, seed)
    loader = Loader(list(range(n)), seed=seed, batch_sampler=FixedBatches(order, size, drop), **options)
    return feed_over(loader, accumulation)


def last_group_of(feed: TrainFeed) -> dict[str, Any]:
    return feed.describe(feed.epoch, *feed.last_group)


def rows_of(groups: Any) -> list[int]:
    return [row for group in groups for batch in group for row in batch.tolist()]


@settings(max_examples=80, deadline=None)
@given(
    n=st.integers(1, 40),
    sizes=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3), st.integers(0, 5)), min_size=2, max_size=4),
)
def test_another_batch_size_loses_no_sample(n: int, sizes: list[tuple[int, int, int]]) -> None:
    """An epoch cut into pieces with different batch sizes and accumulations has every sample once, in order."""
    seen: list[int] = []
    position = None
    for place, (size, accumulation, steps) in enumerate(sizes):
        feed = fixed(size, n, accumulation)
        if position is not None:
            feed.start_at(position)
            assert feed.position()["samples"] == len(seen)
        is_final = place == len(sizes) - 1
        expected = feed.steps_left_in_epoch()
        given = 0
        for group in feed.groups():
            given += 1
            described = last_group_of(feed)
            rows = rows_of([group])
            assert described["samples"] == rows
            seen += rows
            assert feed.on_last_group() == (len(seen) == n)
            assert 0 < feed.epoch_progress() <= 1
            if feed.on_last_group():
                assert feed.epoch_progress() == pytest.approx(1)
            if not is_final and given >= steps:
                break
        if is_final:
            assert given == expected
        position = json.loads(json.dumps(feed.position()))
    assert seen == RandomOrder(n, 1).indices()


def test_changed_amounts_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    feed = fixed(4, accumulation=2)
    next(feed.groups())
    fixed(3, accumulation=1).start_at(feed.position())
    assert len(caplog.records) == 1
    assert "batch size was 4 and is 3 now; gradient accumulation was 2 and is 1 now" in caplog.text
    assert "after the same number of samples" in caplog.text


def longer(**options: Any) -> TrainFeed:
    return fixed(4, n=30, **options)


CHANGES: dict[str, tuple[Callable[[], TrainFeed], str]] = {
    "length": (longer, r"dataset's length was 23 and is 30 now"),
    "seed": (lambda: fixed(4, seed=7), r"data seed was 1 and is 7 now"),
    "sampling": (
        lambda: fixed(4, order=SequentialOrder(23)),
        r"way of sampling was RandomOrder and is SequentialOrder now",
    ),
    "grouping": (lambda: fixed(4, order=LengthGroupedOrder([1] * 23, 8, 1)), r"is LengthGroupedOrder by 8 now"),
    "budget": (
        lambda: feed_over(
            Loader(range(23), seed=1, batch_sampler=TokenBudgetBatches(RandomOrder(23, 1), [2] * 23, 8, 1)), 1
        ),
        r"max_tokens_per_batch was None and is 8 now",
    ),
    "stream": (lambda: feed_over(Loader(Stream(), seed=1, batch_size=4), 1), r"was RandomOrder and is a stream now"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_other_data_is_refused_in_the_middle_of_an_epoch(change: str, caplog: pytest.LogCaptureFixture) -> None:
    make, words = CHANGES[change]
    feed = fixed(4)
    next(feed.groups())
    middle = feed.position()
    with pytest.raises(ValueError, match=f"stands in epoch 0.*{words}.*ignore_data_skip=True"):
        make().start_at(middle)
    anew = make()
    anew.start_at(middle, restart_epoch=True)
    assert anew.position()["batches"] == 0
    feed.close_epoch()
    assert not caplog.records
    make().start_at(feed.position())
    assert "start of an epoch, with changes" in caplog.text


def test_streams_refuse_what_would_shift_them() -> None:
    def stream(size: int, workers: int = 0) -> TrainFeed:
        return feed_over(Loader(Stream(), batch_size=size, num_workers=workers), 1)

    feed = stream(4)
    groups = feed.groups()
    next(groups)
    next(groups)
    position = feed.position()
    with pytest.raises(ValueError, match=r"dataloader_num_workers\) was 0 and is 1 now"):
        stream(4, 1).start_at(position)
    with pytest.raises(ValueError, match=r"batch size was 4 and is 3 now, and the 8 samples.*choose a batch size"):
        stream(3).start_at(position)
    finer = stream(2)
    finer.start_at(position)
    rest = [row for group in finer.groups() for batch in group for row in batch["x"].tolist()]
    assert rest == [row for group in groups for batch in group for row in batch["x"].tolist()]


def test_a_stateful_stream_goes_on_with_any_batch_size() -> None:
    feed = feed_over(Loader(Stateful(), batch_size=4, collate_fn=collate_any), 1)
    next(feed.groups())
    again = feed_over(Loader(Stateful(), batch_size=5, collate_fn=collate_any), 1)
    again.start_at(feed.position())
    assert next(again.groups())[0]["x"].tolist() == [4, 5, 6, 7, 8]


# ---- leaving out


@settings(max_examples=60, deadline=None)
@given(
    left_out=st.sets(st.integers(0, 8)), stop=st.integers(0, 5), accumulation=st.integers(1, 3), by_index=st.booleans()
)
def test_batches_are_left_out(left_out: set[int], stop: int, accumulation: int, by_index: bool) -> None:
    def make() -> TrainFeed:
        if by_index:
            return fixed(3, 20, accumulation)
        return feed_over(DataLoader(range(20), batch_size=3), accumulation)  # type: ignore[arg-type]

    order = RandomOrder(20, 1).indices() if by_index else list(range(20))
    batches = [order[start : start + 3] for start in range(0, 20, 3)]
    expected = [batch for number, batch in enumerate(batches) if number not in left_out]
    feed = make()
    feed.leave_out(0, left_out)
    found: list[list[int]] = []
    for place, group in enumerate(feed.groups()):
        found += [batch.tolist() for batch in group]
        assert feed.on_last_group() == (len(found) == len(expected))
        if place == stop:
            break
    again = make()
    again.start_at(json.loads(json.dumps(feed.position())))
    found += [batch.tolist() for group in again.groups() for batch in group]
    assert found == expected
    assert again.consumed == 7
    again.epoch = 1
    assert len([batch for group in again.groups() for batch in group]) == 7


def test_left_out_samples_are_never_fetched_and_stay_out_with_another_batch_size() -> None:
    class Bad(Dataset[Any]):
        def __len__(self) -> int:
            return 24

        def __getitem__(self, index: int) -> int:
            if index in (8, 9):
                raise OSError(f"{index} is broken")
            return index

    def make(size: int) -> TrainFeed:
        return feed_over(Loader(Bad(), batch_sampler=FixedBatches(SequentialOrder(24), size)), 1)

    feed = make(4)
    feed.leave_out(0, [2])
    assert rows_of(feed.groups()) == [row for row in range(24) if row // 4 != 2]
    feed = make(4)
    feed.leave_out(0, [2])
    feed.leave_out(1, [2])
    next(feed.groups())
    again = make(3)
    again.start_at(json.loads(json.dumps(feed.position())))
    first = rows_of(again.groups())
    assert set(range(24)) - set(first) == {*range(4), 7, 8, 9, 10, 11, 12}
    again.epoch = 1
    assert set(range(24)) - set(rows_of(again.groups())) == {6, 7, 8, 9, 10, 11}


def test_batches_left_out_while_they_are_on_their_way() -> None:
    feed = fixed(4, order=SequentialOrder(23))
    seen = []
    for group in feed.groups():
        seen.append(last_group_of(feed))
        if feed.consumed == 2:
            feed.leave_out(0, [0, 3])
        assert rows_of([group]) == seen[-1]["samples"]
    assert [found["batches"] for found in seen] == [[0, 0], [1, 1], [2, 2], [4, 4], [5, 5]]
    assert feed.describe(0, 1, 2) == {"epoch": 0, "batches": [1, 2], "samples": list(range(4, 12))}


def test_what_is_not_known_of_a_group_is_none() -> None:
    feed = feed_over(Loader(Stream(), batch_size=4))
    next(feed.groups())
    assert last_group_of(feed) == {"epoch": 0, "batches": [0, 1], "samples": None}


def test_a_group_of_an_earlier_epoch_can_be_described() -> None:
    feed = fixed(4)
    first = rows_of(feed.groups())
    feed.epoch = 1
    groups = feed.groups()
    start = rows_of([next(groups)])
    assert feed.describe(0, 0, 5)["samples"] == first
    assert start + rows_of(groups) == feed.describe(1, 0, 5)["samples"]


def test_a_step_that_fails_while_its_batches_are_read_is_not_consumed() -> None:
    class Fragile(Rows):
        broken = True

        def __getitem__(self, index: int) -> Any:
            if index == 13 and self.broken:
                raise OSError("for now")
            return index

    def make() -> TrainFeed:
        return feed_over(Loader(Fragile(), batch_sampler=FixedBatches(SequentialOrder(23), 4)), 2)

    feed = make()
    seen: list[int] = []
    groups = feed.groups()
    seen += rows_of([next(groups)])
    with pytest.raises(OSError, match="for now"):
        next(groups)
    Fragile.broken = False
    again = make()
    again.start_at(feed.position())
    assert seen + rows_of(again.groups()) == list(range(23))


def test_workers_out_of_order_are_said_to_be_inexact(caplog: pytest.LogCaptureFixture) -> None:
    feed = fixed(4)
    next(feed.groups())
    fixed(4, num_workers=1, in_order=False).start_at(feed.position())
    assert "dataloader_in_order=False" in caplog.text
