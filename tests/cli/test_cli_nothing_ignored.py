"""What an experiment asks for acts, or is refused; mistakes themselves are in ``tests/mistakes``."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.experiment import tiny
from trainwright.cli.app import app
from trainwright.config.loading import load_experiment
from trainwright.experiment import hub
from trainwright.experiment.tables import read_table

TABLE = "a,b,kind\n" + "".join(f"{i},{i * i % 11},{'xy'[i % 2]}\n" for i in range(32))
EXPERIMENT = """
model: {name: mlp, options: {width: 4, layers: 1}}
data: {train: t.csv, target: kind, holdout: 0.25}
training: {max_steps: 2, per_device_train_batch_size: 8, use_cpu: true}
callbacks: {early_stopping: true, ema: false}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text(TABLE)
    (tmp_path / "e.yaml").write_text(EXPERIMENT)
    return tmp_path


def call(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def test_true_means_the_defaults_and_false_leaves_out(place: Path) -> None:
    assert load_experiment("e.yaml").experiment.callbacks == {"early_stopping": {}}
    done = call("check", "e.yaml", "training.metric_for_best_model=loss")
    assert done.exit_code == 0, done.output


def test_a_run_is_exported_as_its_help_says(place: Path) -> None:
    assert call("train", "e.yaml", "callbacks.early_stopping=false").exit_code == 0
    done = call("export", "runs/e", "--to", "hf")
    assert done.exit_code == 0, done.output
    assert "Exported step 2" in done.output
    assert (place / "runs/e/exported/checkpoint-2/trainer_state.json").is_file()


def test_another_encoding_is_read(place: Path) -> None:
    (place / "t.csv").write_bytes(TABLE.replace("x", "é").encode("latin-1"))
    words = ("check", "e.yaml", "callbacks.early_stopping=false")
    assert "data.options={encoding: latin-1}" in call(*words).output
    done = call(*words, "data.options={encoding: latin-1}")
    assert done.exit_code == 0, done.output
    own = read_table(["t.csv"], "csv", {"encoding": "latin-1"})
    assert set(own["kind"]) == {"é", "y"}


def test_num_labels_that_contradicts_the_data_is_refused(place: Path) -> None:
    tiny.bert(place / "bert")
    (place / "t.csv").write_text("text,kind\n" + "".join(f"good film,{'xy'[i % 2]}\n" for i in range(16)))
    (place / "e.yaml").write_text(
        "model: {name: bert, task: text-classification, options: {num_labels: 1}}\ndata: {train: t.csv, target: kind}\n"
    )
    done = call("check", "e.yaml")
    assert done.exit_code == 2
    assert "model.options.num_labels: 1 contradicts the data, which has 2 classes: leave it out." in done.output


def test_a_hub_that_does_not_answer_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise OSError("no network")

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    for name in hub._PROXIES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    hub._answers.cache_clear()
    assert not hub.is_reachable()
    with hub.offline_where_unreachable() as is_offline:
        assert is_offline
        assert huggingface_hub.constants.HF_HUB_OFFLINE
    assert not huggingface_hub.constants.HF_HUB_OFFLINE
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:1")
    assert hub.is_reachable()
    hub._answers.cache_clear()
