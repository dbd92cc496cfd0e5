"""Data in memory is taken at once: the same batches as sample by sample, and only where all code is known."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import StackDataset, Subset, TensorDataset, default_collate

from trainwright.data import in_memory
from trainwright.data.collators import (
    DataCollatorWithFlattening,
    DefaultDataCollator,
    collate_any,
    default_data_collator,
)
from trainwright.data.columns import DropColumnsCollator
from trainwright.data.in_memory import Pinned, column_gather, is_in_memory, tensor_gather
from trainwright.data.seeding import MapFetch

#: It takes whatever has an index, which its annotations do not say.
Stack: Any = StackDataset
X = torch.arange(40.0).reshape(10, 2, 2)
COLUMNS = {
    "x": X,
    "half": torch.arange(10, dtype=torch.bfloat16),
    "flags": torch.tensor([True, False] * 5),
    "image": torch.randn(10, 1, 1, 3),
    "labels": torch.arange(10),
}
FIELDS: list[dict[str, torch.Tensor]] = [
    COLUMNS,
    {"x": X, "label": torch.arange(10, dtype=torch.int32)},
    {"label": torch.arange(10, dtype=torch.float64), "x": X},
    {"x": X, "label": torch.tensor([True, False] * 5)},
    {"x": X, "label": torch.arange(10).reshape(10, 1)},
    {"label_ids": torch.arange(20).reshape(10, 2), "x": X},
]


def by_samples(dataset: Any, collate: Callable[[list[Any]], Any], indices: Any) -> Any:
    many = getattr(dataset, "__getitems__", None)
    return collate(many(indices) if many else [dataset[index] for index in indices])


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        described = [(each.dtype, each.shape, each.stride(), each.is_contiguous()) for each in (one, other)]
        return described[0] == described[1] and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and type(one) is type(other) and all(same(one[n], other[n]) for n in one)
    return type(one) is type(other) and all(same(a, b) for a, b in zip(one, other, strict=True))


def check(dataset: Any, collate: Any) -> None:
    gather = tensor_gather(dataset, collate)
    assert gather is not None
    for indices in ([3], [0, 9, 4, 4], list(range(10))):
        taken = gather(indices)
        if taken is not None:
            assert same(taken, by_samples(dataset, collate, indices))
        # Whatever happens inside, a fetch gives what it always gave.
        assert same(MapFetch(dataset, collate, 0)(0, indices), by_samples(dataset, collate, indices))


@pytest.mark.parametrize("collate", [collate_any, default_collate])
def test_a_tensor_dataset_gives_the_same_batches(collate: Any) -> None:
    check(TensorDataset(*COLUMNS.values()), collate)
    check(Stack(*COLUMNS.values()), collate)
    check(Subset(TensorDataset(*COLUMNS.values()), [9, 2, 2, 7, 0, 1, 3, 4, 5, 6]), collate)
    check(TensorDataset(X), DropColumnsCollator(collate, ["x"]))
    check(TensorDataset(X), Pinned(collate, lambda batch: batch))


@pytest.mark.parametrize("collate", [collate_any, default_data_collator, default_collate, DefaultDataCollator()])
@pytest.mark.parametrize("fields", FIELDS)
def test_fields_give_the_same_batches(collate: Any, fields: dict[str, torch.Tensor]) -> None:
    check(Stack(**fields), collate)
    check(Stack(**fields), DropColumnsCollator(collate, list(fields)))
    check(Stack(**fields), DropColumnsCollator(collate, ["x"]))


def test_what_is_usual_is_taken_at_once() -> None:
    taken = tensor_gather(Stack(**COLUMNS), DropColumnsCollator(collate_any, list(COLUMNS)))
    assert taken is not None
    assert taken([1, 2]) is not None


class Mine(TensorDataset):
    def __getitem__(self, index: int) -> Any:
        return tuple(2 * tensor[index] for tensor in self.tensors)


def my_collate(samples: list[Any]) -> Any:
    return collate_any(samples)


@pytest.mark.parametrize(
    ("dataset", "collate"),
    [
        (Mine(X), collate_any),
        (Subset(Mine(X), [1, 2]), collate_any),
        ([(X[0],), (X[1],)], collate_any),
        (Stack(x=[1, 2]), collate_any),
        (TensorDataset(X), my_collate),
        (TensorDataset(X), DropColumnsCollator(my_collate, ["x"])),
        (Stack(x=X), DefaultDataCollator(return_tensors="np")),
        (Stack(x=X), DataCollatorWithFlattening()),
    ],
)
def test_code_of_ones_own_sees_every_sample(dataset: Any, collate: Any) -> None:
    assert tensor_gather(dataset, collate) is None


def test_a_patched_class_sees_every_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TensorDataset, "__getitem__", Mine.__getitem__)
    assert not is_in_memory(TensorDataset(X))


def test_a_patched_collation_sees_every_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(in_memory.default_collate_fn_map, torch.Tensor, lambda batch, collate_fn_map=None: batch)
    assert tensor_gather(TensorDataset(X), default_collate) is None


@pytest.mark.parametrize("indices", [[-1, 2], [True, False], [[1, 2]], []])
def test_unusual_indices_go_the_usual_way(indices: Any) -> None:
    fetch, usual = MapFetch(TensorDataset(X), collate_any, 0), None
    try:
        usual = by_samples(TensorDataset(X), collate_any, indices)
    except Exception as error:
        with pytest.raises(type(error)):
            fetch(0, indices)
    else:
        assert same(fetch(0, indices), usual)


@pytest.mark.parametrize("tensor", [X.transpose(1, 2), X.clone().requires_grad_(), X.to_sparse()])
def test_unusual_tensors_go_the_usual_way(tensor: torch.Tensor) -> None:
    gather = tensor_gather(TensorDataset(tensor), collate_any)
    assert gather is not None
    assert gather([1, 2]) is None


def test_tensors_that_are_replaced_or_written_are_seen() -> None:
    dataset = TensorDataset(X.clone())
    fetch = MapFetch(dataset, collate_any, 0)
    assert torch.equal(fetch(0, [1])[0], X[1:2])
    dataset.tensors[0].mul_(2)
    assert torch.equal(fetch(0, [1])[0], 2 * X[1:2])
    dataset.tensors = (torch.ones(10, 1),)
    assert torch.equal(fetch(0, [1])[0], torch.ones(1, 1))


def test_a_fetch_travels_to_workers() -> None:
    fetch = MapFetch(TensorDataset(X), collate_any, 0)
    before = fetch(0, [1, 2])
    assert same(copy.deepcopy(fetch)(0, [1, 2]), before)


def test_columns_of_a_dataset_in_torchs_format_are_not_cut_into_samples() -> None:
    datasets = pytest.importorskip("datasets")
    rows = {"x": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], "label": [1, 0, 2], "name": ["a", "b", "c"]}
    numbers = datasets.Dataset.from_dict({name: rows[name] for name in ("x", "label")})
    for dataset, is_taken in (
        (numbers.with_format("torch"), True),
        (datasets.Dataset.from_dict(rows).with_format("torch"), True),
        (numbers, False),
        (numbers.with_format("numpy"), False),
        (numbers.with_transform(lambda batch: batch), False),
    ):
        gather = column_gather(dataset, collate_any)
        assert (gather is not None) == is_taken
        if gather is not None:
            assert same(gather([2, 0]), collate_any(dataset.__getitems__([2, 0])))
    ragged = datasets.Dataset.from_dict({"x": [[1], [2, 3]]}).with_format("torch")
    gather = column_gather(ragged, collate_any)
    assert gather is not None
    with pytest.raises(ValueError, match="Pad or truncate"):
        gather([0, 1])
