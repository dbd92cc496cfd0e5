"""Any number of processes, also another one after a resume, goes through the data as one process would."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, Sampler
from torch.utils.data.datapipes.iter import IterableWrapper

from trainwright.config.backends import ProcessRank
from trainwright.data.batches import FixedBatches, TokenBudgetBatches
from trainwright.data.feed import TrainFeed
from trainwright.data.loader import Loader, has_length
from trainwright.data.order import LengthGroupedOrder, Order, RandomOrder
from trainwright.data.rebuild import resumable_loader, shared_evaluation, shared_training, sharing_of
from trainwright.data.stream_sharing import EveryNth
from trainwright.engines.torch.backends import SingleProcess
from trainwright.training.plan import TrainingPlan, refuse_uneven

#: Numbers as a dataset.
ROWS: Any = range


class Leg(NamedTuple):
    """A part of a run: how many processes with which batches, and for how many steps."""

    world: int
    batch: int
    accumulation: int
    steps: int


def plain(samples: list[Any]) -> list[Any]:
    return list(samples)


class Run:
    """All processes of a run, in this one; what each step trains on, by epoch."""

    def __init__(self, make: Any) -> None:
        self.make = make
        self.position: dict[str, Any] | None = None
        self.steps: list[tuple[int, list[int]]] = []

    def go(self, leg: Leg, epochs: int) -> None:
        feeds = []
        for rank in range(leg.world):
            place = ProcessRank(rank, rank, leg.world)
            loader = shared_training(self.make(leg, place), place, leg.accumulation)
            length = len(loader) if has_length(loader) else None
            feeds.append(TrainFeed(loader, leg.accumulation, length, steps_if_unsized=9, process=place))
            if self.position is not None:
                feeds[-1].start_at(self.position)
        left = leg.steps
        while left and feeds[0].epoch < epochs:
            passes = [feed.groups() for feed in feeds]
            while left:
                groups = [next(one, None) for one in passes]
                if groups[0] is None:
                    # All are at the end in the same step, or the others would wait for ever.
                    assert groups == [None] * leg.world
                    break
                assert None not in groups
                left -= 1
                given = zip(feeds, groups, strict=True)
                mine = [x for feed, group in given if not feed.on_filler() for batch in group or [] for x in batch]
                self.steps.append((feeds[0].epoch, sorted(mine)))
            else:
                break
            for feed in feeds:
                feed.close_epoch()
                feed.announce_end()
            self._note(feeds)
            for feed in feeds:
                feed.epoch += 1
        else:
            return
        self._note(feeds)

    def _note(self, feeds: list[TrainFeed]) -> None:
        parts = [{name: feed.position()[name] for name in ("read", "last_batch", "stream")} for feed in feeds]
        self.position = json.loads(json.dumps(feeds[0].position_of_all(lambda _: parts)))

    def epoch(self, number: int) -> list[int]:
        return sorted(index for epoch, step in self.steps if epoch == number for index in step)


LEGS = st.lists(
    st.builds(Leg, st.integers(1, 5), st.integers(1, 4), st.integers(1, 3), st.integers(1, 6)), min_size=1, max_size=3
)


def fixed(n: int, drop_last: bool = False) -> Any:
    def make(leg: Leg, place: ProcessRank) -> Loader:
        return Loader(
            ROWS(n), seed=3, collate_fn=plain, batch_sampler=FixedBatches(RandomOrder(n, 3), leg.batch, drop_last)
        )

    return make


@given(n=st.integers(1, 50), legs=LEGS)
def test_each_sample_once_whatever_the_number_of_processes(n: int, legs: list[Leg]) -> None:
    run = Run(fixed(n))
    for leg in [*legs, legs[-1]._replace(steps=10**6)]:
        run.go(leg, epochs=2)
    assert run.epoch(0) == run.epoch(1) == list(range(n))
    order = RandomOrder(n, 3)
    for epoch in range(2):
        order.set_epoch(epoch)
        whole, place = order.indices(), 0
        for _, step in (entry for entry in run.steps if entry[0] == epoch):
            # Steps follow the global order, so only their sizes depend on who took them.
            assert step == sorted(whole[place : place + len(step)])
            place += len(step)


SHARES = {
    12: [(1, 12, 1), (1, 4, 3), (2, 3, 2), (2, 6, 1), (3, 2, 2), (3, 4, 1), (4, 3, 1), (4, 1, 3), (6, 1, 2), (6, 2, 1)],
    4: [(1, 4, 1), (1, 2, 2), (2, 2, 1), (2, 1, 2), (4, 1, 1)],
}


@st.composite
def same_steps(draw: Any) -> tuple[int, list[Leg]]:
    size = draw(st.sampled_from(sorted(SHARES)))
    chosen = draw(st.lists(st.sampled_from(SHARES[size]), min_size=2, max_size=4))
    return size, [Leg(world, batch, accumulation, draw(st.integers(1, 5))) for world, batch, accumulation in chosen]


@pytest.mark.slow
@given(n=st.integers(1, 60), legs=same_steps())
def test_the_same_steps_for_the_same_global_batch(n: int, legs: tuple[int, list[Leg]]) -> None:
    size, parts = legs
    alone, run = Run(fixed(n)), Run(fixed(n))
    alone.go(Leg(1, size, 1, 10**6), epochs=3)
    for leg in [*parts, parts[-1]._replace(steps=10**6)]:
        run.go(leg, epochs=3)
    assert run.steps == alone.steps


@pytest.mark.slow
@given(
    n=st.integers(1, 60), worlds=st.lists(st.sampled_from([1, 2, 3, 6]), min_size=1, max_size=3), stop=st.integers(1, 4)
)
def test_drop_last_drops_what_one_process_would_drop(n: int, worlds: list[int], stop: int) -> None:
    """The same batch of all processes: one process with it drops the same samples."""
    alone, run = Run(fixed(n, drop_last=True)), Run(fixed(n, drop_last=True))
    alone.go(Leg(1, 6, 2, 10**6), epochs=2)
    for world in worlds:
        run.go(Leg(world, 6 // world, 2, stop), epochs=2)
    run.go(Leg(worlds[-1], 6 // worlds[-1], 2, 10**6), epochs=2)
    assert run.steps == alone.steps


class Uneven(Sampler[list[int]]):
    """A user's batch sampler: batches of different sizes, shuffled."""

    def __init__(self, n: int) -> None:
        self.n, self.epoch = n, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return math.ceil(self.n / 2)

    def __iter__(self) -> Iterator[list[int]]:
        shift = self.epoch
        every = [(index + shift) % self.n for index in range(self.n)]
        return iter([every[place : place + 2] for place in range(0, self.n, 2)])


def budget(n: int) -> Any:
    def make(leg: Leg, place: ProcessRank) -> Loader:
        lengths = [1 + index % 5 for index in range(n)]
        batches = TokenBudgetBatches(RandomOrder(n, 3), lengths, 12, seed=3)
        return Loader(ROWS(n), seed=3, collate_fn=plain, batch_sampler=batches)

    return make


def custom(n: int) -> Any:
    return lambda leg, place: resumable_loader(DataLoader(ROWS(n), batch_sampler=Uneven(n), collate_fn=plain), 3)


class Loading:
    """A loader of somebody else's, with or without a state."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[list[int]]:
        return iter([list(range(place, min(place + 2, self.n))) for place in range(0, self.n, 2)])


@pytest.mark.slow
@settings(max_examples=25)
@pytest.mark.parametrize("kind", [budget, custom])
@given(
    n=st.integers(1, 60),
    worlds=st.lists(st.tuples(st.sampled_from([1, 2, 3, 4, 6, 12]), st.integers(1, 3)), min_size=2, max_size=3),
)
def test_batches_of_any_size_are_shared_out_whole(kind: Any, n: int, worlds: list[tuple[int, int]]) -> None:
    alone, run = Run(kind(n)), Run(kind(n))
    alone.go(Leg(1, 2, 12, 10**6), epochs=2)
    for world, stop in [*worlds, (worlds[-1][0], 10**6)]:
        run.go(Leg(world, 2, 12 // world, stop), epochs=2)
    assert run.steps == alone.steps
    assert run.epoch(0) == list(range(n))


class Numbers(IterableDataset[int]):
    """A stream that knows nothing of processes."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.n))


class Remembering(Numbers):
    """One that can go on where it was."""

    place = 0

    def __iter__(self) -> Iterator[int]:
        while self.place < self.n:
            self.place += 1
            yield self.place - 1
        self.place = 0

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


def stream(kind: Any) -> Any:
    return lambda n: lambda leg, place: Loader(kind(n), seed=3, collate_fn=plain, batch_size=leg.batch)


def theirs(n: int) -> Any:
    return lambda leg, place: Loading(n)


@settings(max_examples=25)
@pytest.mark.parametrize("kind", [stream(Numbers), stream(Remembering)], ids=["read again", "by state"])
@given(
    n=st.integers(1, 50),
    worlds=st.lists(st.tuples(st.sampled_from([1, 2, 3, 6]), st.integers(1, 3)), min_size=1, max_size=3),
)
def test_streams_are_shared_out_by_sample(kind: Any, n: int, worlds: list[tuple[int, int]]) -> None:
    alone, run = Run(kind(n)), Run(kind(n))
    alone.go(Leg(1, 6, 2, 10**6), epochs=2)
    for world, stop in [*worlds, (worlds[-1][0], 10**6)]:
        run.go(Leg(world, 6 // world, 2, stop), epochs=2)
    assert run.steps == alone.steps
    assert run.epoch(1) == list(range(n))


def test_a_loader_of_somebody_elses_is_read_by_all(caplog: pytest.LogCaptureFixture) -> None:
    alone, run = Run(theirs(27)), Run(theirs(27))
    alone.go(Leg(1, 2, 6, 10**6), epochs=2)
    for leg in (Leg(2, 2, 3, 1), Leg(3, 2, 2, 2), Leg(1, 2, 6, 10**6)):
        run.go(leg, epochs=2)
    assert run.steps == alone.steps
    assert "Each of 2 processes reads all batches of Loading" in caplog.text


class Split(Numbers):
    """A stream that shares itself out."""

    splits_by_process = True


def test_who_shares_out_by_himself_is_left_alone() -> None:
    place = ProcessRank(1, 1, 2)
    loader = shared_training(Loader(Split(5), collate_fn=plain, batch_size=2), place, 1)
    assert loader.split == "itself"
    assert list(loader) == [[0, 1], [2, 3], [4]]
    own = Loading(6)
    own.splits_by_process = True  # type: ignore[attr-defined]
    assert shared_training(own, place, 1) is own


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_workers_of_all_processes_share_a_stream(workers: int) -> None:
    """Also one that would share itself out among the workers of one process."""

    class Asks(Numbers):
        def __iter__(self) -> Iterator[int]:
            from torch.utils.data import get_worker_info

            info = get_worker_info()
            return iter(range(self.n) if info is None else range(info.id, self.n, info.num_workers))

    for kind in (Numbers, Asks):
        parts = []
        for rank in range(3):
            loader = Loader(kind(29), collate_fn=plain, batch_size=2, num_workers=workers)
            loader = shared_training(loader, ProcessRank(rank, rank, 3), 1)
            feed = TrainFeed(loader, 1, None, process=ProcessRank(rank, rank, 3))
            parts.append([[] if feed.on_filler() else batch for (batch,) in feed.groups()])
            loader.close()
        rounds = [sorted(index for part in parts for index in part[place]) for place in range(5)]
        assert rounds == [list(range(start, min(start + 6, 29))) for start in range(0, 29, 6)]


def test_what_a_collator_draws_does_not_change_the_stream() -> None:
    """A stream shuffles with the global generators, and so does a collator; all processes still share it."""
    import random

    class Shuffled(Numbers):
        def __iter__(self) -> Iterator[int]:
            for start in range(0, self.n, 4):
                some = list(range(start, min(start + 4, self.n)))
                random.shuffle(some)
                yield from some

    def noisy(samples: list[int]) -> Any:
        return [(sample, random.random()) for sample in samples for _ in range(1 + sample % 2)]

    found: list[list[Any]] = []
    for rank in range(2):
        loader = Loader(Shuffled(21), seed=4, collate_fn=noisy, batch_size=3)
        loader = shared_training(loader, ProcessRank(rank, rank, 2), 1)
        loader.set_epoch(1)
        found.append([pair for batch in loader for pair in (batch if isinstance(batch, list) else [])])
    numbers = [{number for number, _ in part} for part in found]
    assert not numbers[0] & numbers[1]
    assert numbers[0] | numbers[1] == set(range(21))
    assert not {draw for _, draw in found[0]} & {draw for _, draw in found[1]}


def test_a_stream_that_is_shared_out_by_itself_needs_as_many_processes() -> None:
    run = Run(lambda leg, place: Loader(Split(40), collate_fn=plain, batch_size=2))
    run.go(Leg(2, 2, 1, 3), epochs=1)
    with pytest.raises(
        ValueError, match=r"with 2 processes, now it has 4.*shared out by its own means.*ignore_data_skip"
    ):
        run.go(Leg(4, 2, 1, 3), epochs=1)


@given(n=st.integers(1, 40), world=st.integers(1, 4), batch=st.integers(1, 3))
def test_length_groups_are_those_of_all_processes(n: int, world: int, batch: int) -> None:
    lengths = [1 + (index * 7) % 11 for index in range(n)]

    def make(leg: Leg, place: ProcessRank) -> Loader:
        order: Order = LengthGroupedOrder(lengths, 12, 3)
        return Loader(ROWS(n), seed=3, collate_fn=plain, batch_sampler=FixedBatches(order, leg.batch))

    run = Run(make)
    run.go(Leg(world, batch, 2, 10**6), epochs=2)
    assert run.epoch(0) == run.epoch(1) == list(range(n))


@pytest.mark.parametrize("world", [2, 3, 5])
@pytest.mark.parametrize("n", [1, 4, 17])
def test_evaluation_loaders_give_every_sample_once(world: int, n: int) -> None:
    makers: dict[str, Any] = {
        "map": lambda: DataLoader(ROWS(n), batch_size=2, collate_fn=plain),
        "stream": lambda: DataLoader(Numbers(n), batch_size=2, collate_fn=plain),
        "custom": lambda: DataLoader(ROWS(n), batch_sampler=Uneven(n), collate_fn=plain),
        "theirs": lambda: Loading(n),
    }
    for name, make in makers.items():
        loaders = [shared_evaluation(make(), ProcessRank(rank, rank, world), 0) for rank in range(world)]
        found = sorted(index for loader in loaders for batch in loader for index in batch)
        assert found == list(range(n)), name
        expected = {"map": None, "stream": "samples", "custom": "batches", "theirs": "batches"}[name]
        assert sharing_of(loaders[0], ProcessRank(0, 0, world)) == expected


def test_dropping_the_last_batch_in_evaluation_drops_what_one_process_drops() -> None:
    loaders = [
        shared_evaluation(
            DataLoader(ROWS(11), batch_size=3, drop_last=True, collate_fn=plain), ProcessRank(rank, rank, 2), 0
        )
        for rank in range(2)
    ]
    assert [index for loader in loaders for batch in loader for index in batch] == list(range(9))


def test_a_loader_knows_its_part_of_a_sized_stream() -> None:
    class Sized(Numbers):
        def __len__(self) -> int:
            return self.n

    loader = shared_training(Loader(Sized(13), batch_size=2, collate_fn=plain), ProcessRank(1, 1, 2), 1)
    assert len(loader) == 4
    assert isinstance(shared_training(Loading(5), ProcessRank(1, 1, 2), 1), EveryNth)


def test_data_that_nobody_could_share_out_is_refused() -> None:
    place = ProcessRank(0, 0, 2)
    several = DataLoader(Numbers(9), batch_size=2, num_workers=2, worker_init_fn=lambda worker: None)
    with pytest.raises(
        ValueError, match=r"worker_init_fn may share Numbers out among workers.*splits_by_process = True"
    ):
        shared_training(resumable_loader(several, 0), place, 1)
    pipe = IterableWrapper(range(9))
    with pytest.raises(ValueError, match=r"add .sharding_filter\(\)"):
        shared_training(Loader(pipe, batch_size=2, collate_fn=plain), place, 1)
    assert shared_training(Loader(pipe.sharding_filter(), batch_size=2, collate_fn=plain), place, 1).split == "itself"


def test_processes_with_different_numbers_of_steps_are_refused() -> None:
    class Two(SingleProcess):
        def gather(self, value: Any) -> list[Any]:
            return [value, value + 1]

    plan = TrainingPlan(1, 3, 3, 3, 12, 12)
    refuse_uneven(plan, SingleProcess())
    with pytest.raises(ValueError, match=r"different numbers of steps in an epoch \(\[3, 4\]\).*DistributedSampler"):
        refuse_uneven(plan, Two())


def test_a_sampler_of_somebody_elses_needs_as_many_processes() -> None:
    def make(leg: Leg, place: ProcessRank) -> Any:
        sampler = DistributedSampler(ROWS(40), num_replicas=leg.world, rank=place.rank)
        return resumable_loader(DataLoader(ROWS(40), batch_size=leg.batch, sampler=sampler, collate_fn=plain), 3)

    whole, run = Run(make), Run(make)
    whole.go(Leg(2, 2, 1, 10**6), epochs=1)
    run.go(Leg(2, 2, 1, 3), epochs=1)
    run.go(Leg(2, 2, 1, 2), epochs=1)
    assert run.steps == whole.steps[:5]
    with pytest.raises(ValueError, match=r"2 processes, now it has 4.*not ours to say.*ignore_data_skip"):
        run.go(Leg(4, 2, 1, 3), epochs=1)


def test_batches_left_out_are_left_out_by_any_number_of_processes() -> None:
    """Steps 1 and 3 of two processes failed; whoever goes on does not train on a sample of them."""
    run = Run(fixed(48))
    run.go(Leg(2, 2, 2, 10**6), epochs=1)
    bad = {index for number in (1, 3) for index in run.steps[number][1]}
    again = Run(fixed(48))
    again.go(Leg(2, 2, 2, 1), epochs=1)
    assert again.position is not None
    again.position["left_out"] = {"0": [2, 3, 6, 7]}
    for leg in (Leg(4, 1, 2, 1), Leg(1, 4, 2, 1), Leg(2, 2, 2, 10**6)):
        again.go(leg, epochs=1)
    assert set(again.epoch(0)) == set(range(48)) - bad
