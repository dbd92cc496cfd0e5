"""The watchdog: what it writes when a run falls silent, and that it keeps quiet otherwise."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from tests.models import Plain, classification_rows
from trainwright import Trainer, TrainerCallback, TrainingArguments
from trainwright.callbacks.watchdog import EXIT_CODE, WatchdogCallback
from trainwright.core.events import RunEvents

MakeArgs = Callable[..., TrainingArguments]
LIMIT = 0.3


def wait_for(happened: Callable[[], Any], seconds: float = 30.0) -> None:
    """Until something is there, so that a slow machine only takes longer."""
    end = time.monotonic() + seconds
    while not happened() and time.monotonic() < end:
        time.sleep(0.01)


class Rows:
    """A dataset that blocks on one row until the watchdog has reported as often as it should."""

    def __init__(self, events: RunEvents, blocking: dict[int, int]) -> None:
        self.rows = classification_rows(64)
        self.events = events
        self.blocking = blocking

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if index in self.blocking:
            self.block_in_the_dataset(self.blocking.pop(index))
        return self.rows[index]

    def block_in_the_dataset(self, reports: int) -> None:
        wait_for(lambda: len(self.events.recorded) >= reports)


class SlowForward(Plain):
    events: RunEvents

    def forward(self, x: Tensor, labels: Tensor | None = None, **kwargs: Any) -> dict[str, Tensor]:
        if not self.events.recorded:
            self.block_in_forward()
        return super().forward(x, labels)

    def block_in_forward(self) -> None:
        wait_for(lambda: self.events.recorded)


def train(make_args: MakeArgs, events: RunEvents, model: Plain, rows: Any, **settings: Any) -> Path:
    settings = {"max_steps": 4, "train_sampling_strategy": "sequential", **settings}
    args = make_args(**settings)
    watchdog = WatchdogCallback(events, seconds=LIMIT)
    Trainer(model, args, train_dataset=rows, eval_dataset=rows, callbacks=[watchdog]).train()
    return Path(str(args.output_dir))


def watching() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "trainwright-watchdog"]


@pytest.mark.slow
def test_a_blocking_dataset_is_named_once_for_each_silence(make_args: MakeArgs) -> None:
    events = RunEvents()
    # Rows 3 and 20 are in the first and the third batch.
    folder = train(make_args, events, Plain(), Rows(events, {3: 1, 20: 2}))
    stuck = [event for event in events.recorded if event["kind"] == "stuck"]
    assert [event["phase"] for event in stuck] == ["waiting for data"] * 2
    assert [event["file"] for event in stuck] == ["stacks-1.txt", "stacks-2.txt"]
    assert all("block_in_the_dataset" in event["place"] or "wait_for" in event["place"] for event in stuck)
    for event in stuck:
        stacks = (folder / event["file"]).read_text()
        assert "block_in_the_dataset" in stacks
        assert event["file"] in event["message"]
    assert watching() == []


@pytest.mark.slow
def test_a_blocking_forward_is_named(make_args: MakeArgs) -> None:
    events, model = RunEvents(), SlowForward()
    model.events = events
    folder = train(make_args, events, model, classification_rows(64))
    (event,) = events.recorded
    assert event["phase"] == "in a training step"
    assert "block_in_forward" in (folder / "stacks-1.txt").read_text()


@pytest.mark.slow
def test_a_blocking_evaluation_is_named(make_args: MakeArgs) -> None:
    events = RunEvents()
    args = make_args(max_steps=2, eval_strategy="steps", eval_steps=2)
    trainer = Trainer(
        Plain(),
        args,
        train_dataset=classification_rows(16),
        eval_dataset=Rows(events, {40: 1}),
        callbacks=[WatchdogCallback(events, seconds=LIMIT)],
    )
    trainer.train()
    assert [event["phase"] for event in events.recorded] == ["evaluating"]


def test_a_busy_run_is_left_alone(make_args: MakeArgs) -> None:
    events = RunEvents()
    folder = train(make_args, events, Plain(), classification_rows(64))
    assert events.recorded == []
    assert list(folder.glob("stacks-*")) == []
    assert watching() == []


def test_it_stops_when_training_fails(make_args: MakeArgs) -> None:
    class Failing(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            raise RuntimeError("oh")

    args = make_args(max_steps=2)
    callbacks = [WatchdogCallback(RunEvents()), Failing()]
    with pytest.raises(RuntimeError, match="oh"):
        Trainer(Plain(), args, train_dataset=classification_rows(16), callbacks=callbacks).train()
    assert watching() == []


@pytest.mark.slow
def test_long_steps_get_more_time(make_args: MakeArgs) -> None:
    """Steps of 0.1 s, watched with a limit of 0.2 s: ten of them are the limit as soon as a few were seen."""
    dog = WatchdogCallback(RunEvents(), seconds=0.2)
    assert dog.limit() == 0.2

    class Slow(Plain):
        def forward(self, x: Tensor, labels: Tensor | None = None, **kwargs: Any) -> dict[str, Tensor]:
            time.sleep(0.1)
            return super().forward(x, labels)

    args = make_args(max_steps=6)
    Trainer(Slow().float(), args, train_dataset=classification_rows(16), callbacks=[dog]).train()
    assert dog.limit() > 0.9


@pytest.mark.slow
def test_files_of_earlier_runs_are_kept(make_args: MakeArgs, tmp_path: Path) -> None:
    events = RunEvents()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "stacks-1.txt").write_text("older")
    folder = train(make_args, events, Plain(), Rows(events, {3: 1}))
    assert (folder / "stacks-1.txt").read_text() == "older"
    assert (folder / "stacks-2.txt").is_file()


@pytest.mark.parametrize("seconds", [0, -1.0])
def test_no_limit_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        WatchdogCallback(RunEvents(), seconds=seconds)


SCRIPT = """
import sys, time
from trainwright.callbacks.watchdog import WatchdogCallback
from trainwright.config import TrainingArguments
from trainwright.core.events import RunEvents
from trainwright.core.state import TrainerControl, TrainerState

def hang_forever():
    time.sleep(60)

args = TrainingArguments(sys.argv[1])
dog = WatchdogCallback(RunEvents(sys.argv[1]), seconds=0.2, exit_process=True)
dog.on_train_begin(args, TrainerState(), TrainerControl())
dog.on_step_begin(args, TrainerState(), TrainerControl())
hang_forever()
"""


@pytest.mark.slow
def test_it_ends_the_process_if_asked_to(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], timeout=50, check=False, capture_output=True)
    assert done.returncode == EXIT_CODE == 70
    assert "hang_forever" in (tmp_path / "stacks-1.txt").read_text()
    event = json.loads((tmp_path / "events.jsonl").read_text())
    assert (event["kind"], event["phase"]) == ("stuck", "between steps")
    assert "hang_forever" in event["place"]
