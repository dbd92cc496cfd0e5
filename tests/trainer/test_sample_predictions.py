"""``SamplePredictions``: the same few samples at each evaluation, and a training that does not notice."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.models import Plain, classification_rows, tiny_gpt2, token_rows
from trainwright import SamplePredictions, Trainer, TrainingArguments

Make = Callable[..., TrainingArguments]


def trained(make_args: Make, model: nn.Module, rows: Any, *callbacks: Any, **kwargs: Any) -> Trainer:
    defaults: dict[str, Any] = {"max_steps": 4, "eval_strategy": "steps", "eval_steps": 2, "logging_steps": 2}
    args = make_args(**{**defaults, "report_to": "none", **kwargs})
    trainer = Trainer(model, args, train_dataset=rows, eval_dataset=rows, callbacks=list(callbacks))
    trainer.train()
    return trainer


def samples(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "run/samples.jsonl").read_text().splitlines()]


class DrawsWhenAsked(torch.utils.data.Dataset[Any]):
    """Augments its rows, by the global generators and by one of its own."""

    def __init__(self) -> None:
        self.rows, self.own = classification_rows(16), np.random.default_rng(3)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        noise = random.random() + float(self.own.random()) + float(torch.rand(()))
        return {**self.rows[index], "x": self.rows[index]["x"] + noise}


class WithDropout(Plain):
    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(super().logits(x), training=self.training)


def test_a_classifier_names_a_class_and_the_training_is_the_same_bit_by_bit(make_args: Make, tmp_path: Path) -> None:
    plain = trained(make_args, WithDropout(), DrawsWhenAsked(), output_dir=str(tmp_path / "plain"))
    shown = SamplePredictions(3, classes=["cat", "dog", "owl"])
    with_it = trained(make_args, WithDropout(), DrawsWhenAsked(), shown, report_to="jsonl")
    for one, other in zip(plain.model.parameters(), with_it.model.parameters(), strict=True):
        assert torch.equal(one, other)
    lines = samples(tmp_path)
    assert [line["step"] for line in lines] == [2, 2, 2, 4, 4, 4]
    assert {line["kind"] for line in lines} == {"class"}
    assert {line["prediction"] for line in lines} | {line["label"] for line in lines} <= {"cat", "dog", "owl"}
    assert all(1 / 3 <= line["probability"] <= 1 for line in lines)
    assert [line["input"] for line in lines[:3]] == [line["input"] for line in lines[3:]], "the samples stay the same"
    told = [json.loads(line) for line in (tmp_path / "run/tracker.jsonl").read_text().splitlines()]
    texts = [line["text"] for line in told if line["event"] == "text"]
    assert len(texts) == 2
    assert f"-> {lines[3]['prediction']} (" in texts[1]


def test_a_language_model_writes(make_args: Make, tmp_path: Path) -> None:
    rows = token_rows(8)
    for row in rows:
        # As in fine-tuning: the prompt is no target.
        row["labels"][:2] = -100
    trained(make_args, tiny_gpt2(), rows, SamplePredictions(2, max_new_tokens=5))
    first = samples(tmp_path)[0]
    assert first["kind"] == "text"
    ids = rows[0]["input_ids"][rows[0]["attention_mask"].bool()].tolist()
    assert first["input"] == " ".join(map(str, ids[:2]))
    assert first["label"] == " ".join(map(str, ids[2:]))
    assert 1 <= len(first["prediction"].split()) <= 5


def test_an_image_is_a_small_png(make_args: Make, tmp_path: Path) -> None:
    rows = [(torch.rand(3, 100, 40), torch.tensor(place % 2)) for place in range(8)]
    trained(make_args, nn.Sequential(nn.Flatten(), nn.Linear(12000, 2)), rows, SamplePredictions(1))
    (first, _) = samples(tmp_path)
    assert first["kind"] == "image"
    assert base64.b64decode(first["input"]).startswith(b"\x89PNG")
    assert len(first["input"]) < 20_000
    assert first["label"] == "0"


def test_a_number_is_a_number(make_args: Make, tmp_path: Path) -> None:
    rows = [(torch.tensor([float(place)]), torch.tensor([2.0 * place])) for place in range(8)]
    trained(make_args, nn.Linear(1, 1), rows, SamplePredictions(2))
    assert [(line["kind"], line["input"], line["label"]) for line in samples(tmp_path)][:2] == [
        ("number", "0", 0.0),
        ("number", "7", 14.0),
    ]


def test_what_it_cannot_do_is_said_once_and_never_ends_a_training(
    make_args: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            yield from classification_rows(8)

    args = make_args(max_steps=4, eval_strategy="steps", eval_steps=2, report_to="none")
    Trainer(
        Plain(),
        args,
        train_dataset=classification_rows(8),
        eval_dataset=Stream(),
        callbacks=[SamplePredictions()],
    ).train()
    assert sum("SamplePredictions is switched off" in record.message for record in caplog.records) == 1
    with pytest.raises(ValueError, match="1 to 64"):
        SamplePredictions(0)


def test_columns_that_the_model_does_not_take_end_no_samples_and_same_inputs_stay_apart(
    make_args: Make, tmp_path: Path
) -> None:
    """Such a data set is made anew, without them, for each evaluation."""
    import datasets

    rows = classification_rows(8)
    columns = {
        "x": [[1.0] * 6] * 8,
        "labels": [int(row["labels"]) for row in rows],
        "note": ["not for the model"] * 8,
    }
    data = datasets.Dataset.from_dict(columns).with_format("torch", columns=["x", "labels"], output_all_columns=True)
    trained(make_args, Plain().float(), data, SamplePredictions(3))
    lines = samples(tmp_path)
    assert [(line["step"], line["sample"]) for line in lines] == [(2, 0), (2, 1), (2, 2), (4, 0), (4, 1), (4, 2)]
    assert len({line["input"] for line in lines}) == 1
    assert [line["label"] for line in lines[:3]] == [line["label"] for line in lines[3:]]
