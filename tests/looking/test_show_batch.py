"""``trainer.show_batch()``: what the model will see, without taking it from the training."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.models import Plain, classification_rows, sentence_rows, tiny_bert, tiny_gpt2, token_rows
from trainwright import Trainer, TrainingArguments

LETTERS = "?abcdefghijklmnopqrstuvwxyz012345"


class Reader:
    """A tokenizer of letters."""

    def decode(self, tokens: list[int], skip_special_tokens: bool = False) -> str:
        return "".join(LETTERS[token] for token in tokens)

    def pad(self, rows: list[Any], **_: Any) -> Any:
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def trainer_of(folder: Path, model: nn.Module, rows: Any, **more: Any) -> Trainer:
    settings: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "save_strategy": "no",
        "train_sampling_strategy": "sequential",
        "logging_steps": 1,
    }
    given = {name: more.pop(name) for name in ("processing_class", "data_collator") if name in more}
    return Trainer(model, TrainingArguments(str(folder), **{**settings, **more}), train_dataset=rows, **given)


def test_of_a_text_what_is_trained_is_marked(tmp_path: Path) -> None:
    rows = token_rows(4)
    rows[0] |= {"labels": torch.where(torch.arange(12) < 3, -100, rows[0]["labels"])}
    view = trainer_of(tmp_path, tiny_gpt2(), rows, processing_class=Reader()).show_batch(rows=1)
    length = int(rows[0]["attention_mask"].sum())
    text = Reader().decode(rows[0]["input_ids"][:length].tolist())
    assert [(part.text, part.is_trained) for part in view.rows[0].text] == [(text[:3], False), (text[3:], True)]
    assert f"{text[:3]} «{text[3:]}»" in str(view)
    assert f">{text[3:]}</mark>" in view._repr_html_()


def test_a_class_is_called_by_its_name(tmp_path: Path) -> None:
    model = tiny_bert()
    model.config.id2label = {0: "<b>bad</b>", 1: "good\x1b[2J", 2: "fair"}
    rows = sentence_rows(4)
    for row, label in zip(rows, (0, 1, 2, 0), strict=True):
        row["labels"] = torch.tensor(label)
    view = trainer_of(tmp_path, model, rows).show_batch()
    assert [row.label for row in view.rows] == ["<b>bad</b>", "good\x1b[2J", "fair", "<b>bad</b>"]
    assert "\x1b" not in str(view)
    assert "good\\x1b[2J" in str(view)
    assert "<b>bad" not in view._repr_html_()
    assert "&lt;b&gt;bad" in view._repr_html_()
    json.dumps(view.as_dict())


def test_images_are_a_grid_and_tables_are_rows(tmp_path: Path) -> None:
    pictures = [(torch.rand(3, 4, 4), torch.tensor(1)) for _ in range(8)]
    view = trainer_of(tmp_path, nn.Conv2d(3, 2, 4), pictures).show_batch(rows=2)
    assert len(view.images) == 2
    assert view.images[0].shape == (4, 4, 3)
    assert "data:image/svg+xml" in view._repr_html_()
    table = trainer_of(tmp_path, Plain(), classification_rows(8)).show_batch()
    assert table.rows[0].values["x"] == pytest.approx(classification_rows(8)[0]["x"].tolist())


class Drawing(torch.utils.data.Dataset[Any]):
    """Draws from every generator, and from one of its own."""

    def __init__(self) -> None:
        self.own = torch.Generator().manual_seed(3)
        self.read = 0

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        self.read += 1
        noise = torch.rand(6) + torch.rand(6, generator=self.own) + random.random() + np.random.rand()
        return {"x": noise, "labels": torch.tensor(index % 3)}


class Stream(torch.utils.data.IterableDataset[Any]):
    """Knows how far it was read."""

    def __init__(self) -> None:
        self.read = 0

    def __iter__(self) -> Iterator[Any]:
        for row in classification_rows(16):
            self.read += 1
            yield row


@pytest.mark.parametrize("kind", [Drawing, Stream])
def test_a_training_afterwards_is_the_same(kind: Any, tmp_path: Path) -> None:
    def trained(*, looks: bool) -> tuple[Trainer, Any]:
        trainer = trainer_of(tmp_path, Plain(), kind(), max_steps=4)
        batch = None
        if looks:
            states = torch.get_rng_state(), random.getstate(), str(np.random.get_state())
            batch, _ = trainer.show_batch(), trainer.summary()
            trainer.lr_find(steps=20)
            assert states[1:] == (random.getstate(), str(np.random.get_state()))
            assert torch.equal(states[0], torch.get_rng_state())
            assert trainer.train_dataset.read == 0
        first: list[Any] = []
        hook = trainer.model.register_forward_pre_hook(
            lambda _, args, given: first.append(given["x"]), with_kwargs=True
        )
        trainer.train()
        hook.remove()
        if batch is not None:
            # It was the batch that the training then began with.
            assert batch.rows[1].values["x"] == pytest.approx(first[0][1].tolist(), abs=1e-6)
        return trainer, [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    (one, losses), (other, others) = trained(looks=True), trained(looks=False)
    assert losses == others
    for name, value in one.model.state_dict().items():
        assert torch.equal(value, other.model.state_dict()[name])


def test_what_cannot_be_shown_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no training data to look at: pass train_dataset="):
        trainer_of(tmp_path, Plain(), None).show_batch()
    with pytest.raises(ValueError, match="rows=0 must be"):
        trainer_of(tmp_path, Plain(), classification_rows(8)).show_batch(rows=0)
