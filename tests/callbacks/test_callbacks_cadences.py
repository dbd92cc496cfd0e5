"""Our own words for when to log, evaluate and save, by what they cause."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.callbacks.test_callbacks_flow import Counter, count
from tests.models import Plain, classification_rows
from trainwright import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments
from trainwright.callbacks import flow
from trainwright.callbacks.flow import DefaultFlowCallback
from trainwright.core.state import TrainerControl, TrainerState

MakeArgs = Callable[..., TrainingArguments]

#: Arguments, and the steps of logs, evaluations and saves that must follow; 10 steps in 2 epochs of 5.
CASES: dict[str, tuple[dict[str, Any], tuple[list[int], list[int], list[int]]]] = {
    "steps": ({"checkpoint_every": "4 steps"}, ([], [], [4, 8, 10])),
    "a share": ({"evaluate_every": "20%"}, ([], [2, 4, 6, 8, 10], [])),
    "a share that rounds up": ({"log_every": "0.25 run"}, ([3, 6, 9], [], [])),
    "an epoch": ({"log_every": "1 epoch", "evaluate_every": "1 epoch"}, ([5, 10], [5, 10], [])),
    "two epochs": ({"checkpoint_every": "2 epochs"}, ([], [], [10])),
    "half an epoch": (
        {"log_every": "0.5 epochs", "checkpoint_every": "0.5 epochs"},
        ([3, 5, 8, 10], [], [3, 5, 8, 10]),
    ),
    "either": ({"log_every": "4 steps or 1 epoch"}, ([4, 5, 8, 10], [], [])),
    "either, at the end once": ({"evaluate_every": "4 steps or 1 epoch"}, ([], [4, 5, 8, 10], [])),
    "evaluations": ({"evaluate_every": "2 steps", "checkpoint_every": "2 evals"}, ([], [2, 4, 6, 8, 10], [4, 8, 10])),
    "long times": ({"log_every": "1 hour", "evaluate_every": "1 hour", "checkpoint_every": "1 hour"}, ([], [10], [10])),
    "delay": ({"evaluate_every": "0.4 epochs", "eval_delay": 5}, ([], [6, 8, 10], [])),
    "never": ({"checkpoint_every": "never", "log_every": "never"}, ([], [], [])),
    "first log": ({"log_every": "1 hour", "logging_first_step": True}, ([1], [], [])),
}


@pytest.mark.parametrize("name", CASES)
def test_cadences(make_args: MakeArgs, name: str) -> None:
    arguments, expected = CASES[name]
    # The fixture and `count` switch off by strategy what is off here unless it is asked for.
    if "log_every" in arguments:
        arguments = {"logging_strategy": "no" if arguments["log_every"] == "never" else "steps", **arguments}
    if arguments.get("log_every") == "1 epoch":
        arguments["logging_strategy"] = "epoch"
    if arguments.get("checkpoint_every", "never") != "never":
        arguments = {"save_strategy": "steps", **arguments}
    assert count(make_args, **arguments) == expected


class Clock:
    """Stands in for the module ``time``; each training step takes ten seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_minutes_count_from_the_last_checkpoint_whoever_asked_for_it(
    make_args: MakeArgs, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, counter = Clock(), Counter()
    monkeypatch.setattr(flow, "time", clock)

    class Slow(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            clock.now += 10

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_save |= state.global_step == 5

    args = make_args(max_steps=12, save_strategy="steps", checkpoint_every="0.5 minutes")
    Trainer(Plain(), args, train_dataset=classification_rows(96), callbacks=[Slow(), counter]).train()
    assert counter.saves == [3, 5, 8, 11, 12]


def flow_steps(args: TrainingArguments, state: TrainerState, steps: range) -> list[int]:
    """Steps after which the flow asks for an evaluation, without a Trainer."""
    callback, control, found = DefaultFlowCallback(), TrainerControl(), []
    callback.on_train_begin(args, state, control)
    for step in steps:
        state.global_step = step
        control.new_step()
        callback.on_step_end(args, state, control)
        if control.should_evaluate:
            state.log_history.append({"eval_loss": 1.0, "step": step})
            state.log_history.append({"eval_other_loss": 1.0, "step": step})
            callback.on_evaluate(args, state, control)
        if control.should_save:
            found.append(step)
            callback.on_save(args, state, control)
    return found


def test_evaluations_are_counted_from_the_history(make_args: MakeArgs) -> None:
    args = make_args(save_strategy="steps", evaluate_every="2 steps", checkpoint_every="3 evals")
    state = TrainerState(max_steps=100)
    assert flow_steps(args, state, range(1, 11)) == [6]
    # A new callback, as after a resume, with the history that the checkpoint kept: 5 evaluations so far.
    assert flow_steps(args, state, range(11, 25)) == [12, 18, 24]


def test_the_state_tells_one_number(make_args: MakeArgs) -> None:
    args = make_args(save_strategy="steps", checkpoint_every="10%", evaluate_every="1 hour", log_every="0.5 epochs")
    state = TrainerState(max_steps=60, num_train_epochs=3)
    DefaultFlowCallback().on_train_begin(args, state, TrainerControl())
    assert (state.save_steps, state.eval_steps, state.logging_steps) == (6, 60, 10)


def test_callbacks_may_change_the_interval_and_the_strategy(make_args: MakeArgs) -> None:
    class Changes(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 4:
                state.save_steps = 3
            if state.global_step == 8:
                args.save_strategy = "no"

    counter = Counter()
    args = make_args(max_steps=12, save_strategy="steps", save_steps=2)
    Trainer(Plain(), args, train_dataset=classification_rows(96), callbacks=[Changes(), counter]).train()
    assert counter.saves == [2, 4, 6]


def test_a_contradiction_made_later_is_refused_too(make_args: MakeArgs) -> None:
    args = make_args(max_steps=2, save_strategy="steps", checkpoint_every="1 hour")
    args.save_steps = 7
    with pytest.raises(ValueError, match="save_steps=7"):
        Trainer(Plain(), args, train_dataset=classification_rows(16)).train()


def test_early_stopping_understands_evaluate_every(make_args: MakeArgs) -> None:
    args = make_args(max_steps=4, evaluate_every="2 steps", load_best_model_at_end=True, save_strategy="steps")
    rows = classification_rows(32)
    Trainer(Plain(), args, train_dataset=rows, eval_dataset=rows[:8], callbacks=[EarlyStoppingCallback()]).train()
    args = make_args(max_steps=4, metric_for_best_model="loss", evaluate_every="never")
    with pytest.raises(ValueError, match="evaluate_every"):
        Trainer(Plain(), args, train_dataset=rows, eval_dataset=rows[:8], callbacks=[EarlyStoppingCallback()]).train()


def test_real_seconds(make_args: MakeArgs) -> None:
    class Slow(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            time.sleep(0.02)

    counter = Counter()
    args = make_args(max_steps=5, logging_strategy="steps", log_every="0.01 seconds")
    Trainer(Plain(), args, train_dataset=classification_rows(40), callbacks=[Slow(), counter]).train()
    assert counter.logs == [1, 2, 3, 4, 5]
