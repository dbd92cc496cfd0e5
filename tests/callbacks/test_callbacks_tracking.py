"""Trackers hear what callbacks made of the logs, and cannot stop a run."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.models import Plain, classification_rows
from trainwright import Trainer, TrainerCallback, TrainingArguments
from trainwright.callbacks.tracking import TrackerCallback

MakeArgs = Callable[..., TrainingArguments]


class Recorder:
    """A tracker that keeps what it is told, and fails where it is asked to."""

    def __init__(self, fail_in: str = "") -> None:
        self.fail_in = fail_in
        self.values: list[dict[str, float]] = []
        self.calls: list[str] = []
        self.config: dict[str, Any] = {}
        self.facts: dict[str, Any] = {}

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name == self.fail_in:
            raise ConnectionError(f"{name}: no network")

    def start(self, config: dict[str, Any], facts: dict[str, Any]) -> None:
        self._called("start")
        self.config, self.facts = config, facts

    def log(self, values: dict[str, float], step: int) -> None:
        self._called("log")
        self.values.append({"step": step, **values})

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


def test_a_tracker_hears_configuration_facts_values_and_the_end(make_args: MakeArgs) -> None:
    tracker = Recorder()
    train(make_args, TrackerCallback([tracker]))
    assert tracker.calls == ["start", "log", "log", "log", "finish done"]
    assert tracker.config["max_steps"] == 4
    assert tracker.facts["model"]["class"] == "Plain"
    assert [value["step"] for value in tracker.values] == [2, 4, 4]


def test_a_tracker_that_fails_is_named_once_and_left_alone(
    make_args: MakeArgs, caplog: pytest.LogCaptureFixture
) -> None:
    broken, sound = Recorder("log"), Recorder()
    with caplog.at_level(logging.ERROR, logger="trainwright"):
        assert train(make_args, TrackerCallback([broken, sound])).state.global_step == 4
    assert broken.calls == ["start", "log"]
    assert len(sound.values) == 3
    assert sum("Recorder failed" in record.message for record in caplog.records) == 1


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


def test_a_tracker_that_fails_at_the_end_does_not_fail_the_run(make_args: MakeArgs) -> None:
    assert train(make_args, TrackerCallback([Recorder("finish done")])).state.global_step == 4
