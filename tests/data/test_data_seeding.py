"""What data draws at random: the same with any number of workers, in any epoch, after any resume."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset, IterableDataset, get_worker_info
from torch.utils.data._utils import fetch as torch_fetch

from trainwright.data.collators import collate_any
from trainwright.data.exact_json import from_plain, to_plain
from trainwright.data.loader import Loader, train_loader
from trainwright.data.seeding import MapFetch
from trainwright.randomness import global_generators
from trainwright.randomness.global_generators import GeneratorStates

MakeArgs = Callable[..., Any]


def draw_all() -> list[float]:
    """One number from each global generator, and one from each cache of normal numbers."""
    return [
        random.random(),
        random.gauss(0, 1),
        float(np.random.rand()),
        float(np.random.randn()),
        torch.rand(()).item(),
        torch.randn(()).item(),
    ]


class Augmenting(Dataset[Any]):
    """Draws from all generators, from the sample number ``quiet`` on (in the order of reading)."""

    def __init__(self, n: int = 24, quiet: int = 0) -> None:
        self.n = n
        self.quiet = quiet
        self.read = 0
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> dict[str, Any]:
        noise = draw_all() if index >= self.quiet else [0.0] * 6
        return {"x": torch.tensor(noise), "index": index, "epoch": self.epoch}


class Batched(Augmenting):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        shift = random.random()
        return [{**self[index], "shift": shift} for index in indices]


def masking(features: list[Any]) -> dict[str, Any]:
    batch = collate_any(features)
    batch["mask"] = torch.rand(len(features)) < 0.5
    batch["noise"] = np.random.rand(2) + random.random()
    return batch


def epochs_of(loader: Any, count: int = 3) -> list[Any]:
    found = []
    for epoch in range(count):
        loader.set_epoch(epoch)
        found.append([to_plain(batch) for batch in loader])
    loader.close()
    return found


def mains() -> list[Any]:
    return [random.getstate(), to_plain(np.random.get_state(legacy=False)), torch.get_rng_state().tolist()]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Augmenting, Batched])
def test_workers_change_no_random_number(make_args: MakeArgs, kind: type[Augmenting]) -> None:
    def batches(workers: int, **options: Any) -> list[Any]:
        args = make_args(dataloader_num_workers=workers, **options)
        return epochs_of(train_loader(kind(), batch_size=5, collate=masking, args=args))

    draw_all()
    before = mains()
    alone = batches(0)
    assert alone == batches(1) == batches(2) == batches(2, dataloader_persistent_workers=True)
    assert mains() == before
    assert len({str(epoch) for epoch in alone}) == 3
    numbers = [value for epoch in alone for batch in epoch for value in from_plain(batch)["x"].flatten().tolist()]
    assert len(set(numbers)) == len(numbers)
    assert alone != batches(0, seed=1)
    # A sample is the same in whichever process it comes.
    assert alone == batches(0, number=1)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_sample_draws_the_same_wherever_the_epoch_starts(make_args: MakeArgs, workers: int) -> None:
    args = make_args(dataloader_num_workers=workers)
    whole = epochs_of(train_loader(Augmenting(), batch_size=5, collate=masking, args=args))
    for start in (1, 4):
        loader = train_loader(Augmenting(), batch_size=5, collate=masking, args=args)
        loader.set_epoch(2)
        loader.start_at(start)
        random.seed(start)
        assert [to_plain(batch) for batch in loader] == whole[2][start:]
        loader.close()


@pytest.mark.slow
@pytest.mark.parametrize("quiet", [10, 15, 23])
def test_data_that_draws_late_is_seeded_from_then_on(make_args: MakeArgs, quiet: int) -> None:
    def batches(workers: int) -> list[Any]:
        args = make_args(dataloader_num_workers=workers, train_sampling_strategy="sequential")
        return epochs_of(train_loader(Augmenting(quiet=quiet), batch_size=5, collate=collate_any, args=args))

    before = mains()
    assert batches(0) == batches(2)
    assert mains() == before


def test_a_cached_normal_number_is_noticed(make_args: MakeArgs) -> None:
    """The second of a pair of normal numbers moves no word of the generator."""

    class OneNormal(Augmenting):
        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"x": float(np.random.randn()) if index % 2 else random.gauss(0, 1)}

    def first_batch() -> Any:
        args = make_args(train_sampling_strategy="sequential")
        return to_plain(next(iter(train_loader(OneNormal(), batch_size=2, collate=collate_any, args=args))))

    random.seed(1)
    np.random.seed(1)
    fresh = first_batch()
    random.gauss(0, 1)
    np.random.randn()
    before = mains()
    assert first_batch() == fresh
    assert mains() == before


def test_data_without_draws_is_read_once(make_args: MakeArgs) -> None:
    class Counted(Augmenting):
        def __getitem__(self, index: int) -> Any:
            self.read += 1
            return {"x": index}

    data = Counted()
    list(train_loader(data, batch_size=5, collate=collate_any, args=make_args()))
    assert data.read == 24


def test_an_error_in_a_sample_leaves_the_generators_alone(make_args: MakeArgs) -> None:
    class Broken(Augmenting):
        def __getitem__(self, index: int) -> Any:
            draw_all()
            raise OSError("no such image")

    before = mains()
    with pytest.raises(OSError, match="no such image"):
        next(iter(train_loader(Broken(), batch_size=5, collate=collate_any, args=make_args())))
    assert mains() == before


class Whose(Augmenting):
    """Says what a worker knows of its dataset."""

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        assert info is not None
        return {"is_own": info.dataset is self, "tag": info.dataset.tag}  # type: ignore[attr-defined]


def tag_the_dataset(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.tag = 10 + worker  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_loader_and_workers_show_the_users_own_objects(context: str) -> None:
    data: Any = Whose()
    loader = Loader(
        data,
        batch_size=6,
        collate_fn=collate_any,
        num_workers=1,
        worker_init_fn=tag_the_dataset,
        multiprocessing_context=context,
    )
    batch = next(iter(loader))
    assert batch["is_own"].all()
    assert batch["tag"].tolist() == [10] * 6
    assert loader.dataset is data
    assert loader.collate_fn is collate_any
    loader.close()


class ShuffleBuffer(IterableDataset[Any]):
    """Carries randomness from sample to sample, drawn from the global generators."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        rows = list(range(info.id, 30, info.num_workers) if info else range(30))
        buffer: list[int] = []
        for row in rows:
            buffer.append(row)
            if len(buffer) > 5:
                yield {"x": buffer.pop(random.randrange(len(buffer))), "noise": draw_all()}
        np.random.shuffle(buffer)
        for row in buffer:
            yield {"x": row, "noise": draw_all()}


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
def test_a_stream_repeats_its_epochs(options: dict[str, Any]) -> None:
    def epochs(order: list[int]) -> dict[int, Any]:
        loader = Loader(ShuffleBuffer(), seed=3, batch_size=4, collate_fn=masking, **options)
        found = {}
        for epoch in order:
            loader.set_epoch(epoch)
            found[epoch] = []
            for batch in loader:
                torch.rand(3)  # the model draws in between
                random.random()
                found[epoch].append(to_plain(batch))
        loader.close()
        return found

    first = epochs([0, 1])
    assert first[0] != first[1]
    draw_all()
    assert epochs([1, 0]) == first


def test_a_stream_leaves_the_generators_alone() -> None:
    before = mains()
    loader = Loader(ShuffleBuffer(), seed=3, batch_size=4, collate_fn=masking)
    assert len(list(loader)) == 8
    assert mains() == before


# ---- the generators themselves


@settings(max_examples=30, deadline=None)
@given(before=st.integers(0, 700), after=st.integers(1, 700), normals=st.booleans())
def test_generator_states_are_restored_exactly(before: int, after: int, normals: bool) -> None:
    def use(count: int) -> list[float]:
        if normals:
            return [random.gauss(0, 1) for _ in range(count)] + np.random.randn(count).tolist()
        return [random.random() for _ in range(count)] + np.random.rand(count).tolist()

    states = GeneratorStates()
    use(before)
    captured = states.capture()
    assert not states.moved_since(captured)
    assert captured.python == random.getstate()
    assert to_plain(captured.numpy) == to_plain(np.random.get_state(legacy=False))
    drawn = use(after)
    assert states.moved_since(captured)
    states.restore(captured)
    assert use(after) == drawn
    random.setstate(captured.python)
    np.random.set_state(captured.numpy)
    assert use(after) == drawn


def test_generator_states_without_a_look_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(global_generators, "_in_memory", False)
    states = GeneratorStates()
    captured = states.capture()
    assert not states.moved_since(captured)
    drawn = draw_all()[:4]
    assert states.moved_since(captured)
    states.restore(captured)
    assert draw_all()[:4] == drawn
    assert captured.python[0] == random.getstate()[0]
    assert captured.numpy["bit_generator"] == "MT19937"


def test_another_bit_generator_of_numpys_is_followed() -> None:
    if not hasattr(np.random, "set_bit_generator"):
        pytest.skip("numpy before 1.24")
    usual = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(4))
        states = GeneratorStates()
        captured = states.capture()
        drawn = np.random.rand(3).tolist()
        assert states.moved_since(captured)
        states.restore(captured)
        assert np.random.rand(3).tolist() == drawn
    finally:
        np.random.set_bit_generator(usual)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda part: (
        st.lists(part)
        | st.lists(part).map(tuple)
        | st.dictionaries(st.text() | st.integers(), part)
        | st.dictionaries(st.just("__tuple__"), part)
    ),
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(value=plain)
def test_plain_data_comes_back(value: Any) -> None:
    import json

    found = from_plain(json.loads(json.dumps(to_plain(value))))
    assert found == value
    assert repr(found) == repr(value)


def test_tensors_and_arrays_come_back() -> None:
    for value in (torch.arange(6).reshape(2, 3), torch.zeros(0, 2), torch.tensor(1.5, dtype=torch.bfloat16)):
        found = from_plain(to_plain(value))
        assert found.dtype == value.dtype
        assert torch.equal(found, value)
    array = np.arange(4, dtype=">i2")
    assert from_plain(to_plain(array)).dtype == array.dtype
    assert from_plain(to_plain(np.float32(2))) == 2
    with pytest.raises(TypeError, match="a Random has no plain form"):
        to_plain({"rng": random.Random()})


def test_a_fetcher_that_stands_in_for_torchs_reads_the_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    class Groups(torch_fetch._MapDatasetFetcher):
        """As libraries that pack several samples into one row have it: each index is a group of them."""

        def fetch(self, possibly_batched_index: Any) -> Any:
            return self.collate_fn([[self.dataset[i] for i in group] for group in possibly_batched_index])

    monkeypatch.setattr(torch_fetch, "_MapDatasetFetcher", Groups)
    fetch = MapFetch([10, 11, 12, 13], list, seed=1)
    assert fetch(0, [[0, 2], [3]]) == [[10, 12], [13]]

    class Noisy:
        def __getitem__(self, index: int) -> float:
            return index + random.random()

    drawn = [MapFetch(Noisy(), list, seed=1)(epoch, [[0, 2], [3]]) for epoch in (0, 0, 1)]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]
