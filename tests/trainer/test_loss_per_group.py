"""``log_loss_per``: exact means by class or source, and a training that does not notice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.models import Bare, Plain, classification_rows, tiny_gpt2, token_rows
from trainwright import Trainer, TrainingArguments

Make = Callable[..., TrainingArguments]
SOURCES = ("web", "books", "code")


def with_sources(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "source": SOURCES[place % 3]} for place, row in enumerate(rows)]


def trained(make_args: Make, model: Any, rows: Any, **kwargs: Any) -> Trainer:
    defaults: dict[str, Any] = {"learning_rate": 0.0, "num_train_epochs": 1, "logging_strategy": "epoch"}
    args = make_args(**{**defaults, "per_device_train_batch_size": 4, "report_to": "none", **kwargs})
    trainer = Trainer(model, args, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    return trainer


def groups_of(trainer: Trainer) -> dict[str, float]:
    return {name: value for name, value in trainer.state.log_history[0].items() if name.startswith("loss/")}


@pytest.mark.parametrize("cut", [{}, {"gradient_accumulation_steps": 3}, {"micro_batch": 1}])
@pytest.mark.parametrize("kind", [Plain, Bare])
def test_the_mean_of_a_class_is_exact_however_batches_are_cut(make_args: Make, kind: Any, cut: dict[str, Any]) -> None:
    rows, model = classification_rows(22), kind().float()
    found = groups_of(trained(make_args, model, rows, log_loss_per="class", **cut))
    x, y = torch.stack([row["x"] for row in rows]), torch.stack([row["labels"] for row in rows])
    each = F.cross_entropy(model.logits(x), y, reduction="none").detach()
    assert found.keys() == {"loss/class/0", "loss/class/1", "loss/class/2"}
    for number in range(3):
        assert found[f"loss/class/{number}"] == pytest.approx(float(each[y == number].mean()), rel=1e-6)


def test_sources_of_a_language_model_are_weighed_by_their_targets(make_args: Make, tmp_path: Path) -> None:
    rows, model = with_sources(token_rows(9)), tiny_gpt2()
    trainer = trained(make_args, model, rows, log_loss_per="source", eval_strategy="epoch")
    found = groups_of(trainer)
    for source in SOURCES:
        sums, counts = 0.0, 0
        for row in rows:
            if row["source"] == source:
                logits = (
                    model(row["input_ids"][None], attention_mask=row["attention_mask"][None]).logits[0, :-1].detach()
                )
                labels = row["labels"][1:]
                sums += float(F.cross_entropy(logits, labels, reduction="sum", ignore_index=-100))
                counts += int((labels != -100).sum())
        assert found[f"loss/source/{source}"] == pytest.approx(sums / counts, rel=1e-5)
    line = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[0])
    assert line["loss/source/web"] == found["loss/source/web"]


@pytest.mark.parametrize("by", ["class", "source"])
def test_the_training_is_the_same_bit_by_bit(make_args: Make, tmp_path: Path, by: str) -> None:
    settings: dict[str, Any] = {"learning_rate": 0.1, "logging_strategy": "steps", "logging_steps": 2}
    rows = with_sources(classification_rows(16))
    plain = trained(make_args, Bare(), rows, output_dir=str(tmp_path / "plain"), **settings)
    told = trained(make_args, Bare(), rows, log_loss_per=by, **settings)
    for one, other in zip(plain.model.parameters(), told.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert [entry.get("loss") for entry in plain.state.log_history] == [
        entry.get("loss") for entry in told.state.log_history
    ]
    assert groups_of(told)


def test_a_resume_between_two_logs_goes_on_with_what_was_seen(make_args: Make, tmp_path: Path) -> None:
    rows = with_sources(classification_rows(24))
    settings: dict[str, Any] = {"log_loss_per": "source", "logging_strategy": "steps", "logging_steps": 4}
    whole = trained(make_args, Plain(), rows, max_steps=4, output_dir=str(tmp_path / "whole"), **settings)
    args = make_args(
        **{**settings, "max_steps": 4, "save_strategy": "steps", "save_steps": 3, "learning_rate": 0.0},
        per_device_train_batch_size=4,
        report_to="none",
    )
    Trainer(Plain(), args, train_dataset=rows).train()
    resumed = Trainer(Plain(), args, train_dataset=rows)
    resumed.train(resume_from_checkpoint=str(tmp_path / "run/checkpoint-3"))
    assert groups_of(resumed) == groups_of(whole)


def test_what_cannot_be_told_apart_is_said_once_or_refused(make_args: Make, caplog: pytest.LogCaptureFixture) -> None:
    trained(make_args, tiny_gpt2(), token_rows(8), log_loss_per="class")
    assert sum("log_loss_per='class' is left out" in record.message for record in caplog.records) == 1
    with pytest.raises(ValueError, match="no column of that name"):
        trained(make_args, Plain(), classification_rows(8), log_loss_per="origin")
    with pytest.raises(ValueError, match="engine='torch'"):
        make_args(log_loss_per="class", engine="jax")

    class Own(Trainer):
        def compute_loss(self, model: Any, inputs: Any) -> Any:  # type: ignore[override]
            return model(**inputs)["loss"]

    with pytest.raises(ValueError, match="return_outputs"):
        Own(Plain(), make_args(log_loss_per="class"), train_dataset=classification_rows(8)).train()


class Spread(torch.nn.Module):
    """Two outputs for each number that it learns: its mean and how sure it is."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, 2)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.layer(x)
        return {"loss": F.gaussian_nll_loss(out[:, 0], labels, out[:, 1].exp()), "logits": out}


class ManyLabels(Spread):
    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.layer(x)
        return {"loss": F.binary_cross_entropy_with_logits(out, labels), "logits": out}


@pytest.mark.parametrize(
    ("kind", "label"), [(Spread, torch.tensor(0.5)), (ManyLabels, torch.tensor([1.0, 0.0]))], ids=["nll", "many"]
)
def test_what_has_a_loss_of_another_kind_is_left_out_and_trained(
    kind: type[Spread], label: torch.Tensor, make_args: Make, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"x": torch.randn(6), "labels": label} for _ in range(8)]
    trainer = trained(make_args, kind(), with_sources(rows), log_loss_per="source")
    assert groups_of(trainer) == {}
    assert "log_loss_per='source' is left out: " in caplog.text


def test_labels_of_another_kind_of_whole_number_are_read(make_args: Make) -> None:
    class Casts(Plain):
        def forward(self, x: torch.Tensor, labels: Any = None, **kwargs: Any) -> Any:
            return super().forward(x, labels.long(), **kwargs)

    rows = [{**row, "labels": row["labels"].int()} for row in classification_rows(12)]
    assert len(groups_of(trained(make_args, Casts().float(), rows, log_loss_per="class"))) == 3
