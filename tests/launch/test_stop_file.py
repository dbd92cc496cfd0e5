"""A stop that is asked for by a file, where a training runs outside the main thread (as on Ray)."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from tests.models import Plain, classification_rows
from trainwright import Preempted, Trainer, TrainingArguments
from trainwright.core.stops import STOP_FILE


def test_the_file_stops_and_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="trainwright")
    monkeypatch.setenv(STOP_FILE, str(tmp_path / "stop"))
    (tmp_path / "stop").touch()
    args = TrainingArguments(
        str(tmp_path / "run"), max_steps=50, save_steps=100, use_cpu=True, report_to="none", disable_tqdm=True
    )
    trainer = Trainer(Plain().float(), args, train_dataset=classification_rows(16))
    stopped: list[Preempted] = []

    def train() -> None:
        try:
            trainer.train()
        except Preempted as stop:
            stopped.append(stop)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert stopped[0].reason == "the launcher"
    assert (tmp_path / "run/checkpoint-1").is_dir()
    assert (tmp_path / "run/preempted.json").is_file()
    assert "asks for a stop by a file" in caplog.text
    assert not [record for record in caplog.records if "delivers no signals" in record.message]
    # In the main thread signals do that; the file is not looked at.
    monkeypatch.setenv(STOP_FILE, str(tmp_path / "stop"))
    args.max_steps = 3
    trainer.train()
    assert trainer.state.global_step == 3
    assert not (tmp_path / "run/preempted.json").exists()
