"""``trainwright train`` in a folder where another training runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from trainwright.checkpoint import run_lock
from trainwright.cli.app import app
from trainwright.config.errors import ConfigError
from trainwright.config.loading import load_experiment
from trainwright.experiment.running import train

ROOT = Path(__file__).parents[2]
TABLE = "a,b,kind\n" + "\n".join(f"{i},{i * i % 11},{'xy'[i % 2]}" for i in range(32))
EXPERIMENT = """
model: {name: mlp, options: {width: 8, layers: 1}}
data: {train: t.csv, target: kind, holdout: 0.25}
training: {max_steps: 4, per_device_train_batch_size: 8, use_cpu: true, seed: 7}
"""
#: Holds a folder until its input ends, and says whether it still has it then.
HOLDER = """
import sys
from pathlib import Path
from trainwright.checkpoint import run_lock
run_lock.BEAT_SECONDS = 0.1
lock = run_lock.take(Path(sys.argv[1]))
print("has it", flush=True)
sys.stdin.read()
print(lock.taken_by or "still has it")
lock.release()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_lock, "BEAT_SECONDS", 0.1)
    (tmp_path / "t.csv").write_text(TABLE)
    (tmp_path / "e.yaml").write_text(EXPERIMENT)
    return tmp_path


def held(folder: Path) -> subprocess.Popen[str]:
    """Another process, which has the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "has it\n"
    return process


@pytest.fixture
def holder(place: Path) -> Iterator[subprocess.Popen[str]]:
    process = held(place / "runs/e")
    yield process
    process.kill()
    process.communicate()


def call(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


@pytest.mark.slow
def test_a_second_training_is_refused_before_it_has_written_anything(
    place: Path, holder: subprocess.Popen[str]
) -> None:
    done = call("train", "e.yaml")
    assert done.exit_code == 2
    assert f"process {holder.pid} on" in done.output
    assert "waiting up to 0.2 seconds" in done.output
    assert "--force" in done.output
    assert {path.name for path in (place / "runs").iterdir()} == {"e"}
    # A new folder is nobody's yet.
    assert call("train", "e.yaml", "--fresh").exit_code == 0
    assert (place / "runs/e-2/model.safetensors").is_file()
    # The one that holds the folder may be writing its lease at this moment.
    found = {path.name for path in (place / "runs/e").iterdir() if not path.name.endswith(".writing")}
    assert found == {"run.lock", "run.lease.json"}
    assert holder.communicate("", timeout=30)[0] == "still has it\n"
    assert call("train", "e.yaml").exit_code == 0
    # Until the finished model is written too, and no longer.
    assert not (place / "runs/e/run.lease.json").exists()


def test_a_training_that_waited_for_the_end_of_another_looks_again(place: Path) -> None:
    assert call("train", "e.yaml").exit_code == 0
    finished = place / "runs/e/finished.json"
    said = finished.read_text()
    finished.unlink()
    other = held(place / "runs/e")

    def end(text: str) -> None:
        # Said to whoever waits.
        if "waiting up to" in text:
            finished.write_text(said)
            other.communicate("")

    with pytest.raises(ConfigError, match="there is no step left for learning_rate"):
        train(load_experiment(place / "e.yaml", ["training.learning_rate=0.5"]), say=end)


def test_force_says_what_will_happen_and_trains(place: Path, holder: subprocess.Popen[str]) -> None:
    done = call("train", "e.yaml", "--force")
    assert done.exit_code == 0, done.output
    said = f"Taking {place / 'runs/e'} over from process {holder.pid} on"
    assert said in done.output
    assert "will stop within seconds and save nothing more" in done.output
    assert holder.communicate("", timeout=30)[0].startswith(f"process {os.getpid()} on")
    events = [json.loads(line)["kind"] for line in (place / "runs/e/events.jsonl").read_text().splitlines()]
    assert events[0] == "lock_forced"
    # It is not part of what the experiment says.
    assert "take_over" not in (place / "runs/e/experiment.yaml").read_text()
    kept = ("training.take_over=true", "training.max_hours=9")
    assert call("train", "e.yaml", "training.max_steps=5", *kept).exit_code == 0
    assert not {"take_over", "max_hours"} & set(
        (place / "runs/e/experiment.yaml").read_text().replace(":", " ").split()
    )
    assert call("resume", "runs/e", "--force").exit_code == 0
