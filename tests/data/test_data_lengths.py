"""Lengths are found without reading samples wherever that is possible."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from trainwright.data.lengths import sample_lengths


class Unreadable:
    """A dataset with columns whose samples must not be read."""

    def __init__(self, columns: dict[str, list[int]]) -> None:
        self.columns = columns
        self.column_names = list(columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self.columns[key]
        raise AssertionError("a sample was read")


def hf(**columns: list[Any]) -> Any:
    import datasets

    return datasets.Dataset.from_dict(columns)


def test_a_length_column_is_read_without_walking(caplog: pytest.LogCaptureFixture) -> None:
    assert sample_lengths(Unreadable({"length": [3, 1, 2]}), "length") == [3, 1, 2]
    assert not caplog.records


@pytest.mark.parametrize("form", [None, "torch", "numpy", "transform"])
def test_a_length_column_of_a_hugging_face_dataset(form: str | None) -> None:
    dataset = hf(input_ids=[[1], [2, 3]], n_tokens=[10, 20])
    if form == "transform":
        dataset = dataset.with_transform(lambda _: pytest.fail("the transform ran"))
    else:
        dataset = dataset.with_format(form)
    assert sample_lengths(dataset, "n_tokens") == [10, 20]
    assert sample_lengths(dataset.select([1, 0]), "n_tokens") == [20, 10]


@pytest.mark.parametrize("form", [None, "torch"])
def test_arrow_lists_are_measured_by_column(form: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    dataset = hf(input_ids=[[1], [2, 3], [], [4, 5, 6]]).with_format(form).select([3, 1, 2])
    monkeypatch.setattr(datasets.Dataset, "__getitem__", lambda *_: pytest.fail("a sample was read"))
    assert sample_lengths(dataset) == [3, 2, 0]


def test_a_column_that_is_no_list_is_walked() -> None:
    assert sample_lengths(hf(input_ids=["abc", "de"])) == [3, 2]


def test_a_transform_is_walked_because_it_makes_the_ids() -> None:
    dataset = hf(text=["a b", "c"]).with_transform(lambda rows: {"input_ids": [text.split() for text in rows["text"]]})
    assert sample_lengths(dataset) == [2, 1]


def test_other_datasets_are_walked_and_say_so_once(caplog: pytest.LogCaptureFixture) -> None:
    class Mapped:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            return {"input_ids": [0] * (index + 1)}

    with caplog.at_level(logging.INFO, "trainwright"):
        assert sample_lengths(Mapped()) == [1, 2, 3]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "all 3 samples" in caplog.text
    assert "length_column_name" in caplog.text
    caplog.clear()
    assert sample_lengths([{"ids": [1, 2]}, {"ids": [], "length": 7}], model_input_name="ids") == [2, 7]
    assert sample_lengths([SimpleNamespace(input_ids=[1, 2])]) == [2]
    assert not caplog.records, "a list in memory is no reason to warn"


def test_missing_input_ids_are_named() -> None:
    with pytest.raises(ValueError, match=r"'input_ids'.*columns text, label.*length_column_name"):
        sample_lengths(hf(text=["a"], label=[1]))
    with pytest.raises(ValueError, match="holds x at index 1"):
        sample_lengths([{"input_ids": [1]}, {"x": 1}])
    with pytest.raises(ValueError, match="is a tuple at index 0"):
        sample_lengths([(1, 2)])
    with pytest.raises(ValueError, match="sample 1 has no 'input_ids'"):
        sample_lengths(hf(input_ids=[[1], None]))
    with pytest.raises(ValueError, match="one whole number per sample"):
        sample_lengths(hf(length=["long", "short"]))
