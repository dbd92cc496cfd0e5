"""``trainer.data_words``: reports, samples, logs and looks speak of data as people do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trainwright import DataWords, SamplePredictions, Trainer, TrainingArguments


class Net(nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(3, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def arguments(folder: Path, **options: Any) -> TrainingArguments:
    usual: dict[str, Any] = {"max_steps": 2, "logging_steps": 1, "eval_strategy": "steps", "eval_steps": 2}
    return TrainingArguments(
        str(folder), report_to="none", disable_tqdm=True, use_cpu=True, write_report=True, **usual, **options
    )


def test_classes_have_their_names_everywhere(tmp_path: Path) -> None:
    rows = [{"x": torch.randn(3), "labels": torch.tensor(i % 2)} for i in range(16)]
    args = arguments(tmp_path, log_loss_per="class")
    trainer = Trainer(
        Net(2),
        args,
        train_dataset=rows,
        eval_dataset=rows,
        compute_metrics=lambda found: {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())},
        callbacks=[SamplePredictions(2)],
    )
    trainer.data_words = DataWords(classes=["owl", "mouse"])
    assert trainer.show_batch(rows=1).rows[0].label in ("owl", "mouse")
    trainer.train()
    assert {"loss/class/owl", "loss/class/mouse"} <= set(trainer.state.log_history[0])
    found = json.loads((tmp_path / "evaluation.json").read_text())["eval"]
    assert found["names"] == ["owl", "mouse"]
    samples = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert {sample["label"] for sample in samples} == {"owl", "mouse"}
    assert ">mouse</text>" in _pictures_in((tmp_path / "report.html").read_text())


def _pictures_in(page: str) -> str:
    import base64
    import re

    found = re.findall(r"data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)", page)
    return "".join(base64.b64decode(one).decode().replace("> ", ">") for one in found)


def test_amounts_and_rows_of_a_table_are_in_their_own_units(tmp_path: Path) -> None:
    """What was standardized is shown as it was."""
    torch.manual_seed(0)
    true = torch.linspace(100, 250, 16)
    columns = [{"name": "area", "mean": 50.0, "scale": 10.0}, {"name": "town", "categories": ["hill", "harbour"]}]
    rows = [
        {"x": torch.tensor([i - 8.0, float(i % 2), 1.0 - i % 2]), "labels": (true[i] - 175) / 50} for i in range(16)
    ]
    trainer = Trainer(
        Net(1),
        arguments(tmp_path),
        train_dataset=rows,
        eval_dataset=rows,
        compute_metrics=lambda found: {"off": 0.0},
        callbacks=[SamplePredictions(2)],
    )
    trainer.data_words = DataWords(mean=175.0, scale=50.0, columns=columns)
    trainer.train()
    found = json.loads((tmp_path / "evaluation.json").read_text())["eval"]
    assert found["targets"] == pytest.approx(true.tolist(), abs=0.01)
    assert {round(sample["label"]) for sample in found["worst"]} <= {round(one) for one in true.tolist()}
    worst = found["worst"][0]
    place = worst["index"]
    assert worst["input"] == f"area {50 + 10 * (place - 8)}, town {'hill' if place % 2 else 'harbour'}"
    samples = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert samples[0]["label"] == pytest.approx(100.0)
    assert samples[0]["input"] == "area -30, town harbour"


def test_an_experiment_knows_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainwright.config.loading import load_experiment
    from trainwright.experiment.building import build

    monkeypatch.chdir(tmp_path)
    lines = "\n".join(f"{i},{'red' if i % 3 else 'blue'},{i * 10}" for i in range(30))
    (tmp_path / "t.csv").write_text(f"size,colour,price\n{lines}\n")
    (tmp_path / "e.yaml").write_text("model: mlp\ndata: {train: t.csv, target: price, holdout: 0.2}\n")
    built = build(load_experiment(tmp_path / "e.yaml"))
    words = built.trainer.data_words
    row = built.trainer.train_dataset[0]
    price = words.amount(float(row["labels"]))
    colour = "red" if round(price / 10) % 3 else "blue"
    assert words.row(row["features"].tolist()) == f"size {price / 10:.6g}, colour {colour}"
