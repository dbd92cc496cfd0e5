"""The last line and the exit code of commands whose end is disturbed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import SafetensorError
from typer.testing import CliRunner

from trainwright.cli.app import app
from trainwright.core.errors import NotSavedError
from trainwright.trainer.trainer import Trainer

ROOT = Path(__file__).parents[2]
EXPERIMENT = """
model: {name: mlp, options: {width: 64, layers: 2}}
data: {train: t.csv, target: kind, holdout: 0.25}
training: {num_train_epochs: 1, use_cpu: true, seed: 7}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("a,b,kind\n" + "\n".join(f"{i},{i * i % 11},{'xy'[i % 2]}" for i in range(96)))
    (tmp_path / "e.yaml").write_text(EXPERIMENT)
    return tmp_path


def test_the_last_line_is_what_is_not_on_disk(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the model cannot be written either, and says so in words of its own."""

    def not_saved(*args: object, **kwargs: object) -> None:
        raise NotSavedError({"checkpoint-9": "the disk is full"}, instead="elsewhere")

    def refused(*args: object, **kwargs: object) -> None:
        raise SafetensorError("No space left on device")

    monkeypatch.setattr(Trainer, "train", not_saved)
    monkeypatch.setattr(Trainer, "save_model", refused)
    done = CliRunner().invoke(app, ["train", "e.yaml"])
    assert done.exit_code == 1
    assert done.output.strip().splitlines()[-1] == (
        "Failed: Training came to its end, but this could not be saved: checkpoint-9 (the disk is full). "
        "The weights as they are now are in elsewhere."
    )


@pytest.mark.full
def test_a_run_that_no_disk_takes_says_so_in_its_last_line(place: Path) -> None:
    """No file may be longer than 8 KB, wherever it is: neither checkpoints nor the model can be written."""
    limited = f"ulimit -f 8; exec {sys.executable} -m trainwright train e.yaml"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", limited], cwd=place, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("Failed: Training came to its end, but this could not be saved: checkpoint-"), last
    assert "trainer.save_model" not in last
    assert "Traceback" not in done.stderr


def test_metrics_are_shown_where_they_cannot_be_stored(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert CliRunner().invoke(app, ["train", "e.yaml"]).exit_code == 0

    def refused(*args: object, **kwargs: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Trainer, "save_metrics", refused)
    done = CliRunner().invoke(app, ["evaluate", "runs/e"])
    assert done.exit_code == 0, done.output
    assert "eval_accuracy" in done.output


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGUSR1"])
def test_a_signal_after_the_end_does_not_change_the_exit_code(name: str, place: Path) -> None:
    script = (
        "import atexit, os, signal, sys\n"
        "from trainwright.cli.app import main\n"
        f"atexit.register(lambda: os.kill(os.getpid(), signal.{name}))\n"
        "sys.argv = ['trainwright', 'ls']\n"
        "main()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
