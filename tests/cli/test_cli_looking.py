"""``trainwright look`` and ``lr-find``: what they print, and that nothing is left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.report.forms import checked
from trainwright.cli.app import app

EXPERIMENT = """
model: {name: mlp, task: tabular-classification, options: {width: 8, layers: 1}}
data: {train: t.csv, target: kind, holdout: 0.25}
training: {per_device_train_batch_size: 8, use_cpu: true, seed: 7}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = "\n".join(f"{i},{i * i % 11},{'xy'[i % 2]}" for i in range(96))
    (tmp_path / "t.csv").write_text(f"a,b,kind\n{rows}\n")
    (tmp_path / "e.yaml").write_text(EXPERIMENT)
    return tmp_path


def call(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def test_look_shows_batch_and_model_and_leaves_nothing(place: Path) -> None:
    before = sorted(place.iterdir())
    told = call("look", "e.yaml", "training.per_device_train_batch_size=5")
    assert told.exit_code == 0, told.output
    assert "The first batch: 5 samples" in told.output
    assert "operations, about" in told.output
    found = json.loads(call("look", "e.yaml", "--json", "--rows", "2").stdout)
    checked("trainwright look --json", found)
    assert len(found["batch"]["rows"]) == 2
    assert found["model"]["parameters"] > 0
    assert sorted(place.iterdir()) == before


def test_look_reads_characters_as_text(place: Path) -> None:
    assert call("cp", "characters", ".").exit_code == 0
    told = call("look", "characters.yaml", "--rows", "1")
    assert " and " in told.output.split("«")[2]


def test_lr_find_suggests_a_rate_and_draws_it(place: Path) -> None:
    told = call("lr-find", "e.yaml", "--steps", "40", "--picture", "rates.svg")
    assert told.exit_code == 0, told.output
    assert "uggestion" in told.output
    assert (place / "rates.svg").read_text().startswith("<svg")
    found = json.loads(call("lr-find", "e.yaml", "--steps", "20", "--json").stdout)
    checked("trainwright lr-find --json", found)
    assert len(found["rates"]) == len(found["losses"])
    assert not (place / "runs").exists()


def test_lr_find_says_what_is_wrong(place: Path) -> None:
    wrong = call("lr-find", "e.yaml", "--from", "2")
    assert wrong.exit_code == 2
    assert "0 < least < greatest" in wrong.output
    assert "there is no such folder" in call("lr-find", "e.yaml", "--picture", "no/where.svg").output
