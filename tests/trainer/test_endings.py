"""The end of a run tells the truth: a marker where it waits to be started again, and who ended it early."""

from __future__ import annotations

import copy
import json
import logging
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.faults import runner
from tests.faults.runner import At
from trainwright import EarlyStoppingCallback, KeepBest, Preempted, Trainer, TrainerCallback, TrainingArguments
from trainwright.cli.app import app


def test_a_folder_that_was_removed_while_it_trains_gets_its_record_again(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    runner.build(folder, max_steps=4).train()
    trainer = runner.build(folder, [At(lambda: shutil.rmtree(folder))], max_steps=12, resume="auto")
    trainer.train()
    names = {path.name for path in folder.iterdir()}
    assert names >= {"config.yaml", "env.json", "run.json", "config.history.jsonl", "metrics.jsonl", "finished.json"}
    again = runner.build(folder, max_steps=14, resume="auto")
    again.train()
    assert again.state.global_step == 14
    history = [json.loads(line) for line in (folder / "config.history.jsonl").read_text().splitlines()]
    assert [(one["what"], one["to"]) for one in history] == [("max_steps", 12), ("max_steps", 14)]


def marker(folder: Path) -> dict[str, Any] | None:
    path = folder / "preempted.json"
    return json.loads(path.read_text()) if path.exists() else None


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [event for event in found if event["kind"] == kind]


def interrupt() -> None:
    raise KeyboardInterrupt


def press() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "extra"), [(press, {}), (press, {"handle_signals": False}), (interrupt, {}), (interrupt, {"resume": None})]
)
def test_a_run_that_ctrl_c_ended_says_so_until_it_goes_on(
    work: Callable[[], None], extra: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        runner.build(tmp_path, [At(work)], **extra).train()
    found = marker(tmp_path)
    assert found is not None
    assert {name: found[name] for name in ("reason", "step", "checkpoint", "code")} == {
        "reason": "SIGINT",
        "step": 5,
        "checkpoint": "checkpoint-5",
        "code": 130,
    }
    # Whatever way it comes to its end.
    assert runner.build(tmp_path).train().global_step == 12
    assert marker(tmp_path) is None
    (tmp_path / "preempted.json").write_text("{}")
    assert runner.build(tmp_path).train().global_step == 12
    assert marker(tmp_path) is None


def test_ctrl_c_before_the_first_step_leaves_a_marker_that_names_what_there_is(tmp_path: Path) -> None:
    runner.build(tmp_path, max_steps=6).train()

    class Slow(Trainer):
        def get_train_dataloader(self) -> Any:
            raise KeyboardInterrupt

    given = runner.build(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        Slow(given.model, given.args, train_dataset=runner.rows()).train()
    found = marker(tmp_path)
    assert found is not None
    assert (found["checkpoint"], found["code"]) == ("checkpoint-6", 130)


@pytest.mark.parametrize("called", ["evaluate", "predict"])
def test_a_finished_run_whose_evaluation_is_stopped_is_still_finished(called: str, tmp_path: Path) -> None:
    trainer = runner.build(tmp_path)
    trainer.train()
    trainer.compute_metrics = lambda prediction: signal.raise_signal(signal.SIGTERM)
    with pytest.raises(Preempted):
        getattr(trainer, called)(runner.rows())
    assert marker(tmp_path) is None
    assert len(events(tmp_path, "stopped")) == 1


# ---- who ended it early


class Judge:
    """Metrics that get better until the third evaluation; the first one is asked for before the training."""

    def __init__(self) -> None:
        self.values = iter([0.0, 0.5, 0.6, 0.7, *[0.1] * 100])

    def __call__(self, prediction: Any) -> dict[str, float]:
        return {"score": next(self.values)}


def judged(folder: Path, callbacks: list[Any], **extra: Any) -> Trainer:
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": 40,
        "per_device_train_batch_size": 4,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_steps": 2,
        "metric_for_best_model": "score",
        "load_best_model_at_end": True,
        "disable_tqdm": True,
        "use_cpu": True,
        "log_level": "info",
        **extra,
    }
    return Trainer(
        runner.Net(),
        TrainingArguments(**settings),
        train_dataset=runner.rows(),
        eval_dataset=runner.rows()[:8],
        compute_metrics=Judge(),
        callbacks=callbacks,
    )


@pytest.mark.slow
def test_early_stopping_says_since_when_nothing_improved(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "trainwright"):
        output = judged(tmp_path, [EarlyStoppingCallback(2)]).train()
    reason = "eval_score has not improved since step 6"
    assert output.stopped_early == reason
    assert f"Training ended early, at step 10 of 40: {reason}." in caplog.text
    (event,) = events(tmp_path, "stopped_early")
    assert (event["step"], event["reason"], event["callback"]) == (10, reason, "EarlyStoppingCallback")
    # What transformers' users do with it still works.
    step, loss, metrics = output
    assert (step, loss, metrics) == output == copy.deepcopy(output)
    assert all(isinstance(value, (int, float)) for value in metrics.values())
    assert repr(output).startswith("TrainOutput(global_step=10, training_loss=")
    with_threshold = judged(tmp_path / "b", [EarlyStoppingCallback(2, 0.15)]).train()
    assert with_threshold.stopped_early == "eval_score has not improved by more than 0.15 in the last 2 evaluations"
    with_patience = judged(tmp_path / "c", [KeepBest("eval_score", tmp_path / "best", patience=2)]).train()
    assert with_patience.stopped_early == "eval_score has not improved 2 times in a row"


class Fickle(TrainerCallback):
    """Asks to stop, and thinks better of it."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step == 3

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = False


class MyCallback(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        control.should_training_stop |= state.global_step >= 5
        return control


@pytest.mark.slow
def test_any_callback_that_stops_a_training_is_named(tmp_path: Path) -> None:
    output = runner.build(tmp_path, [Fickle(), MyCallback()]).train()
    assert output.stopped_early == "MyCallback set control.should_training_stop"
    assert events(tmp_path, "stopped_early")[0]["step"] == output.global_step == 5
    # One that comes to its end was not stopped, also by a Trainer that was before.
    trainer = runner.build(tmp_path / "b", [MyCallback()])
    assert trainer.train().stopped_early is not None
    trainer.pop_callback(MyCallback)
    assert trainer.train().stopped_early is None
    assert runner.build(tmp_path / "c", [MyCallback()], max_steps=5).train().stopped_early is None


class InTheStep(Trainer):
    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        self.control.should_training_stop = self.state.global_step == 4
        return super().compute_loss(*args, **kwargs)


def test_a_stop_that_no_callback_asked_for_is_told_too(tmp_path: Path) -> None:
    given = runner.build(tmp_path)
    output = InTheStep(given.model, given.args, train_dataset=runner.rows()).train()
    assert output.stopped_early == "something set control.should_training_stop"


@pytest.mark.slow
def test_the_reason_is_known_after_an_interruption_between_the_decision_and_the_end(tmp_path: Path) -> None:
    sent: list[bool] = []

    class StopsAndIsKilled(EarlyStoppingCallback):
        def on_evaluate(self, *args: Any, **kwargs: Any) -> None:
            super().on_evaluate(*args, **kwargs)
            if self.stop_reason is not None and not sent:
                sent.append(True)
                signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Preempted):
        judged(tmp_path, [StopsAndIsKilled(2)]).train()
    again = judged(tmp_path, [StopsAndIsKilled(2)], restore_callback_states_from_checkpoint=True)
    again.compute_metrics = lambda prediction: {"score": 0.0}
    output = again.train(resume_from_checkpoint=True)
    assert output.global_step == 10
    assert output.stopped_early == "eval_score has not improved since step 6"


def test_the_command_line_says_why_a_training_ended_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("a,b,kind\n" + "\n".join(f"{i},{i * i % 11},{'xy'[i % 2]}" for i in range(32)))
    Path("e.yaml").write_text(
        "model: {name: mlp, options: {width: 4, layers: 1}}\n"
        "data: {train: t.csv, target: kind, holdout: 0.25}\n"
        "training: {max_steps: 40, learning_rate: 0.0, use_cpu: true, eval_strategy: steps, eval_steps: 2,"
        " save_steps: 2, load_best_model_at_end: true, metric_for_best_model: loss}\n"
        "callbacks: [{early_stopping: {patience: 2}}]\n"
    )
    done = CliRunner().invoke(app, ["train", "e.yaml"])
    assert done.exit_code == 0, done.output
    assert "Training ended early, at step 6: eval_loss has not improved since step 2." in done.output
