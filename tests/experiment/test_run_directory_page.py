"""The page about a run's files, held against runs of every kind."""

from __future__ import annotations

import fnmatch
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NotRequired, get_args, get_origin, get_type_hints

import pytest
import yaml
from pydantic import BaseModel, Field, create_model
from typer.testing import CliRunner

from tests.faults import runner
from trainwright.checkpoint.run_lock import holding
from trainwright.cli.app import app
from trainwright.config.effects import effects_table
from trainwright.config.run_files import CHECKPOINT, RUN, RunFile, page

DOCS = Path(__file__).parents[2] / "docs"
#: The model's own files, and those that transformers reads of a checkpoint in its format.
OF_THE_MODEL = {"model.safetensors", "config.json", "generation_config.json"}
OF_TRANSFORMERS = {"optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"}


def test_the_pages_are_up_to_date() -> None:
    assert (DOCS / "run-directory.md").read_text(encoding="utf-8") == page()
    assert effects_table() in (DOCS / "changing-a-run.md").read_text(encoding="utf-8")


def check(folder: Path, files: tuple[RunFile, ...], others: set[str]) -> set[str]:
    """Hold every file of ``folder`` against the table; returns the names in the table that were met."""
    met = set()
    for path in folder.iterdir():
        name = path.name + ("/" if path.is_dir() else "")
        if name.startswith(".") and name.rstrip("/").endswith(".writing"):
            # A draft that a kill has left.
            continue
        known = next((file for file in files if fnmatch.fnmatch(name, file.name)), None)
        assert known is not None or name in others, f"{name} is not on the page"
        if known is None:
            continue
        met.add(known.name)
        for value in _values(path, known.form):
            if known.schema is not None:
                _model_of(known.schema).model_validate(value)
        if known.name == "checkpoint-*/":
            met |= {f"checkpoint/{name}" for name in check(path, CHECKPOINT, OF_THE_MODEL | OF_TRANSFORMERS)}
    return met


def _model_of(schema: type) -> type[BaseModel]:
    """The schema for pydantic, which takes typing's own TypedDict from Python 3.12 on."""
    fields: dict[str, Any] = {}
    for name, kind in get_type_hints(schema, include_extras=True).items():
        optional = get_origin(kind) is NotRequired
        fields[f"its_{name}"] = (get_args(kind)[0] if optional else kind, Field(None if optional else ..., alias=name))
    return create_model(schema.__name__, **fields)


def _values(path: Path, form: str) -> list[Any]:
    if form == "json":
        return [json.loads(path.read_text(encoding="utf-8"))]
    if form == "lines":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if form == "yaml":
        assert isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict)
    return []


@pytest.mark.slow
def test_a_run_of_a_script(tmp_path: Path) -> None:
    runner.trained(tmp_path / "run")
    met = check(tmp_path / "run", RUN, OF_THE_MODEL)
    assert met >= {"config.yaml", "env.json", "metrics.jsonl", "events.jsonl", "trainer_state.json", "finished.json"}
    assert met >= {"run.json", "checkpoint/manifest.json", "checkpoint/log.json", "checkpoint/config.yaml"}
    assert "preempted.json" not in met
    # A further setting, a folder that is held, transformers' format.
    changed = runner.build(tmp_path / "run", learning_rate=0.5, max_steps=14, checkpoint_format="hf", resume="auto")
    changed.train()
    with holding(tmp_path / "run"):
        met = check(tmp_path / "run", RUN, OF_THE_MODEL)
    assert met >= {"config.history.jsonl", "checkpoint/config.history.jsonl", "run.lease.json"}


@pytest.mark.slow
def test_a_run_that_is_stopped_and_one_that_is_killed(tmp_path: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        folder = tmp_path / number.name
        code = (
            "import os, sys; from pathlib import Path; from tests.faults import runner\n"
            "class Ends(runner.TrainerCallback):\n"
            "    def on_step_end(self, args, state, control, **_):\n"
            f"        state.global_step == 7 and os.kill(os.getpid(), {int(number)})\n"
            "runner.build(Path(sys.argv[1]), [Ends()]).train()\n"
        )
        subprocess.run([sys.executable, "-c", code, str(folder)], check=False, capture_output=True, timeout=120)
        met = check(folder, RUN, OF_THE_MODEL)
        assert ("preempted.json" in met) == (number is signal.SIGTERM)
        assert "finished.json" not in met


@pytest.mark.slow
def test_an_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call = CliRunner().invoke
    call(app, ["cp", "table", "."])
    assert call(app, ["train", "table.yaml", "training.max_steps=4"]).exit_code == 0
    assert call(app, ["evaluate", "runs/table"]).exit_code == 0
    assert call(app, ["predict", "runs/table", "--data", "table.csv"]).exit_code == 0
    met = check(tmp_path / "runs/table", RUN, OF_THE_MODEL)
    assert met >= {"experiment.yaml", "preprocessing.json", "*_results.json", "predictions.jsonl"}
