"""Every tracker with the service's real package, offline or on a local store, read back by the package's own reader."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.models import Plain, classification_rows
from tests.trackers.readers import READERS, Stored, status_of
from trainwright import Trainer, TrainerCallback, TrainingArguments

MakeArgs = Callable[..., TrainingArguments]

#: Their packages take seconds to import or to begin.
_SLOW = ("wandb", "comet_ml", "aim", "mlflow", "clearml", "trackio")
EACH = [pytest.param(name, marks=pytest.mark.slow if name in _SLOW else ()) for name in READERS]


class Fails(TrainerCallback):
    """Raises after a step."""

    def __init__(self, step: int, error: BaseException) -> None:
        self.step, self.error = step, error

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            raise self.error


class Shows(TrainerCallback):
    """Logs a picture and a file after the second step."""

    trainer: Trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 2:
            file = Path(args.output_dir) / "notes.txt"
            file.write_text("notes")
            self.trainer.log_image("pic", np.full((4, 6, 3), 200, dtype=np.uint8))
            self.trainer.log_artifact(file, "notes.txt")


def arguments(make_args: MakeArgs, names: list[str], **given: Any) -> TrainingArguments:
    settings: dict[str, Any] = {
        "max_steps": 4,
        "logging_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_strategy": "steps",
        "save_steps": 2,
        "learning_rate": 0.125,
        "report_to": names,
        "run_name": "mine",
        "project": "ours",
        "tags": ["first", "small"],
    }
    return make_args(**{**settings, **given})


def train(args: TrainingArguments, *callbacks: Any, **kwargs: Any) -> Trainer:
    torch.manual_seed(0)
    rows = classification_rows(16)
    trainer = Trainer(Plain().float(), args, train_dataset=rows, eval_dataset=rows, callbacks=list(callbacks))
    for callback in callbacks:
        if isinstance(callback, Shows):
            callback.trainer = trainer
    trainer.train(**kwargs)
    return trainer


def logged(trainer: Trainer, name: str) -> list[tuple[int, float]]:
    return [(entry["step"], entry[name]) for entry in trainer.state.log_history if name in entry]


def same(points: list[tuple[int, float]], expected: list[tuple[int, float]]) -> None:
    assert [step for step, _ in points] == [step for step, _ in expected]
    assert [value for _, value in points] == pytest.approx([value for _, value in expected])


def check(name: str, stored: Stored, trainer: Trainer) -> None:
    same(stored.points["train/loss"], logged(trainer, "loss"))
    same(stored.points["eval/loss"], logged(trainer, "eval_loss"))
    assert float(stored.config["learning_rate"]) == 0.125
    assert stored.name == "mine"
    assert {"first", "small"} <= stored.tags
    assert stored.status == status_of(name, "done")


def check_files(stored: Stored) -> None:
    assert any(file.startswith("notes.txt") for file in stored.files), stored.files
    assert any(file.startswith("pic") for file in stored.files), stored.files


@pytest.fixture
def foreign_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A working directory that somebody else made; afterwards nothing of it has run, and nobody but us has used git."""
    folder, canary, calls = tmp_path / "foreign", tmp_path / "canary", tmp_path / "calls"
    folder.mkdir()
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {canary}\n")
    program.chmod(0o755)
    subprocess.run(["git", "config", "core.fsmonitor", program], cwd=folder, check=True)
    for module in ("alembic", "git", "json"):
        (folder / f"{module}.py").write_text(f"open({str(canary)!r}, 'w')\n")
    # A git that notes where it is told to look: ours never looks into the repository itself.
    recorder = tmp_path / "bin" / "git"
    recorder.parent.mkdir()
    recorder.write_text(f'#!/bin/sh\necho "git $* in $GIT_DIR" >> {calls}\nexec {shutil.which("git")} "$@"\n')
    recorder.chmod(0o755)
    monkeypatch.setenv("PATH", f"{recorder.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(folder)
    yield
    assert not canary.exists()
    made = calls.read_text().splitlines() if calls.exists() else []
    assert [call for call in made if "trainwright-git-" not in call] == []


@pytest.mark.usefixtures("foreign_repository")
@pytest.mark.parametrize("name", EACH)
def test_what_a_run_logs_comes_back(name: str, make_args: MakeArgs) -> None:
    trainer = train(arguments(make_args, [name]), Shows())
    stored = READERS[name](Path(str(trainer.args.output_dir)))
    check(name, stored, trainer)
    check_files(stored)


def of_the_process() -> list[Any]:
    """What belongs to the user's program and not to a tracker."""
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    return [sys.excepthook, sys.stdout, sys.stderr, *handlers]


@pytest.mark.slow
def test_all_at_once(make_args: MakeArgs) -> None:
    before = of_the_process()
    trainer = train(arguments(make_args, list(READERS)), Shows())
    assert of_the_process() == before
    for name, read in READERS.items():
        stored = read(Path(str(trainer.args.output_dir)))
        check(name, stored, trainer)
        check_files(stored)


@pytest.mark.slow
@pytest.mark.parametrize("name", EACH)
def test_a_run_that_fails_and_goes_on_is_one_run(name: str, make_args: MakeArgs) -> None:
    args = arguments(make_args, [name])
    folder = Path(str(args.output_dir))
    with pytest.raises(RuntimeError, match="broken"):
        train(args, Fails(3, RuntimeError("broken")))
    failed = READERS[name](folder)
    assert failed.status == status_of(name, "failed")
    trainer = train(arguments(make_args, [name]), resume_from_checkpoint=str(folder / "checkpoint-2"))
    stored = READERS[name](folder)
    assert stored.run_id == failed.run_id
    assert stored.status == status_of(name, "done")
    assert [step for step, _ in stored.points["eval/loss"]] == [2, 4]
    assert [step for step, _ in stored.points["train/loss"]] == [1, 2, 3, 4]
    same(stored.points["train/loss"][2:], logged(trainer, "loss")[2:])
    if stored.run_id is not None:
        assert json.loads((folder / "trackers.json").read_text()) == {name: stored.run_id}


_STOPPED = ["jsonl", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mlflow", "trackio"))]


@pytest.mark.parametrize("name", _STOPPED)
def test_a_run_that_is_interrupted_is_stopped(name: str, make_args: MakeArgs) -> None:
    args = arguments(make_args, [name])
    with pytest.raises(KeyboardInterrupt):
        train(args, Fails(3, KeyboardInterrupt()))
    assert READERS[name](Path(str(args.output_dir))).status == status_of(name, "stopped")


@pytest.mark.slow
def test_a_run_that_the_script_opened_is_used_and_left_open(make_args: MakeArgs, tmp_path: Path) -> None:
    import wandb

    own = wandb.init(mode="offline", dir=str(tmp_path), name="mine", tags=["own"])
    trainer = train(arguments(make_args, ["wandb"]))
    assert wandb.run is own
    own.log({"after": 1.0, "train/global_step": 5})
    own.finish()
    stored = READERS["wandb"](tmp_path)
    assert stored.run_id == own.id
    same(stored.points["train/loss"], logged(trainer, "loss"))
    assert stored.points["after"] == [(5, 1.0)]


@pytest.mark.slow
def test_a_task_that_the_script_opened_is_used_and_left_open(
    make_args: MakeArgs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clearml import Task

    monkeypatch.setenv("CLEARML_CACHE_DIR", str(tmp_path / "clearml"))
    monkeypatch.setattr(Task, "_report_subprocess_enabled", False)
    Task.set_offline(True)
    own = Task.init("ours", "mine", auto_connect_frameworks={"detect_repository": False}, auto_connect_streams=False)
    trainer = train(arguments(make_args, ["clearml"]))
    assert Task.current_task() is own
    own.set_parameter("General/status", "ours to end")
    own.close()
    stored = READERS["clearml"](tmp_path)
    assert stored.status == "ours to end"
    same(stored.points["train/loss"], logged(trainer, "loss"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlflow", "trackio"])
def test_a_new_run_in_the_same_folder_gets_a_new_id(name: str, make_args: MakeArgs) -> None:
    folder = Path(str(train(arguments(make_args, [name])).args.output_dir))
    first = json.loads((folder / "trackers.json").read_text())[name]
    train(arguments(make_args, [name]))
    assert json.loads((folder / "trackers.json").read_text())[name] != first


@pytest.mark.slow
def test_an_evaluation_and_a_file_after_training_join_the_run(make_args: MakeArgs, tmp_path: Path) -> None:
    trainer = train(arguments(make_args, ["jsonl", "tensorboard"]))
    trainer.evaluate()
    file = tmp_path / "report.md"
    file.write_text("# Report")
    trainer.log_artifact(file)
    for name in ("jsonl", "tensorboard"):
        stored = READERS[name](Path(str(trainer.args.output_dir)))
        assert [step for step, _ in stored.points["eval/loss"]] == [2, 4, 4]
        assert "report.md" in stored.files
        assert stored.status == "done"
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "run/events.jsonl").read_text().splitlines()]
    assert "artifact" in kinds


def test_dvclive_leaves_a_git_repository_as_it_is(
    make_args: MakeArgs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    about = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    for words in (["init", "-q"], [*about, "commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run(["git", *words], check=True)
    train(arguments(make_args, ["dvclive"]))
    changed = subprocess.run(["git", "status", "--porcelain"], check=True, capture_output=True, text=True).stdout
    assert sorted(line.split()[1] for line in changed.splitlines()) == ["run/"]


@pytest.mark.parametrize("name", EACH)
def test_values_that_are_no_finite_numbers(name: str, make_args: MakeArgs) -> None:
    class Odd(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            kwargs["logs"].update(odd=math.nan, huge=math.inf, note="text", nothing=None, count=np.int64(3))

    args = arguments(make_args, [name], max_steps=1, eval_strategy="no", save_strategy="no")
    trainer = train(args, Odd())
    stored = READERS[name](Path(str(trainer.args.output_dir)))
    same(stored.points["train/loss"], logged(trainer, "loss"))
    assert stored.points["train/count"][0] == (1, 3.0)
    assert "train/note" not in stored.points
    for tag in ("train/odd", "train/huge"):
        # Shown as it is, or not at all; MLflow has a largest number for infinity.
        assert all(not math.isfinite(value) or value > 1e300 for _, value in stored.points.get(tag, []))
