"""Trackers hear what callbacks made of the logs, and cannot stop a run."""

from __future__ import annotations

import json
import math
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models import Plain, classification_rows
from trainwright import TrackedRun, Trainer, TrainerCallback, TrainingArguments
from trainwright.callbacks import delivery
from trainwright.callbacks.tracking import TrackerCallback

MakeArgs = Callable[..., TrainingArguments]


class Recorder:
    """A tracker that keeps what it is told, and fails so many times where it is asked to."""

    def __init__(self, fail_in: str = "", times: int = 10**6, error: Exception | None = None) -> None:
        self.fail_in, self.times = fail_in, times
        self.error = error or ConnectionError(
            f"{fail_in}: no network at https://me:pass-word-1@example.org\nsecond line"
        )
        self.values: list[dict[str, float]] = []
        self.calls: list[str] = []
        self.runs: list[TrackedRun] = []

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name.partition(" ")[0] == self.fail_in and self.times > 0:
            self.times -= 1
            raise self.error

    def start(self, run: TrackedRun) -> str:
        self._called("start")
        self.runs.append(run)
        return run.earlier_id or f"id-{len(self.runs)}"

    def log(self, values: dict[str, float], step: int) -> None:
        self._called("log")
        self.values.append({"step": step, **values})

    def log_artifact(self, path: Path, name: str | None = None) -> None:
        self._called(f"log_artifact {name or path.name}")

    def log_image(self, name: str, image: Any, step: int) -> None:
        self._called(f"log_image {name}")

    def finish(self, status: str) -> None:
        self._called(f"finish {status}")


class Adds(TrainerCallback):
    """Puts a value of its own into every log."""

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        kwargs["logs"]["mine"] = 42.0


def train(make_args: MakeArgs, *callbacks: Any, **kwargs: Any) -> Trainer:
    args = make_args(**{"max_steps": 4, "logging_steps": 2, **kwargs})
    trainer = Trainer(Plain(), args, train_dataset=classification_rows(16), callbacks=list(callbacks))
    trainer.train()
    return trainer


def metrics_of(trainer: Trainer) -> list[dict[str, Any]]:
    text = (Path(str(trainer.args.output_dir)) / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "trainwright" and record.levelno >= 30]


def test_a_tracker_hears_configuration_facts_values_and_the_end(make_args: MakeArgs) -> None:
    tracker = Recorder()
    train(make_args, TrackerCallback([tracker]), run_name="mine", tags=["a", "b"], project="ours")
    assert tracker.calls == ["start", "log", "log", "log", "finish done"]
    (run,) = tracker.runs
    assert run.config["max_steps"] == 4
    assert run.facts["model"]["class"] == "Plain"
    assert (run.name, run.tags, run.project, run.earlier_id, run.step) == ("mine", ("a", "b"), "ours", None, 0)
    assert [value["step"] for value in tracker.values] == [2, 4, 4]


def test_a_service_that_is_gone_for_a_while_gets_everything_in_order(
    make_args: MakeArgs, caplog: pytest.LogCaptureFixture
) -> None:
    # The pause after a failure is far longer than the run: what waited is delivered at the end.
    broken, sound = Recorder("log", times=1), Recorder()
    assert train(make_args, TrackerCallback([broken, sound])).state.global_step == 4
    assert broken.calls == ["start", "log", "log", "log", "log", "finish done"]
    assert [value["step"] for value in broken.values] == [2, 4, 4]
    assert len(sound.values) == 3
    (message,) = warnings_in(caplog)
    assert "Recorder fails (ConnectionError: log: no network at https://***@example.org)" in message


def test_what_never_arrives_is_counted_and_the_end_is_told(
    make_args: MakeArgs, caplog: pytest.LogCaptureFixture
) -> None:
    broken = Recorder("log")
    train(make_args, TrackerCallback([broken]))
    assert broken.values == []
    assert broken.calls[-1] == "finish done"
    first, last = warnings_in(caplog)
    assert "fails" in first
    assert last == "3 logged values never reached the tracker Recorder."


def test_a_service_that_is_gone_at_the_start_is_tried_again(
    make_args: MakeArgs, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = Recorder("start", times=1)
    train(make_args, TrackerCallback([tracker]))
    assert tracker.calls == ["start", "start", "log", "log", "log", "finish done"]
    assert len(warnings_in(caplog)) == 1


def test_what_the_user_must_correct_ends_the_run_before_its_first_step(make_args: MakeArgs) -> None:
    wrong, other = Recorder("start", error=ValueError("no such project")), Recorder()
    trainer = Trainer(
        Plain(), make_args(max_steps=2), train_dataset=classification_rows(8),
        callbacks=[TrackerCallback([other, wrong], ["other", "wrong"])],
    )  # fmt: skip
    with pytest.raises(ValueError, match="no such project"):
        trainer.train()
    assert trainer.state.global_step == 0
    assert other.calls == ["start", "finish failed"]


def test_a_value_that_a_tracker_cannot_take_does_not_hold_up_the_others(
    make_args: MakeArgs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(delivery, "FIRST_PAUSE", 0.001)

    gave_up = threading.Event()

    class Picky(Recorder):
        def log(self, values: dict[str, float], step: int) -> None:
            if step == 2:
                raise ValueError("I do not like this one")
            super().log(values, step)
            gave_up.set()

    class Waits(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 6:
                gave_up.wait(10)

    tracker = Picky()
    train(make_args, TrackerCallback([tracker]), Waits(), max_steps=6)
    assert [value["step"] for value in tracker.values] == [4, 6, 6]
    assert warnings_in(caplog)[-1] == "1 logged values never reached the tracker Picky."


def test_what_waits_is_bounded_and_the_oldest_goes(
    make_args: MakeArgs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(delivery, "MOST_WAITING", 3)
    tracker = Recorder("log", times=1)
    train(make_args, TrackerCallback([tracker]), max_steps=8, logging_steps=1)
    steps = [value["step"] for value in tracker.values]
    # The one that failed first, and the newest.
    assert steps[0] == 1
    assert steps[-2:] == [8, 8]
    assert len(steps) < 9
    assert warnings_in(caplog)[-1] == f"{9 - len(steps)} logged values never reached the tracker Recorder."


def test_a_service_that_hangs_does_not_hold_up_the_run(
    make_args: MakeArgs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(delivery, "FINISH_WITHIN", 0.05)
    let_go = threading.Event()

    class Hangs(Recorder):
        def log(self, values: dict[str, float], step: int) -> None:
            let_go.wait(30)

    assert train(make_args, TrackerCallback([Hangs()])).state.global_step == 4
    let_go.set()
    assert warnings_in(caplog) == ["3 logged values never reached the tracker Hangs."]


def test_a_service_that_hangs_at_the_start_does_not_hold_up_the_run(
    make_args: MakeArgs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(delivery, "START_WITHIN", 0.05)
    let_go = threading.Event()

    class Hangs(Recorder):
        def start(self, run: TrackedRun) -> str:
            let_go.wait(30)
            return super().start(run)

    class LetsGo(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            let_go.set()

    tracker = Hangs()
    train(make_args, TrackerCallback([tracker]), LetsGo())
    assert [value["step"] for value in tracker.values] == [2, 4, 4]
    assert "has not answered" in warnings_in(caplog)[0]


@pytest.mark.parametrize(
    ("error", "status"), [(RuntimeError("broken"), "failed"), (KeyboardInterrupt(), "stopped")], ids=["error", "Ctrl-C"]
)
def test_how_a_run_ended(error: BaseException, status: str, make_args: MakeArgs) -> None:
    class Raises(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            raise error

    tracker = Recorder()
    with pytest.raises(type(error)):
        train(make_args, TrackerCallback([tracker]), Raises())
    assert tracker.calls[-1] == f"finish {status}"


def test_a_run_out_of_time_is_stopped(make_args: MakeArgs) -> None:
    tracker = Recorder()
    with pytest.raises(SystemExit):
        train(make_args, TrackerCallback([tracker]), max_hours=1e-9)
    assert tracker.calls[-1] == "finish stopped"


@pytest.mark.slow
def test_a_run_that_goes_on_brings_its_ids(make_args: MakeArgs, tmp_path: Path) -> None:
    args = {"save_strategy": "steps", "save_steps": 2}
    first, twin = Recorder(), Recorder()
    train(make_args, TrackerCallback([first, twin], ["one", "one"]), max_steps=2, **args)
    assert json.loads((tmp_path / "run/trackers.json").read_text()) == {"one": "id-1", "one-2": "id-1"}
    second = Recorder()
    train(make_args, TrackerCallback([second], ["one"]), resume="auto", **args)
    assert (second.runs[0].earlier_id, second.runs[0].step) == ("id-1", 2)
    third = Recorder()
    train(make_args, TrackerCallback([third], ["one"]), **args)
    assert third.runs[0].earlier_id is None


def test_pictures_and_files_of_ones_own(make_args: MakeArgs, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Plainer:
        """Has only what it must have."""

        def __init__(self) -> None:
            self.ended = ""

        def start(self, run: TrackedRun) -> None: ...
        def log(self, values: dict[str, float], step: int) -> None: ...
        def finish(self, status: str) -> None:
            self.ended = status

    tracker, plainer = Recorder(), Plainer()
    args = make_args(max_steps=2, report_to=[tracker, plainer])
    trainer = Trainer(Plain(), args, train_dataset=classification_rows(8))
    with pytest.raises(ValueError, match=r"belongs to a run: call it from a callback during train\(\)"):
        trainer.log_artifact(__file__)
    trainer.train()
    trainer.log_artifact(__file__, "me")
    trainer.log_image("pic", np.zeros((2, 2), dtype=np.uint8))
    assert {"log_artifact me", "log_image pic"} <= set(tracker.calls)
    assert tracker.runs[-1].earlier_id == "id-1"
    assert plainer.ended == "done"
    assert "The tracker Plainer has no log_artifact: what goes there is left out." in warnings_in(caplog)
    with pytest.raises(ValueError, match="array of uint8"):
        trainer.log_image("pic", [[0.5]])
    for wrong in (lambda: trainer.log_artifact(tmp_path / "no"), lambda: trainer.log_image("x", tmp_path / "no.png")):
        with pytest.raises(ValueError, match="there is no file"):
            wrong()


def test_what_a_callback_adds_reaches_every_record_wherever_it_stands(make_args: MakeArgs) -> None:
    tracker = Recorder()
    # The tracker is given first and still hears last.
    trainer = train(make_args, TrackerCallback([tracker]), Adds())
    assert all(value["mine"] == 42.0 for value in tracker.values)
    assert all(line["mine"] == 42.0 for line in metrics_of(trainer))
    assert len(metrics_of(trainer)) == 3


def test_metrics_lines_are_strict_json_even_with_nan(make_args: MakeArgs) -> None:
    class Breaks(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            kwargs["logs"]["broken"] = math.nan

    trainer = train(make_args, Breaks())

    def refuse(word: str) -> Any:
        raise AssertionError(word)

    for line in (Path(str(trainer.args.output_dir)) / "metrics.jsonl").read_text().splitlines():
        assert json.loads(line, parse_constant=refuse)["broken"] == "nan"


def test_a_tracker_that_fails_at_the_end_does_not_fail_the_run(
    make_args: MakeArgs, caplog: pytest.LogCaptureFixture
) -> None:
    assert train(make_args, TrackerCallback([Recorder("finish")])).state.global_step == 4
    assert len(warnings_in(caplog)) == 1


def test_a_package_that_changes_the_process_is_put_right(make_args: MakeArgs) -> None:
    class Meddles(Recorder):
        def start(self, run: TrackedRun) -> str:
            sys.excepthook = lambda *_: None
            return super().start(run)

    before = sys.excepthook
    train(make_args, TrackerCallback([Meddles()]))
    assert sys.excepthook is before
