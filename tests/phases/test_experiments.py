"""Phases in an experiment's file: on the command line, through kills, in two processes, in the report."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from typer.testing import CliRunner

from trainwright.cli.app import app
from trainwright.config.errors import ConfigError
from trainwright.config.loading import load_experiment
from trainwright.experiment.running import train

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def rows(path: Path, count: int, seed: int) -> str:
    """Write a table of numbers and what they add up to."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(count, 3, generator=generator)
    lines = [f"{a:.4f},{b:.4f},{c:.4f},{'yes' if a + b > c else 'no'}" for a, b, c in numbers.tolist()]
    path.write_text("\n".join(["a,b,c,answer", *lines]) + "\n")
    return str(path)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """An experiment in two phases, the second with data of its own."""
    rows(tmp_path / "few.csv", 60, 1)
    rows(tmp_path / "more.csv", 120, 2)
    described: dict[str, Any] = {
        "name": "table",
        "model": {
            "name": "mlp",
            "task": "tabular-classification",
            "options": {"width": 16, "layers": 2, "dropout": 0.0},
        },
        "data": {"train": "few.csv", "target": "answer", "holdout": 0.2},
        "training": {
            "output_dir": str(tmp_path / "run"),
            "per_device_train_batch_size": 8,
            "learning_rate": 1e-2,
            "checkpoint_every": "2 steps",
            "save_total_limit": 2,
        },
        "phases": {
            "head": {"epochs": 2, "trainable": "re:layers[.]6"},
            "all": {"epochs": 2, "data": "more.csv", "learning_rate": 1e-3, "lr_scheduler_type": "cosine"},
        },
    }
    file = tmp_path / "table.yaml"
    file.write_text(yaml.safe_dump(described, sort_keys=False))
    return file


def command(file: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "trainwright", "train", str(file), *words]


def test_a_file_trains_in_phases_and_says_so_in_its_report(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAINWRIGHT_REPORT", raising=False)
    found = train(load_experiment(written, ["phases.all.learning_rate=2e-3"]), say=lambda line: None)
    # 48 rows make 6 steps, 120 make 15.
    assert found.steps == 2 * 6 + 2 * 15
    page = (found.folder / "report.md").read_text()
    table = page[page.index("## Phases") :]
    assert re.search(r"\| head \| 0 to 2 \| 0 \| 34 \| 0.01 \| linear \| the run's \| eval_\w+ [\d.]+ \|", table)
    assert re.search(r"\| all \| 2 to 4 \| 12 \| 370 \| 0.002 \| cosine \| its own \| eval_\w+ [\d.]+ \|", table)
    again = train(load_experiment(written, ["phases.all.learning_rate=2e-3"]), say=lambda line: None)
    assert again.steps == 42


def test_other_data_in_a_phase_is_another_experiment_and_moved_data_is_not(written: Path) -> None:
    train(load_experiment(written), say=lambda line: None)
    (written.parent / "more.csv").rename(written.parent / "moved.csv")
    assert train(load_experiment(written, ["phases.all.data=" + str(written.parent / "moved.csv")])).steps == 42
    rows(written.parent / "more.csv", 120, 3)
    with pytest.raises(ConfigError, match=r"more.csv is not what it was"):
        train(load_experiment(written))


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["phases.all.epoch=3"], r"phases.all.epoch: there is no such key \(did you mean 'epochs'"),
        (["phases.all.epochs=0"], r"phases.all: The phase 'all' has epochs=0"),
        (["phases.all.epochs=many"], r"phases.all.epochs: 'many' should be a whole number"),
        (["phases.all.data=nowhere.csv"], "phases.all.data: there is no nowhere.csv"),
        (["phases.head.limit=5"], r"phases.head.limit: it counts rows of the phase's own data"),
        (["phases.all.until=soon"], "a metric and a bound"),
        (["phases.late.learning_rate=1"], r"phases.late.epochs is missing"),
        (["training.max_steps=5"], "max_steps=5 says otherwise"),
        (["phases.head.trainable=re:nothing"], "'head': trainable: 're:nothing' fits nothing"),
    ],
)
def test_mistakes_are_refused_with_their_place(written: Path, words: list[str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        train(load_experiment(written, words), say=lambda line: None)
    assert not list((written.parent / "run").glob("checkpoint-*"))


def test_code_in_a_phase_runs_only_where_it_is_trusted(written: Path) -> None:
    described = yaml.safe_load(written.read_text())
    described["phases"]["all"]["data"] = "my_file.py:rows"
    written.write_text(yaml.safe_dump(described))
    (written.parent / "my_file.py").write_text("raise SystemExit('it ran')")
    with pytest.raises(ConfigError, match="would run code because a file says so"):
        load_experiment(written)


def test_a_refused_change_leaves_a_finished_run_as_it_is(written: Path) -> None:
    train(load_experiment(written), say=lambda line: None)
    folder = written.parent / "run"
    # The lock says who came last.
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir() if path.name != "run.lock"}
    with pytest.raises(ConfigError, match="'head' is over and had 2 epochs"):
        train(load_experiment(written, ["phases.head.epochs=3"]), say=lambda line: None)
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir() if path in before} == before


@pytest.mark.slow
@pytest.mark.parametrize("step", [12, *(pytest.param(step, marks=pytest.mark.full) for step in (6, 20))])
def test_a_kill_in_any_phase_and_at_the_border_changes_nothing(written: Path, step: int) -> None:
    whole = written.parent / "whole"
    subprocess.run(
        command(written, f"training.output_dir={whole}"), env=ENVIRONMENT, check=True, capture_output=True, timeout=120
    )
    folder = written.parent / "run"
    slow = (written.parent / "slow.py").write_text(SLOW.format(step=step))
    assert slow
    killed = subprocess.Popen(
        [*command(written), f"callbacks={{{written.parent / 'slow.py'}:Slow: {{}}}}"], env=ENVIRONMENT
    )
    until = time.monotonic() + 90
    while not (folder / f"checkpoint-{step}" / "manifest.json").exists() and killed.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    done = subprocess.run(
        [*command(written), f"callbacks={{{written.parent / 'slow.py'}:Slow: {{waits: false}}}}"],
        env=ENVIRONMENT,
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "Resuming from" in done.stderr + done.stdout
    one, other = load_file(whole / "model.safetensors"), load_file(folder / "model.safetensors")
    assert all(one[name].equal(other[name]) for name in one)


SLOW = """
import time
from trainwright import TrainerCallback

class Slow(TrainerCallback):
    def __init__(self, waits: bool = True):
        self.waits = waits

    def on_step_begin(self, args, state, control, **kwargs):
        if self.waits and state.global_step > {step}:
            time.sleep(60)
"""


@pytest.mark.slow
def test_two_processes_train_what_one_does(written: Path) -> None:
    found = {}
    for processes, size in ((1, 8), (2, 4)):
        folder = written.parent / f"of-{processes}"
        words = [
            f"training.output_dir={folder}",
            f"training.per_device_train_batch_size={size}",
            "phases.head.epochs=1",
        ]
        launch = [sys.executable, "-m", "trainwright", "launch", "--nproc", "2", str(written)]
        start = command(written) if processes == 1 else launch
        done = subprocess.run(
            [*start, *words], env=ENVIRONMENT, capture_output=True, text=True, timeout=180, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        found[processes] = load_file(folder / "checkpoint-36" / "model.safetensors")
    for name, weight in found[1].items():
        torch.testing.assert_close(found[2][name], weight, atol=1e-5, rtol=1e-4)


def test_check_and_compare_know_phases(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = CliRunner().invoke(app, ["check", str(written)], env={"COLUMNS": "200"})
    assert told.exit_code == 0, told.output
    assert re.search(r"phase head +2 epochs, linear from 0.01, trains re:layers\[\.\]6", told.output)
    assert re.search(r"phase all +2 epochs, cosine from 0.001, on more.csv", told.output)
    folders = [str(tmp_path / name) for name in ("one", "other")]
    for folder, rate in zip(folders, ("1e-3", "3e-3"), strict=True):
        words = [f"training.output_dir={folder}", f"phases.all.learning_rate={rate}"]
        train(load_experiment(written, words), say=lambda line: None)
    found = json.loads(CliRunner().invoke(app, ["compare", *folders, "--json"]).output)
    assert found["settings"] == {"phases.all.learning_rate": [1e-3, 3e-3]}
    # Nothing prunes or rounds here.
    assert not (tmp_path / "one" / "layers.json").exists()
