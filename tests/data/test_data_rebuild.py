"""A loader someone brings keeps its ways and learns to resume."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, Sampler, WeightedRandomSampler

from trainwright.data.loader import Loader
from trainwright.data.order import RandomOrder
from trainwright.data.rebuild import resumable_loader

ROWS: Any = list(range(20))


class Pairs(Sampler[list[int]]):
    """A batch sampler of one's own, drawing from the global generator."""

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self.generator = generator

    def __iter__(self) -> Iterator[list[int]]:
        for first in torch.randperm(10, generator=self.generator).tolist():
            yield [first, first + 10]

    def __len__(self) -> int:
        return 10


def batches(loader: Any, epoch: int = 0, skip: int = 0) -> list[list[int]]:
    loader.set_epoch(epoch)
    loader.start_at(skip)
    return [batch.tolist() for batch in loader]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["shuffle", "weighted", "pairs", "seeded pairs", "replacement"])
def test_any_map_style_loader_repeats_and_resumes(kind: str, workers: int) -> None:
    options: dict[str, Any] = {
        "shuffle": {"batch_size": 3, "shuffle": True},
        "weighted": {"batch_size": 3, "sampler": WeightedRandomSampler([1.0] * 20, 20)},
        "pairs": {"batch_sampler": Pairs()},
        "seeded pairs": {"batch_sampler": Pairs(torch.Generator().manual_seed(3))},
        "replacement": {"batch_sampler": BatchSampler(RandomSampler(ROWS, replacement=True), 4, True)},
    }[kind]
    loader = resumable_loader(DataLoader(ROWS, num_workers=workers, **options), seed=5)
    assert isinstance(loader, Loader)
    before = torch.get_rng_state()
    first, second = batches(loader), batches(loader, 1)
    assert first != second
    assert len(first) == len(loader)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(777)
    assert batches(loader, 1, skip=2) == second[2:]
    assert batches(loader) == first


def test_settings_are_kept() -> None:
    def collate(rows: list[int]) -> list[int]:
        return rows

    brought = DataLoader(
        ROWS,
        batch_size=8,
        drop_last=True,
        shuffle=True,
        collate_fn=collate,
        num_workers=1,
        prefetch_factor=4,
        timeout=9,
    )
    loader = resumable_loader(brought, seed=5)
    assert list(loader) == [RandomOrder(20, 5).indices()[:8], RandomOrder(20, 5).indices()[8:16]]
    for name in ("dataset", "collate_fn", "num_workers", "prefetch_factor", "timeout", "pin_memory"):
        assert getattr(loader, name) == getattr(brought, name)
    assert resumable_loader(loader, seed=6) is loader


def test_a_loader_over_a_stream_is_rebuilt() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(torch.randperm(20).tolist())

    loader = resumable_loader(DataLoader(Stream(), batch_size=8, drop_last=True), seed=5)
    assert isinstance(loader, Loader)
    before = torch.get_rng_state()
    first = [batch.tolist() for batch in loader]
    assert first == [batch.tolist() for batch in loader]
    assert list(map(len, first)) == [8, 8]
    assert torch.equal(before, torch.get_rng_state())


def test_what_cannot_be_rebuilt_comes_back_as_it_is() -> None:
    class Endless:
        def __iter__(self) -> Iterator[Any]:
            return iter(int, 1)

    class Own(DataLoader[Any]):
        pass

    for loader in (
        DataLoader(ROWS, batch_size=None),
        DataLoader(ROWS, sampler=Endless()),
        DataLoader(ROWS, batch_sampler=Endless()),
        Own(ROWS),
        [1, 2],
    ):
        assert resumable_loader(loader, 0) is loader


@pytest.mark.slow
def test_importing_data_leaves_transformers_and_datasets_out() -> None:
    names = "collators columns lengths loader rebuild"
    program = (
        f"import sys, importlib\nfor name in {names!r}.split(): importlib.import_module('trainwright.data.' + name)\n"
        "sys.exit(str({'transformers', 'datasets', 'accelerate', 'pyarrow'} & set(sys.modules) or ''))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""
