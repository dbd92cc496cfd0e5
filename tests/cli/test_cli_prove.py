"""``trainwright prove`` from outside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from trainwright.cli.app import app

EXPERIMENT = """
model: {name: "model.py:Net", task: own}
data: {train: "model.py:rows"}
training: {per_device_train_batch_size: 8, use_cpu: true, report_to: none}
"""
MODEL = """
import torch
from torch.nn import functional as F

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)

    def forward(self, x, labels=None):
        x = torch.tanh(self.first(x))
        out = self.last(x{mixed})
        return {{"loss": F.cross_entropy(out, labels), "logits": out}}

def rows():
    torch.manual_seed(1)
    return [{{"x": torch.randn(4), "labels": torch.tensor(i % 2)}} for i in range(32)]
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "e.yaml").write_text(EXPERIMENT)
    (tmp_path / "model.py").write_text(MODEL.format(mixed=""))
    return tmp_path


def call(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def test_what_holds_is_a_table_and_exit_code_0(place: Path) -> None:
    done = call("prove", "e.yaml", "--trust", "--budget", "600", "--seed", "4")
    assert done.exit_code == 0, done.output
    assert "Net on cpu, in float64" in done.output
    assert "2 processes (ddp)" in done.output
    assert "(seed 4)" in done.output
    assert sorted(path.name for path in place.iterdir() if path.name != "__pycache__") == ["e.yaml", "model.py"]


def test_a_failure_is_exit_code_1_and_json_names_it(place: Path) -> None:
    (place / "model.py").write_text(MODEL.format(mixed=" - x.mean(0)"))
    done = call("prove", "e.yaml", "--trust", "--budget", "600", "--json", "training.learning_rate=0.1")
    assert done.exit_code == 1, done.output
    found = json.loads(done.stdout)
    assert found["holds"] is False
    (row,) = [one for one in found["rows"] if one["name"] == "the batch in 2 pieces"]
    assert row["outcome"] == "fail"
    assert row["worst"].startswith(("first.", "last."))
    assert "samples influence each other in last (Linear)" in row["why"]


def test_what_is_refused_is_exit_code_2() -> None:
    done = call("prove", "e.yaml", "--budget", "5")
    assert done.exit_code == 2
    assert "--trust" in done.output
    assert call("prove", "e.yaml", "--budget", "-1").exit_code == 2


def test_where_nothing_was_tried_the_exit_code_is_2() -> None:
    done = call("prove", "e.yaml", "--trust", "--budget", "0.001", "--json")
    assert done.exit_code == 2
    assert json.loads(done.stdout)["holds"] is False
    assert "Nothing is proven" in done.stderr
