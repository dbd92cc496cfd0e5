"""Only what the model takes reaches it, and nothing disappears silently."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from trainwright.data.collators import default_data_collator
from trainwright.data.columns import DropColumnsCollator, forward_columns, remove_unused_columns, use_columns


class Classifier(nn.Module):
    def forward(self, input_ids: Any, attention_mask: Any = None, labels: Any = None, **kwargs: Any) -> None: ...


class TakesAnything(nn.Module):
    def forward(self, *args: Any, **kwargs: Any) -> None: ...


KEEP = ["input_ids", "attention_mask", "labels", "label", "label_ids"]


@pytest.fixture(autouse=True)
def info_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.INFO, "trainwright"):
        yield


def hf(**columns: list[Any]) -> Any:
    import datasets

    return datasets.Dataset.from_dict(columns)


def identity(features: list[Any]) -> list[Any]:
    return features


def test_forward_columns_are_the_named_parameters_and_the_labels() -> None:
    assert forward_columns(Classifier()) == KEEP
    assert forward_columns(Classifier(), ["start_positions"]) == [*KEEP, "start_positions"]
    assert forward_columns(TakesAnything()) is None


@pytest.mark.slow
def test_forward_columns_look_through_wrappers() -> None:
    class Adapter(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def get_base_model(self) -> nn.Module:
            return self.inner

        def forward(self, *args: Any, **kwargs: Any) -> None: ...

    assert forward_columns(Adapter(Classifier())) == KEEP
    assert forward_columns(torch.compile(Classifier())) == KEEP


def test_forward_columns_of_a_real_adapter() -> None:
    import peft
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=20)
    model = BertForSequenceClassification(config)
    wanted = forward_columns(model)
    assert wanted is not None
    assert "input_ids" in wanted
    wrapped = peft.get_peft_model(model, peft.LoraConfig(target_modules=["query"], r=2))
    assert forward_columns(wrapped) == wanted


def test_unused_columns_are_removed_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    dataset = hf(input_ids=[[1]], label=[0], text=["a"], idx=[7])
    result = remove_unused_columns(dataset, KEEP, "training")
    assert result.column_names == ["input_ids", "label"]
    assert len(caplog.records) == 1
    assert "Dropping text, idx from the training set" in caplog.text
    assert "remove_unused_columns=False" in caplog.text
    caplog.clear()
    assert remove_unused_columns(result, KEEP) is result
    assert remove_unused_columns(dataset, None) is dataset
    assert not caplog.records


def test_the_same_columns_remain_as_with_hugging_face(tmp_path: Any) -> None:
    from transformers import Trainer, TrainingArguments

    dataset = hf(input_ids=[[1]], label=[0], label_ids=[0], labels=[0], text=["a"], kwargs=[1])
    args = TrainingArguments(output_dir=str(tmp_path), report_to=[], use_cpu=True)
    theirs = Trainer(model=Classifier(), args=args)._remove_unused_columns(dataset)
    ours = remove_unused_columns(dataset, forward_columns(Classifier()))
    # Theirs takes the name of **kwargs for a column; no forward can be given one of that name by position.
    assert set(ours.column_names) == set(theirs.column_names) - {"kwargs"}


def test_a_streaming_dataset_is_narrowed_too() -> None:
    dataset = hf(input_ids=[[1], [2]], text=["a", "b"]).to_iterable_dataset()
    result = remove_unused_columns(dataset, KEEP)
    assert list(result) == [{"input_ids": [1]}, {"input_ids": [2]}]


def test_a_streaming_dataset_of_unknown_columns_is_narrowed_by_the_collator() -> None:
    import datasets

    def samples() -> Iterator[dict[str, Any]]:
        yield {"input_ids": [1], "text": "a"}

    stream = datasets.IterableDataset.from_generator(samples)
    dataset, collate = use_columns(stream, identity, KEEP)
    assert dataset is stream
    assert collate(list(dataset)) == [{"input_ids": [1]}]


def test_a_dataset_is_never_emptied() -> None:
    with pytest.raises(ValueError, match=r"text, idx of the training set.*remove_unused_columns=False"):
        remove_unused_columns(hf(text=["a"], idx=[1]), KEEP, "training")
    hidden = hf(input_ids=[[1]], text=["a"]).with_format(None, columns=["text"])
    with pytest.raises(ValueError, match="none of the columns text"):
        remove_unused_columns(hidden, KEEP)
    with pytest.raises(ValueError, match=r"none of the columns text.*remove_unused_columns=False"):
        DropColumnsCollator(identity, KEEP)([{"text": "a"}])


def test_labels_alone_are_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    remove_unused_columns(hf(text=["a"], label=[1]), KEEP, "training")
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]
    assert "Only labels (label) remain" in caplog.text


def test_a_transform_sees_all_columns_and_the_collator_drops_afterwards() -> None:
    dataset = hf(text=["a b", "c d"], label=[0, 1]).with_transform(
        lambda rows: {"input_ids": [[len(w) for w in t.split()] for t in rows["text"]], **rows}
    )
    narrowed, collate = use_columns(dataset, default_data_collator, KEEP, "training")
    assert narrowed is dataset
    assert remove_unused_columns(dataset, KEEP) is dataset
    batch = collate([narrowed[0], narrowed[1]])
    assert set(batch) == {"input_ids", "labels"}
    assert batch["labels"].tolist() == [0, 1]


def test_use_columns_narrows_where_columns_are_known() -> None:
    dataset, collate = use_columns(hf(input_ids=[[1]], text=["a"]), identity, KEEP)
    assert dataset.column_names == ["input_ids"]
    assert collate is identity
    plain = [{"text": 1}]
    assert use_columns(plain, identity, None) == (plain, identity)


def test_the_collator_drops_keys_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    collate = DropColumnsCollator(identity, KEEP, "training")
    mixed = [{"input_ids": [1]}, {"input_ids": [2], "text": "b"}]
    assert collate(mixed) == [{"input_ids": [1]}, {"input_ids": [2]}]
    assert collate(mixed) == [{"input_ids": [1]}, {"input_ids": [2]}]
    assert len(caplog.records) == 1
    assert "Dropping text from the training set" in caplog.text
    clean = [{"input_ids": [1]}]
    assert collate(clean) is clean, "nothing to drop, nothing copied"


def test_the_collator_leaves_other_samples_alone() -> None:
    collate = DropColumnsCollator(identity, KEEP)
    for features in ([(1, 2), (3, 4)], [torch.ones(1)], [1, 2], []):
        assert collate(features) is features
    anything = DropColumnsCollator(identity, None)
    assert anything([{"whatever": 1}]) == [{"whatever": 1}]


def test_batch_encodings_are_narrowed(tokenizer: Any) -> None:
    features = [tokenizer("the cat", return_offsets_mapping=True)]
    assert set(DropColumnsCollator(identity, KEEP)(features)[0]) == {"input_ids", "attention_mask"}
