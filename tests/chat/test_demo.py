"""The packaged example and the demo, as a person starts them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trainwright.cli.app import app


def call(*words: str) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, done.output
    return done.output


def test_the_packaged_conversations_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call("cp", "chat", ".")
    told = call("train", "chat.yaml", "training.num_train_epochs=1", "training.use_cpu=true", "training.report_to=none")
    assert "169 conversations, 169 samples" in told
    lines = (tmp_path / "runs/chat/samples.jsonl").read_text().splitlines()
    assert all(json.loads(line)["kind"] == "text" for line in lines)


@pytest.mark.full
def test_the_demo_answers_differently_afterwards_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = call("demo", "chat", "--output", "demo")
    assert "A badger eats worms, roots and fruit." in told.partition("After it, it answers")[2]
    assert "badger eats" not in told.partition("After it, it answers")[0].partition("chat: ")[0]
    assert (tmp_path / "demo/base/model.safetensors").is_file()
    assert "epoch 33" in call("demo", "chat", "--output", "demo", "--resume", "--epochs", "33")
