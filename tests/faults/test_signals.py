"""Signals at every kind of moment: saved at the next boundary, a telling exit code, and an exact continuation."""

from __future__ import annotations

import json
import multiprocessing
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.models import Plain, classification_rows
from trainwright import Trainer, TrainerCallback, TrainingArguments
from trainwright.core.errors import Preempted, StopRequested
from trainwright.core.stops import StopRequests

#: name -> exit code, checkpoints right after it (None: depends on how fast the machine is)
EXPECTED: dict[str, tuple[int, list[str] | None]] = {
    "term in a step": (75, ["checkpoint-5"]),
    "int in a step": (130, ["checkpoint-5"]),
    "usr1 in a step": (75, ["checkpoint-5"]),
    "hup in a step": (75, ["checkpoint-5"]),
    # It goes on to its end.
    "hup under nohup": (0, ["checkpoint-12"]),
    "twice": (75, ["checkpoint-5"]),
    # Step 8 is taken, its evaluation is broken off, and the resumed run does it again from the start.
    "in evaluation": (75, ["checkpoint-8"]),
    "in a fetch": (75, None),
    "group with workers": (75, ["checkpoint-5"]),
    "interrupt to group with workers": (130, ["checkpoint-5"]),
    "while waiting for workers": (75, None),
    "in a save": (75, None),
    "own exit code": (99, ["checkpoint-5"]),
    # The step never ended; step 4 was saved beside it, and the process was killed for good.
    "past the deadline": (-signal.SIGKILL, ["checkpoint-4"]),
    "time is up": (75, None),
    "no saving": (75, []),
    "no saving but just in time": (75, ["checkpoint-5"]),
    "not handled": (-signal.SIGTERM, []),
}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_signals_at_every_kind_of_moment(folder: Path) -> None:
    """One test for all, since they share a process that is started once and forks."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.signalled", str(folder / "runs")],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout.splitlines()[-1])
    straight = outcomes.pop("straight")
    assert outcomes.keys() == EXPECTED.keys()
    wrong = {name: outcome for name, outcome in outcomes.items() if not _is_as_expected(name, outcome, straight)}
    assert wrong == {}, done.stderr


def _is_as_expected(name: str, outcome: dict[str, Any], straight: dict[str, Any]) -> bool:
    code, saved = EXPECTED[name]
    right_place = outcome["saved"] == saved if saved is not None else bool(outcome["saved"])
    continued = outcome["second"] == 0 and {key: outcome.get(key) for key in straight} == straight
    return outcome["code"] == code and right_place and continued


class SignalAt(TrainerCallback):
    def __init__(self, step: int, number: int = signal.SIGTERM) -> None:
        self.step, self.number = step, number

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            signal.raise_signal(self.number)


def test_preempted_names_the_checkpoint_and_handlers_are_put_back(
    make_args: Callable[..., TrainingArguments], tmp_path: Path
) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
    args = make_args(max_steps=6, save_strategy="steps", save_steps=100)
    trainer = Trainer(Plain().float(), args, train_dataset=classification_rows(16), callbacks=[SignalAt(2)])
    with pytest.raises(Preempted) as stopped:
        trainer.train()
    assert stopped.value.code == 75
    assert stopped.value.checkpoint == str(tmp_path / "run" / "checkpoint-2")
    assert "SIGTERM" in str(stopped.value)
    assert {number: signal.getsignal(number) for number in before} == before


def test_outside_the_main_thread_it_says_so_once_and_trains(
    make_args: Callable[..., TrainingArguments], caplog: pytest.LogCaptureFixture
) -> None:
    args = make_args(max_steps=3)
    trainer = Trainer(Plain().float(), args, train_dataset=classification_rows(16))
    thread = threading.Thread(target=trainer.train)
    thread.start()
    thread.join()
    assert trainer.state.global_step == 3
    assert caplog.text.count("outside the main thread") == 1


def test_a_signal_that_comes_too_late_goes_to_whoever_handled_it_before(
    make_args: Callable[..., TrainingArguments],
) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    try:
        trainer = Trainer(
            Plain().float(),
            make_args(max_steps=3),
            train_dataset=classification_rows(16),
            callbacks=[AtEnd()],
        )
        trainer.train()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert trainer.state.global_step == 3
    assert heard == [signal.SIGUSR1]


class AtEnd(TrainerCallback):
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        signal.raise_signal(signal.SIGUSR1)


def test_a_third_interrupt_stops_at_once() -> None:
    with StopRequests() as stops:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(StopRequested, match="SIGINT"):
            stops.raise_if_asked()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_process_that_is_forked_from_a_training_can_be_terminated() -> None:
    """A pool of somebody's dataset ends its processes with SIGTERM, and waits for them."""
    with StopRequests() as stops:
        forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        forked.start()
        forked.terminate()
        forked.join(timeout=20)
        assert forked.exitcode == -signal.SIGTERM
        assert not stops.asked
