"""Loaders: the same batches with any number of workers, from any start, and nobody's random numbers touched."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, Subset, get_worker_info

from trainwright.data.asked_order import eval_order, train_batches
from trainwright.data.batches import FixedBatches, TokenBudgetBatches
from trainwright.data.collators import collate_any
from trainwright.data.columns import DropColumnsCollator
from trainwright.data.loader import Loader, eval_loader, has_length, num_examples, train_loader
from trainwright.data.order import LengthGroupedOrder, RandomOrder, SequentialOrder

MakeArgs = Callable[..., Any]
ROWS = [{"x": torch.tensor([float(index)]), "label": index} for index in range(23)]


class Counted(Dataset[Any]):
    """Remembers which samples were read."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.read.append(index)
        return {"x": torch.tensor(index)}


class Drawing(Dataset[Any]):
    """Draws from the three global generators in a worker."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.tensor([torch.rand(()).item(), random.random(), float(np.random.rand())])}


class Stream(IterableDataset[Any]):
    def __init__(self, n: int = 10) -> None:
        self.n = n
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        start, step = (worker.id, worker.num_workers) if worker else (0, 1)
        return iter([{"x": torch.tensor(index + 100 * self.epoch)} for index in range(start, self.n, step)])


def labels(loader: Any) -> list[list[int]]:
    return [batch["labels"].tolist() for batch in loader]


def xs(loader: Any) -> list[list[int]]:
    return [batch["x"].tolist() for batch in loader]


def joined(batches: Any) -> list[int]:
    return [row for batch in batches for row in batch]


def global_state() -> tuple[Any, ...]:
    return random.getstate(), np.random.get_state(legacy=False)["state"]["key"].tolist(), torch.get_rng_state().tolist()


@settings(max_examples=30, deadline=None)
@given(
    n=st.integers(0, 40),
    size=st.integers(1, 7),
    epoch=st.integers(0, 5),
    skip=st.integers(0, 9),
    drop=st.booleans(),
    many=st.booleans(),
)
def test_the_lean_path_is_torchs_path(n: int, size: int, epoch: int, skip: int, drop: bool, many: bool) -> None:
    rows: Any = [{"x": torch.tensor([float(index)]), "label": index} for index in range(n)]
    dataset = Subset(rows, list(range(n))) if many else rows

    def batches() -> FixedBatches:
        sampler = FixedBatches(RandomOrder(n, 7), size, drop)
        sampler.set_epoch(epoch)
        sampler.start_at(skip)
        return sampler

    before = global_state()
    lean = list(Loader(dataset, batch_sampler=batches(), collate_fn=collate_any))
    assert global_state() == before
    torchs = list(DataLoader(dataset, batch_sampler=batches(), collate_fn=collate_any))
    assert len(lean) == len(torchs)
    for mine, theirs in zip(lean, torchs, strict=True):
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)


def test_the_lean_path_is_taken_without_workers(make_args: MakeArgs) -> None:
    loader = train_loader(ROWS, batch_size=4, collate=collate_any, args=make_args())
    assert isinstance(iter(loader), Iterator)
    assert "DataLoaderIter" not in type(iter(loader)).__name__


@pytest.mark.slow
def test_workers_change_nothing_but_the_speed(make_args: MakeArgs) -> None:
    def batches(workers: int, skip: int = 0, **options: Any) -> list[list[list[int]]]:
        args = make_args(dataloader_num_workers=workers, **options)
        loader = train_loader(ROWS, batch_size=4, collate=collate_any, args=args)
        assert num_examples(loader) == 23
        assert len(loader) == 6
        epochs = []
        for epoch in (0, 1):
            loader.set_epoch(epoch)
            loader.start_at(skip)
            epochs.append(labels(loader))
        return epochs

    before = global_state()
    alone = batches(0)
    helped = batches(2, dataloader_persistent_workers=True, dataloader_prefetch_factor=3)
    resumed = batches(2, skip=2, dataloader_multiprocessing_context="fork")
    assert global_state() == before
    assert alone == helped
    assert resumed == [epoch[2:] for epoch in alone]
    assert alone[0] != alone[1]
    assert sorted(joined(alone[0])) == list(range(23))


@pytest.mark.slow
def test_workers_draw_by_seed_epoch_and_worker(make_args: MakeArgs) -> None:
    def drawn(epoch: int, **options: Any) -> torch.Tensor:
        args = make_args(dataloader_num_workers=2, train_sampling_strategy="sequential", **options)
        loader = train_loader(Drawing(), batch_size=4, collate=collate_any, args=args)
        loader.set_epoch(epoch)
        return torch.stack([batch["x"] for batch in loader])

    first = drawn(1)
    torch.manual_seed(4321)
    assert torch.equal(first, drawn(1))
    # Two batches of four rows from two workers, three generators: nothing repeats.
    everything = torch.cat([first, drawn(2), drawn(1, seed=1)]).flatten()
    assert len(everything.unique()) == everything.numel()
    # A sample is the same in whichever process it comes.
    assert torch.equal(first, drawn(1, number=1))


def test_no_sample_of_the_skipped_batches_is_read(make_args: MakeArgs) -> None:
    dataset = Counted(1000)
    loader = train_loader(dataset, batch_size=10, collate=collate_any, args=make_args())
    loader.start_at(98)
    assert len(list(loader)) == 2
    assert len(dataset.read) == 20
    assert dataset.read == RandomOrder(1000, 42).indices()[980:]


def test_the_order_is_that_of_the_data_seed(make_args: MakeArgs) -> None:
    loader = train_loader(ROWS, batch_size=23, collate=collate_any, args=make_args(data_seed=5))
    assert labels(loader) == [RandomOrder(23, 5).indices()]


def test_pinning_waits_for_a_gpu(make_args: MakeArgs) -> None:
    loader = train_loader(ROWS, batch_size=4, collate=collate_any, args=make_args())
    assert loader.pin_memory is torch.cuda.is_available()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_iterable_datasets(make_args: MakeArgs, workers: int) -> None:
    args = make_args(dataloader_num_workers=workers)
    loader = train_loader(Stream(), batch_size=3, collate=collate_any, args=args)
    before = global_state()
    loader.set_epoch(2)
    values = xs(loader)
    assert global_state() == before
    assert sorted(joined(values)) == list(range(200, 210))
    with pytest.raises(ValueError, match="use TrainFeed"):
        loader.start_at(1)
    assert xs(loader) == values
    args = make_args(dataloader_num_workers=workers, dataloader_drop_last=True)
    dropped = train_loader(Stream(), batch_size=3, collate=collate_any, args=args)
    assert {len(batch) for batch in xs(dropped)} == {3}
    assert not has_length(dropped)


@pytest.mark.slow
def test_streaming_datasets_of_hugging_face(make_args: MakeArgs) -> None:
    import datasets

    rows = datasets.Dataset.from_dict({"x": list(range(20))})
    stream = rows.to_iterable_dataset(num_shards=2).shuffle(seed=3, buffer_size=50)
    epochs = {}
    for workers in (0, 2):
        args = make_args(dataloader_num_workers=workers)
        loader = train_loader(stream, batch_size=4, collate=collate_any, args=args)
        for epoch in (0, 1):
            loader.set_epoch(epoch)
            epochs[workers, epoch] = joined(xs(loader))
            assert sorted(epochs[workers, epoch]) == list(range(20))
    assert epochs[0, 0] != epochs[0, 1]


@pytest.mark.parametrize("form", [None, "torch"])
def test_map_style_datasets_of_hugging_face(make_args: MakeArgs, form: str | None) -> None:
    import datasets

    dataset = datasets.Dataset.from_dict({"x": [[1], [2], [3]], "label": [0, 1, 2]}).with_format(form)
    loader = eval_loader(dataset, collate=collate_any, args=make_args(), batch_size=2)
    assert labels(loader) == [[0, 1], [2]]
    assert xs(loader) == [[[1], [2]], [[3]]]


def test_any_object_that_iterates_is_a_dataset(make_args: MakeArgs, caplog: pytest.LogCaptureFixture) -> None:
    class Lines:
        def __iter__(self) -> Iterator[Any]:
            return iter([{"x": 1}, {"x": 2}, {"x": 3}])

    class CountedLines(Lines):
        def __len__(self) -> int:
            return 3

    loader = train_loader(Lines(), batch_size=2, collate=collate_any, args=make_args())
    assert xs(loader) == xs(loader) == [[1, 2], [3]]
    assert not has_length(loader)
    sized = train_loader(CountedLines(), batch_size=2, collate=collate_any, args=make_args())
    assert len(sized) == 2
    assert num_examples(sized) == 3
    assert not caplog.records
    train_loader(Lines(), batch_size=2, collate=collate_any, args=make_args(dataloader_num_workers=2))
    assert "2 workers each iterate the whole of Lines" in caplog.text
    with pytest.raises(ValueError, match="generator can be iterated only once"):
        train_loader((row for row in ROWS), batch_size=2, collate=collate_any, args=make_args())


def test_evaluation_keeps_dataset_order_and_the_last_batch(make_args: MakeArgs) -> None:
    loader = eval_loader(ROWS, collate=collate_any, args=make_args())
    assert joined(labels(loader)) == list(range(23))
    assert [len(batch) for batch in labels(loader)] == [4] * 5 + [3]
    assert loader.sample_order is None
    dropping = eval_loader(ROWS, collate=collate_any, args=make_args(dataloader_drop_last=True))
    assert len(labels(dropping)) == len(dropping) == 5
    stream = eval_loader(Stream(), collate=collate_any, args=make_args(dataloader_drop_last=True))
    assert joined(xs(stream)) == list(range(10))


def test_evaluation_by_length_says_which_row_is_which(make_args: MakeArgs) -> None:
    rows = [{"input_ids": [0] * length, "label": place} for place, length in enumerate([2, 5, 3, 5])]
    args = make_args(train_sampling_strategy="group_by_length")

    def collate(features: list[Any]) -> Any:
        return {"labels": torch.tensor([feature["label"] for feature in features])}

    loader = eval_loader(rows, collate=collate, args=args, batch_size=3, sampler=eval_order(rows, args))
    assert joined(labels(loader)) == loader.sample_order == [1, 3, 2, 0]


def test_training_batches_by_argument(make_args: MakeArgs) -> None:
    rows = [{"input_ids": [0] * (1 + place % 7)} for place in range(40)]
    assert isinstance(train_batches(rows, 4, make_args()).sampler, RandomOrder)
    sequential = train_batches(rows, 4, make_args(train_sampling_strategy="sequential", dataloader_drop_last=True))
    assert isinstance(sequential.sampler, SequentialOrder)
    assert sequential.drop_last
    args = make_args(train_sampling_strategy="group_by_length", gradient_accumulation_steps=3)
    grouped = train_batches(rows, 4, args).sampler
    assert isinstance(grouped, LengthGroupedOrder)
    assert grouped.batch_size == 12
    budget = train_batches(rows, 4, make_args(max_tokens_per_batch=21), pad_to_multiple_of=7)
    assert isinstance(budget, TokenBudgetBatches)
    assert max(map(len, budget)) == 3
    assert sorted(joined(budget)) == list(range(40))
    given = train_batches(rows, 4, make_args(), sampler=RandomSampler(range(40)))
    assert joined(given) == RandomOrder(40, 42).indices()
    with pytest.raises(ValueError, match="train_sampling_strategy='by_mood'"):
        train_batches(rows, 4, make_args(train_sampling_strategy="by_mood"))


def test_dropped_columns_are_named_once_across_workers(make_args: MakeArgs) -> None:
    collate = DropColumnsCollator(collate_any, ["x"])
    loader = train_loader(ROWS, batch_size=8, collate=collate, args=make_args(dataloader_num_workers=1))
    assert set(next(iter(loader))) == {"x"}
    assert collate.has_spoken, "workers of later epochs start from this copy"


def test_dropped_columns_are_named_without_workers(make_args: MakeArgs, caplog: pytest.LogCaptureFixture) -> None:
    loader = train_loader(ROWS, batch_size=8, collate=DropColumnsCollator(collate_any, ["x"]), args=make_args())
    with caplog.at_level(logging.INFO, "trainwright"):
        assert set(next(iter(loader))) == {"x"}
        list(loader)
    assert len(caplog.records) == 1


def test_num_examples_and_has_length() -> None:
    assert has_length([1])
    assert not has_length(iter([1]))
    assert not has_length(Stream())
    assert num_examples(DataLoader(range(10), batch_size=3)) == 10  # type: ignore[arg-type]
    assert num_examples([1, 2, 3]) == 3
