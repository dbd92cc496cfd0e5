"""Planted secrets: none of them may be found in anything a run writes or the arguments show."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models import Plain, classification_rows
from trainwright import Trainer, TrainerCallback, TrainingArguments
from trainwright.callbacks.run_directory import RunDirectoryCallback
from trainwright.callbacks.tracking import TrackerCallback
from trainwright.core.events import RunEvents
from trainwright.core.state import ExportableState, TrainerControl, TrainerState
from trainwright.core.tracker import TrackedRun

CANARIES = {
    "environment": "canary-environment-1234",
    "command line": "canary-commandline-1234",
    "hub_token": "canary-hubtoken-1234",
    "nested": "canary-nested-1234",
    "run name": "hf_CanaryRunName1234",
    "logs": "ghp_CanaryLogs1234",
}


def leaks(text: str) -> list[str]:
    return [place for place, canary in CANARIES.items() if canary in text]


@pytest.fixture
def args(
    make_args: Callable[..., TrainingArguments], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> TrainingArguments:
    monkeypatch.setenv("SOME_SERVICE_TOKEN", CANARIES["environment"])
    monkeypatch.setattr(
        sys, "argv", ["train.py", "--password", CANARIES["command line"], f"x={CANARIES['environment']}"]
    )
    return make_args(
        max_steps=2,
        hub_token=CANARIES["hub_token"],
        lr_scheduler_kwargs={"api_key": CANARIES["nested"], "deeper": [{"secret": CANARIES["nested"]}]},
        run_name=f"{CANARIES['run name']}-{CANARIES['environment']}",
    )


def test_arguments_show_no_secret(args: TrainingArguments) -> None:
    shown = [repr(args), str(args), args.to_json_string(), str(args.to_dict()), str(args.to_sanitized_dict())]
    assert leaks("".join(shown)) == []
    assert args.hub_token == CANARIES["hub_token"]
    assert args.to_dict()["lr_scheduler_kwargs"]["api_key"] == "***"


def test_the_run_directory_holds_no_secret(args: TrainingArguments) -> None:
    folder = Path(str(args.output_dir))
    callback, state, control = RunDirectoryCallback(), TrainerState(max_steps=2), TrainerControl()

    class Named(torch.nn.Linear):
        class config:
            _name_or_path = f"https://me:{CANARIES['nested']}@example.org/model"
            _commit_hash = None

    callback.on_train_begin(args, state, control, model=Named(1, 1))
    logs: dict[str, Any] = {"loss": 1.0, "note": CANARIES["logs"], "api_key": CANARIES["nested"], "path": Path("a")}
    state.log_history.append({**logs, "path": "a", "step": 1})
    state.trial_name = CANARIES["environment"]
    callback.on_log(args, state, control, logs={**logs, "where": Path(CANARIES["environment"])})
    callback.on_train_end(args, state, control)
    written = {path.name: path.read_text() for path in folder.rglob("*") if path.is_file()}
    # Its log got a value that its line has not, so there is a log_history.jsonl.
    names = {"config.yaml", "env.json", "metrics.jsonl", "log_history.jsonl", "trainer_state.json"}
    assert set(written) == names
    assert {name: found for name, text in written.items() if (found := leaks(text))} == {}
    line = json.loads(written["metrics.jsonl"])
    assert (line["loss"], line["note"], line["path"], line["where"]) == (1.0, "***", "a", "***")
    assert TrainerState.load_from_json(folder / "trainer_state.json").max_steps == 2


def test_events_hold_no_secret(args: TrainingArguments, tmp_path: Path) -> None:
    events = RunEvents(tmp_path)
    events.record("odd", f"could not reach https://me:{CANARIES['nested']}@host", detail=CANARIES["environment"])
    assert leaks((tmp_path / "events.jsonl").read_text()) == []


def test_a_whole_run_writes_no_secret(
    make_args: Callable[..., TrainingArguments], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_SERVICE_TOKEN", CANARIES["environment"])

    class Talkative(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            kwargs["logs"]["note"] = CANARIES["environment"]

    args = make_args(max_steps=2, logging_steps=1, run_name=CANARIES["environment"], hub_token=CANARIES["hub_token"])
    Trainer(Plain(), args, train_dataset=classification_rows(16), callbacks=[Talkative()]).train()
    files = [path for path in Path(str(args.output_dir)).iterdir() if path.is_file()]
    assert [path.name for path in files if leaks(path.read_text())] == []


class Messenger(TrainerCallback, ExportableState):
    """Has a password in what it keeps, and a count."""

    def __init__(self, password: str) -> None:
        self.password, self.sent = password, 0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.sent += 1

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"password": self.password, "sent": self.sent}}


def test_a_callback_that_goes_on_keeps_the_password_it_was_given(
    make_args: Callable[..., TrainingArguments], caplog: pytest.LogCaptureFixture
) -> None:
    """A checkpoint holds *** in its place, which is no password."""
    settings: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, "resume": "auto"}
    for steps in (2, 4):
        messenger = Messenger(CANARIES["nested"])
        args = make_args(max_steps=steps, **settings)
        Trainer(Plain(), args, train_dataset=classification_rows(32), callbacks=[messenger]).train()
    assert (messenger.password, messenger.sent) == (CANARIES["nested"], 4)
    assert "Messenger keeps the password it has now" in caplog.text
    saved = Path(str(args.output_dir)) / "checkpoint-4" / "trainer_state.json"
    assert leaks(saved.read_text()) == []


def test_ids_of_services_and_paths_are_read_back_as_they_were(tmp_path: Path) -> None:
    """They may look as random as a key."""
    identifier = "kX9vQ2mZ7pLw4TnB8sRy1DfG6hJc3AeU5oWi0NqK"
    callback = TrackerCallback([], [])
    callback._run = TrackedRun(folder=tmp_path, config={}, facts={})
    callback._keep_id("comet_ml", identifier)
    assert callback._ids() == {"comet_ml": identifier}
    state = TrainerState(
        best_model_checkpoint=identifier, stateful_callbacks={"X": {"attributes": {"key": identifier}}}
    )
    state.save_to_json(tmp_path / "state.json")
    assert TrainerState.load_from_json(tmp_path / "state.json") == state
