"""Several runs in one folder: each keeps its own checkpoints, whatever their step numbers say."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.faults import runner
from trainwright import Trainer, TrainerCallback, get_last_checkpoint
from trainwright.checkpoint.directory import list_checkpoints
from trainwright.checkpoint.durable import aside_of
from trainwright.checkpoint.manifest import problems_of, read_manifest


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.glob("**/checkpoint-*"))


def previous(folder: Path) -> Path:
    (found,) = folder.glob("previous-*")
    return found


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [event for event in found if event["kind"] == kind]


class StopAt(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step >= self.step


class Broken(RuntimeError):
    pass


class BreakAt(StopAt):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step >= self.step:
            raise Broken


def build(folder: Path, callbacks: list[Any] | None = None, **extra: Any) -> Trainer:
    return runner.build(folder, callbacks, **{"resume": None, **extra})


@pytest.mark.slow
def test_a_new_run_sets_an_older_one_aside_and_never_takes_or_deletes_anything_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"
    build(folder).train()
    older = {path.name: path.read_bytes() for path in (folder / "checkpoint-12").iterdir()}
    # The rotation of this one would have found its own checkpoints the oldest, by their numbers.
    with pytest.raises(Broken):
        build(folder, [BreakAt(7)]).train()
    aside = previous(folder)
    assert names(folder) == ["checkpoint-6", "checkpoint-7", *(f"{aside.name}/checkpoint-{n}" for n in (12, 9))]
    assert {path.name: path.read_bytes() for path in (aside / "checkpoint-12").iterdir()} == older
    assert f"moved to {aside}" in caplog.text
    (event,) = events(folder, "set_aside")
    assert event["checkpoints"] == ["checkpoint-9", "checkpoint-12"]
    # And the next one goes on with the second run, not with the first one's higher step.
    assert runner.trained(folder) == runner.trained(tmp_path / "straight")
    assert names(folder)[:2] == ["checkpoint-12", "checkpoint-9"]
    assert len(list(folder.glob("previous-*"))) == 1


@pytest.mark.slow
def test_a_new_run_that_is_killed_before_its_first_save_does_not_wake_the_old_one(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    build(folder).train()
    with pytest.raises(Broken):
        build(folder, [BreakAt(1)]).train()
    # What a kill in the middle of setting aside leaves.
    shutil.rmtree(folder / "checkpoint-1")
    for path in list(previous(folder).iterdir()):
        os.rename(path, folder / path.name)
    assert get_last_checkpoint(folder) is None
    with pytest.raises(ValueError, match="another run"):
        build(folder).train(resume_from_checkpoint=True)
    assert runner.trained(folder) == runner.trained(tmp_path / "straight")
    assert names(folder)[:2] == ["checkpoint-12", "checkpoint-9"]
    assert {f"{previous(folder).name}/checkpoint-{n}" for n in (9, 12)} <= set(names(folder))


@pytest.mark.slow
def test_resuming_the_run_that_was_set_aside(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    build(folder, [StopAt(6)]).train()
    (first,) = {read_manifest(path)["run"]["id"] for path in list_checkpoints(folder)}
    build(folder, [StopAt(3)], seed=5).train()
    trainer = build(folder)
    trainer.train(resume_from_checkpoint=str(previous(folder) / "checkpoint-6"))
    assert runner.fingerprint(trainer) == runner.trained(tmp_path / "straight")
    assert {read_manifest(path)["run"]["id"] for path in list_checkpoints(folder)} == {first}
    assert sorted(path.name for path in list_checkpoints(folder)) == ["checkpoint-12", "checkpoint-9"]
    assert len(list(folder.glob("previous-*"))) == 2


def test_going_back_by_name_sets_the_course_that_was_given_up_aside(tmp_path: Path) -> None:
    """Or a later resume would take its higher step, and rotation delete the new course."""
    folder = tmp_path / "run"
    build(folder, save_total_limit=None).train()
    trainer = build(folder, [StopAt(4)], learning_rate=1e-3, save_total_limit=None)
    trainer.train(resume_from_checkpoint=str(folder / "checkpoint-3"))
    assert {path.name for path in list_checkpoints(folder)} <= {"checkpoint-3", "checkpoint-4"}
    aside = sorted(previous(folder).glob("checkpoint-*"))
    assert [path.name for path in aside] == ["checkpoint-12", "checkpoint-6", "checkpoint-9"]
    assert all(problems_of(path) == [] for path in aside)
    # With the log that they refer to: that of the run goes another way from step 3 on.
    assert {path.name for path in previous(folder).iterdir()} - {path.name for path in aside} == {"metrics.jsonl"}


def test_a_run_without_checkpoints_of_its_own_leaves_others_where_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    build(folder).train()
    before = names(folder)
    build(folder, save_strategy="no").train()
    assert names(folder) == before
    assert get_last_checkpoint(folder) == str(folder / "checkpoint-12")


@pytest.mark.slow
@pytest.mark.parametrize("by_name", [False, True])
def test_a_checkpoint_caught_between_two_names_is_found(tmp_path: Path, by_name: bool) -> None:
    """Killed between the two renames of a save of the same step: it lies aside, and is the only one."""
    straight = runner.trained(tmp_path / "straight")
    folder = tmp_path / "run"
    build(folder, [StopAt(6)], save_steps=6).train()
    os.rename(folder / "checkpoint-6", aside_of(folder / "checkpoint-6"))
    found = get_last_checkpoint(folder)
    assert found == str(aside_of(folder / "checkpoint-6"))
    trainer = runner.build(folder)
    trainer.train(resume_from_checkpoint=found if by_name else None)
    assert runner.fingerprint(trainer) == straight
    assert trainer._present_run().first_step == 6
    assert list(folder.glob(".checkpoint-*")) == []


# ---- the best model, and the folder itself

BEST: dict[str, Any] = {
    "eval_strategy": "steps",
    "eval_steps": 3,
    "save_strategy": "steps",
    "load_best_model_at_end": True,
    "metric_for_best_model": "score",
    "greater_is_better": True,
}


def scored(folder: Path, scores: dict[int, float], callbacks: list[Any] | None = None, **extra: Any) -> Trainer:
    """A Trainer whose evaluations find these scores after these steps."""
    rows = runner.rows()
    args = dataclasses.replace(runner.build(folder, **extra).args, **BEST)

    def metric(prediction: Any) -> dict[str, float]:
        return {"score": scores.get(trainer.state.global_step, 0.0)}

    data = {"train_dataset": rows, "eval_dataset": rows}
    trainer = Trainer(runner.Net(), args, **data, compute_metrics=metric, callbacks=callbacks)
    return trainer


def test_the_best_model_is_found_again_after_the_folder_was_moved(tmp_path: Path) -> None:
    scored(tmp_path / "here", {3: 0.9}).train()
    shutil.move(tmp_path / "here", tmp_path / "there")
    trainer = scored(tmp_path / "there", {})
    assert trainer.train().global_step == 12
    assert trainer.state.best_model_checkpoint == str(tmp_path / "there/checkpoint-3")
    best = load_file(tmp_path / "there/checkpoint-3/model.safetensors")
    assert all(torch.equal(tensor, best[name]) for name, tensor in trainer.model.state_dict().items())


def test_a_best_model_that_is_gone_is_named_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    scored(tmp_path / "run", {3: 0.9}, [StopAt(6)]).train()
    shutil.rmtree(tmp_path / "run/checkpoint-3")
    trainer = scored(tmp_path / "run", {12: 0.95})
    trainer.train()
    assert "checkpoint-3, which is not there" in caplog.text
    assert trainer.state.best_model_checkpoint == str(tmp_path / "run/checkpoint-12")


def test_a_change_of_the_working_directory_does_not_split_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)

    class Moves(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            os.chdir(tmp_path / "elsewhere")

    trainer = runner.build(Path("run"), [Moves()])
    trainer.train()
    trainer.save_model()
    trainer.save_state()
    assert list((tmp_path / "elsewhere").iterdir()) == []
    there = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"checkpoint-9", "checkpoint-12", "metrics.jsonl", "trainer_state.json", "model.safetensors"} <= there


def test_room_for_one_checkpoint_keeps_the_last_beside_the_best(tmp_path: Path) -> None:
    """Or the same command, run again, would train again from the best one on."""
    folder = tmp_path / "run"
    scored(folder, {3: 0.9, 12: 0.3}, save_total_limit=1).train()
    assert names(folder) == ["checkpoint-12", "checkpoint-3"]
    again = scored(folder, {}, save_total_limit=1)
    assert again.train().global_step == 12
    assert again._present_run().first_step == 12


def test_checkpoints_of_another_library_are_named_before_a_run_starts_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And the newest of them, by its number."""
    for step in (7, 14, 30):
        (tmp_path / "run" / f"checkpoint-{step}").mkdir(parents=True)
        (tmp_path / "run" / f"checkpoint-{step}" / "trainer_state.json").write_text("{}")
    runner.build(tmp_path / "run", max_steps=2).train()
    assert f"trainwright import {tmp_path / 'run' / 'checkpoint-30'}" in caplog.text
