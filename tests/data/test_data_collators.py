"""Our collators and those of transformers give equal batches."""

from __future__ import annotations

import collections
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch.utils.data import default_collate

from trainwright.data import collators as ours

SENTENCES = ["the cat sat on the mat", "dogs ran", "a big red cat sat", "the dog"]


def assert_same(mine: Any, theirs: Any) -> None:
    assert set(mine) == set(theirs)
    for key, expected in theirs.items():
        got = mine[key]
        if expected is None or isinstance(expected, int):
            assert got == expected
            continue
        assert type(got) is type(expected), key
        assert got.dtype == expected.dtype, key
        assert np.array_equal(np.asarray(got), np.asarray(expected)), key


@dataclass
class Sample:
    x: list[float]
    label: int
    note: str = "skipped"


DEFAULT_CASES: dict[str, list[Any]] = {
    "ints": [{"label": 1, "x": [1, 2]}, {"label": 0, "x": [3, 4]}],
    "float label": [{"label": 1.5, "x": 2}, {"label": 0.5, "x": 3}],
    "bool label": [{"label": True}, {"label": False}],
    "numpy label": [{"label": np.int64(3)}, {"label": np.int64(1)}],
    "numpy float label": [{"label": np.float64(3)}, {"label": np.float64(1)}],
    "label ids": [{"label_ids": [1, 2], "x": 1.0}, {"label_ids": [3, 4], "x": 2.0}],
    "float label ids": [{"label_ids": [1.0, 2.0]}, {"label_ids": [3.0, 4.0]}],
    "labels": [{"labels": [1, 2]}, {"labels": [3, 4]}],
    "no label": [{"label": None, "x": 1}, {"label": None, "x": 2}],
    "no label but ids": [{"label": None, "label_ids": [1]}, {"label": None, "label_ids": [2]}],
    "strings and none": [{"x": 1, "s": "a", "n": None}, {"x": 2, "s": "b", "n": None}],
    "nested": [{"x": [[1, 2], [3, 4]]}, {"x": [[5, 6], [7, 8]]}],
    "ints and floats": [{"x": [1, 2]}, {"x": [0.5, 2]}],
    "bools": [{"x": [True, False]}, {"x": [False, True]}],
    "empty": [{"x": []}, {"x": []}],
    "arrays": [{"x": np.ones((2, 3), np.float32)}, {"x": np.zeros((2, 3), np.float32)}],
    "dataclass": [Sample([1.0], 1), Sample([2.0], 0)],
    "user dict": [collections.UserDict(x=1, label=1), collections.UserDict(x=2, label=0)],
}


@pytest.mark.parametrize("case", DEFAULT_CASES)
@pytest.mark.parametrize("framework", ["pt", "np"])
def test_default_collator(case: str, framework: str) -> None:
    features = DEFAULT_CASES[case]
    expected = transformers.default_data_collator(features, framework)
    assert_same(ours.default_data_collator(features, framework), expected)
    assert_same(ours.DefaultDataCollator(framework)(features), expected)
    if framework == "pt":
        assert_same(ours.collate_any(features), expected)


TENSOR_CASES: dict[str, list[Any]] = {
    "tensors": [{"x": torch.rand(2), "y": torch.ones(1)}, {"x": torch.rand(2), "y": torch.ones(1)}],
    "pixels": [{"pixel_values": torch.rand(3, 4, 4), "label": 1}, {"pixel_values": torch.rand(3, 4, 4), "label": 2}],
    "int label": [{"label": torch.tensor(3)}, {"label": torch.tensor(4)}],
    "one-element label": [{"label": torch.tensor([3])}, {"label": torch.tensor([4])}],
    "half label": [{"label": torch.tensor(3.0).half()}, {"label": torch.tensor(4.0).half()}],
    "label ids": [{"label_ids": torch.tensor([1, 2])}, {"label_ids": torch.tensor([3, 4])}],
}


@pytest.mark.parametrize("case", TENSOR_CASES)
def test_default_collator_of_tensors(case: str) -> None:
    features = TENSOR_CASES[case]
    assert_same(ours.default_data_collator(features), transformers.default_data_collator(features))


def test_default_collator_names_the_field_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"'input_ids'.*\(1,\), \(2,\).*DataCollatorWithPadding"):
        ours.default_data_collator([{"input_ids": [1, 2]}, {"input_ids": [3]}])
    with pytest.raises(ValueError, match=r"'x'.*\(1,\), \(2,\)"):
        ours.default_data_collator([{"x": torch.ones(2)}, {"x": torch.ones(1)}])
    with pytest.raises(ValueError, match="'x'"):
        ours.default_data_collator([{"x": object()}, {"x": object()}])
    with pytest.raises(ValueError, match="'pt' or 'np'"):
        ours.default_data_collator([{"x": 1}], "tf")


Point = collections.namedtuple("Point", "x y")


@pytest.mark.parametrize(
    "features",
    [
        [(torch.ones(2), torch.tensor(1)), (torch.zeros(2), torch.tensor(0))],
        [(torch.ones(2), 1), (torch.zeros(2), 0)],
        [[torch.ones(2), 1.0], [torch.zeros(2), 0.0]],
        [Point(torch.ones(1), 2), Point(torch.ones(1), 3)],
        [torch.ones(2), torch.zeros(2)],
        [np.ones(2), np.zeros(2)],
        [1, 2, 3],
        ["a", "b"],
    ],
    ids=["tensor pairs", "mixed pairs", "lists", "named", "tensors", "arrays", "numbers", "strings"],
)
def test_other_samples_are_collated_as_torch_does(features: list[Any]) -> None:
    mine, theirs = ours.collate_any(features), default_collate(features)
    assert type(mine) is type(theirs)
    if isinstance(theirs, torch.Tensor):
        assert torch.equal(mine, theirs)
    else:
        assert len(mine) == len(theirs)
        assert all(np.array_equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_unequal_tuples_are_torchs_to_explain() -> None:
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        ours.collate_any([(torch.ones(2),), (torch.ones(3),)])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    "options",
    [{}, {"pad_to_multiple_of": 8}, {"padding": "max_length", "max_length": 12}, {"return_tensors": "np"}],
    ids=["longest", "multiple", "max_length", "numpy"],
)
def test_padding_collators(make_tokenizer: Callable[..., Any], side: str, options: dict[str, Any]) -> None:
    tokenizer = make_tokenizer(side)
    encoded = [dict(tokenizer(sentence)) for sentence in SENTENCES]
    labelled = [{**row, "label": place} for place, row in enumerate(encoded)]
    for name, features in {
        "DataCollatorWithPadding": labelled,
        "DataCollatorForTokenClassification": [{**row, "labels": [1] * len(row["input_ids"])} for row in encoded],
        "DataCollatorForSeq2Seq": [{**row, "labels": row["input_ids"][:-1]} for row in encoded],
    }.items():
        mine = getattr(ours, name)(tokenizer, **options)(features)
        assert_same(mine, getattr(transformers, name)(tokenizer, **options)(features))
        bare = [{key: row[key] for key in ("input_ids", "attention_mask")} for row in features]
        assert_same(getattr(ours, name)(tokenizer)(bare), getattr(transformers, name)(tokenizer)(bare))


def test_token_labels_may_be_tensors(tokenizer: Any) -> None:
    features = [
        {"input_ids": [2, 5, 3], "label": torch.tensor([0, 1, 0])},
        {"input_ids": [2], "label": torch.tensor([1])},
    ]
    mine = ours.DataCollatorForTokenClassification(tokenizer)(features)
    assert_same(mine, transformers.DataCollatorForTokenClassification(tokenizer)(features))


def test_seq2seq_details(tokenizer: Any) -> None:
    class Shifter:
        def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
            return labels.roll(1, -1)

    rows = [{"input_ids": [5, 6], "labels": [7, 8]}, {"input_ids": [5], "labels": [9, 10]}]
    arrays = [{**row, "labels": np.array(row["labels"])} for row in rows]
    none = [{**row, "labels": None} for row in rows]
    even = [{"input_ids": [5], "labels": [7]}, {"input_ids": [6], "labels": [8]}]
    cases: list[tuple[list[Any], dict[str, Any]]] = [
        (rows, {"model": Shifter()}),
        (arrays, {"label_pad_token_id": -1, "pad_to_multiple_of": 4, "return_tensors": "np"}),
        (none, {}),
        (even, {"padding": False}),
        (even, {"padding": transformers.utils.PaddingStrategy.DO_NOT_PAD}),
        (rows, {"padding": transformers.utils.PaddingStrategy.MAX_LENGTH, "max_length": 6}),
    ]
    for features, options in cases:
        mine = ours.DataCollatorForSeq2Seq(tokenizer, **options)(features)
        assert_same(mine, transformers.DataCollatorForSeq2Seq(tokenizer, **options)(features))


def test_multiple_choice(tokenizer: Any) -> None:
    def features() -> list[Any]:
        return [
            {"input_ids": [[2, 5], [2, 5, 6]], "attention_mask": [[1, 1], [1, 1, 1]], "label": 1},
            {"input_ids": [[2], [2, 7]], "attention_mask": [[1], [1, 1]], "label": 0},
        ]

    given = features()
    mine = ours.DataCollatorForMultipleChoice(tokenizer)(given)
    assert_same(mine, transformers.DataCollatorForMultipleChoice(tokenizer)(features()))
    assert given == features(), "the samples are the dataset's, not ours to change"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"return_tensors": "np", "separator_id": -1},
        {"return_flash_attn_kwargs": True, "return_seq_idx": True, "position_ids_start": 2},
        {"return_position_ids": False},
    ],
)
def test_flattening(options: dict[str, Any]) -> None:
    plain: list[Any] = [{"input_ids": [1, 2, 3]}, {"input_ids": torch.tensor([4, 5])}]
    labelled = [{**row, "labels": [9] * len(row["input_ids"])} for row in plain]
    for features in (plain, labelled):
        mine = ours.DataCollatorWithFlattening(**options)(features)
        assert_same(mine, transformers.DataCollatorWithFlattening(**options)(features))


def test_the_signatures_are_those_of_transformers() -> None:
    import inspect

    for name in ours.__all__:
        theirs = getattr(transformers, name, None)
        if theirs is not None:
            mine = {p.name: p.default for p in inspect.signature(getattr(ours, name)).parameters.values()}
            assert mine == {p.name: p.default for p in inspect.signature(theirs).parameters.values()}, name


def test_padding_leaves_the_tokenizers_advice_as_it_was(tokenizer: Any) -> None:
    before = dict(tokenizer.deprecation_warnings)
    ours.DataCollatorWithPadding(tokenizer)([{"input_ids": [1]}])
    after = {key: value for key, value in tokenizer.deprecation_warnings.items() if value}
    assert after == before


def test_anything_that_pads_is_a_tokenizer() -> None:
    class Padder:
        def pad(self, features: list[Any], **options: Any) -> dict[str, Any]:
            return {"input_values": torch.ones(len(features), 2), "label": torch.zeros(len(features))}

    assert set(ours.DataCollatorWithPadding(Padder())([{}, {}])) == {"input_values", "labels"}
