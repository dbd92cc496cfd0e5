"""What a person sees: header, bars, lines; and that showing it never costs a run."""

from __future__ import annotations

import io
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from rich.console import Console

from tests.models import Plain, classification_rows
from trainwright import (
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from trainwright.callbacks import wording
from trainwright.callbacks.terminal_bars import Row, TerminalBars, TerminalConsole
from trainwright.callbacks.wording import log_line
from trainwright.core.callback import listens_to

MakeArgs = Callable[..., TrainingArguments]


def terminal(width: int = 120) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None, legacy_windows=False)


def screen_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def trainer_with(make_args: MakeArgs, *callbacks: Any, **kwargs: Any) -> Trainer:
    """A quick training whose own display is replaced by ``callbacks``."""
    defaults = {"max_steps": 8, "logging_steps": 4, "eval_strategy": "steps", "eval_steps": 4}
    args = make_args(**{**defaults, **kwargs})
    rows = classification_rows(32)
    trainer = Trainer(Plain(), args, train_dataset=rows, eval_dataset=rows, callbacks=list(callbacks))
    trainer.remove_callback(PrinterCallback)
    return trainer


class Slow(TrainerCallback):
    """Makes steps long enough for the bars to be drawn, and can fail."""

    def __init__(self, seconds: float = 0.0, fail_at: int | None = None) -> None:
        self.seconds, self.fail_at = seconds, fail_at

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        time.sleep(self.seconds)
        if state.global_step == self.fail_at:
            raise RuntimeError("the user's own mistake")


# ---- plain lines


def test_without_a_terminal_there_are_lines_and_never_a_bar(
    make_args: MakeArgs, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer_with(make_args, ProgressCallback()).train()
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert err == ""
    assert "\x1b" not in out
    assert "━" not in out
    assert "\r" not in out
    assert lines[0].startswith("CPU, 1 thread | 83 parameters | 8 steps, 2 epochs | batch 8 | memory ")
    assert lines[1].startswith("step 4/8  epoch 1  loss ")
    assert "  lr " in lines[1]
    assert lines[1].endswith(" samples/s")
    assert lines[2].startswith("step 4/8  epoch 1  eval_loss ")
    assert lines[-1].startswith("trained 8 steps in ")
    assert "s, all of max_steps  train_loss " in lines[-1]
    assert len(lines) == 6


def test_a_run_that_never_logs_still_says_that_it_began_and_ended(
    make_args: MakeArgs, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer_with(make_args, ProgressCallback(), logging_strategy="no", eval_strategy="no").train()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("trained 8 steps in ")


def test_other_processes_are_silent(make_args: MakeArgs, capsys: pytest.CaptureFixture[str]) -> None:
    state = TrainerState(max_steps=4, is_world_process_zero=False, is_local_process_zero=False)
    progress, printer = ProgressCallback(), PrinterCallback()
    args, control = make_args(), TrainerControl()
    progress.on_train_begin(args, state, control)
    progress.on_log(args, state, control, logs={"loss": 1.0})
    printer.on_log(args, state, control, logs={"loss": 1.0})
    assert capsys.readouterr().out == ""


def test_an_early_stop_is_named(make_args: MakeArgs, capsys: pytest.CaptureFixture[str]) -> None:
    class StopAtFive(TrainerCallback):
        def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
            control.should_training_stop = state.global_step >= 5
            self.stop_reason = "five is enough"

    trainer_with(make_args, ProgressCallback(), StopAtFive()).train()
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("ended at step 5 of 8 after ")
    assert " s: five is enough  train_loss " in last


def test_an_error_is_the_last_line(make_args: MakeArgs, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError):
        trainer_with(make_args, ProgressCallback(), Slow(fail_at=6)).train()
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("ended at step 6 of 8 after ")
    assert last.endswith(": RuntimeError: the user's own mistake")


# ---- on a terminal


@pytest.mark.slow
def test_bars_show_step_loss_metric_pace_and_time(make_args: MakeArgs) -> None:
    console = terminal()
    trainer_with(make_args, ProgressCallback(console=console), Slow(0.1), max_steps=12).train()
    screen = screen_of(console)
    assert "train ━" in screen
    assert "4/12" in screen
    assert "samples/s  0:0" in screen, "before the first log the bar itself says how fast it goes"
    panel = screen[screen.rindex("train ━") :]
    assert "12/12  0:0" in panel
    assert "epoch ━" in panel
    assert "lr 4.17e-06  grad " in panel
    assert "samples/s  waits for data " in panel
    assert "eval  loss 1." in panel
    assert "step 8/12" in screen
    assert "trained 12 steps in" in screen
    assert screen.count("\x1b[?25l") <= screen.count("\x1b[?25h"), "the cursor must not stay hidden"


@pytest.mark.slow
def test_evaluation_has_a_bar_of_its_own_in_and_out_of_training(make_args: MakeArgs) -> None:
    console = terminal()
    trainer = trainer_with(make_args, ProgressCallback(console=console), per_device_eval_batch_size=1)
    original = trainer.prediction_step

    def slowly(*args: Any, **kwargs: Any) -> Any:
        time.sleep(0.02)
        return original(*args, **kwargs)

    trainer.prediction_step = slowly  # type: ignore[method-assign]
    trainer.evaluate()
    alone = screen_of(console)
    assert "eval  ━" in alone
    assert "/32" in alone
    assert "train" not in alone
    trainer.train()
    both = screen_of(console)[len(alone) :]
    assert "train ━" in both
    assert "eval  ━" in both
    assert TerminalBars.shown is None


def test_evaluation_data_without_length_gets_a_count(make_args: MakeArgs) -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            yield from classification_rows(32)

    console = terminal()
    progress = ProgressCallback(console=console)
    trainer = trainer_with(make_args, progress, per_device_eval_batch_size=4)
    assert "eval_loss" in trainer.evaluate(Stream())
    row = Row("eval", None, lambda: 7)
    assert row.text().startswith("7  ")


def test_narrow_terminals_keep_one_line_a_row() -> None:
    for width in (20, 40, 60, 80, 200):
        console = terminal(width)
        bars = TerminalBars(console, redirect=False)
        bars.training = Row("train", 200, lambda: 50, {"loss": "0.31", "accuracy": "0.97"})
        console.print(bars._render())
        lines = screen_of(console).rstrip("\n").split("\n")
        assert len(lines) == 1
        assert len(lines[0]) < width


def test_a_training_step_does_not_pay_for_the_display() -> None:
    assert not listens_to(ProgressCallback(), "on_step_end")
    assert not listens_to(ProgressCallback(), "on_step_begin")


# ---- when something goes wrong


def test_an_error_in_training_closes_the_bars_and_leaves_them_where_they_stood(
    make_args: MakeArgs, monkeypatch: pytest.MonkeyPatch
) -> None:
    console = terminal()
    monkeypatch.setattr(ProgressCallback, "_terminal", lambda self: console)
    before = sys.stdout, sys.stderr
    trainer = trainer_with(make_args, ProgressCallback(), Slow(0.02, fail_at=6))
    with pytest.raises(RuntimeError, match="own mistake"):
        trainer.train()
    deadline = time.perf_counter() + 5
    while TerminalBars.shown is not None and time.perf_counter() < deadline:
        time.sleep(0.05)
    assert TerminalBars.shown is None
    assert (sys.stdout, sys.stderr) == before
    assert "6/8" in screen_of(console)
    assert not any(thread.name == "trainwright-bars" and thread.is_alive() for thread in threading.enumerate())


def test_what_is_printed_after_an_error_stands_below_the_bar(
    make_args: MakeArgs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    console = terminal()
    monkeypatch.setattr(ProgressCallback, "_terminal", lambda self: console)
    trainer = trainer_with(make_args, ProgressCallback(), Slow(fail_at=6))
    with pytest.raises(RuntimeError):
        trainer.train()
    print("at once, before the drawing thread has looked")
    assert "at once" in capsys.readouterr().out
    assert "at once" not in screen_of(console)


def test_prints_in_training_appear_above_the_bar(
    make_args: MakeArgs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Talks(TrainerCallback):
        def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
            print(f"at step {state.global_step}")

    console = terminal()
    monkeypatch.setattr(ProgressCallback, "_terminal", lambda self: console)
    trainer_with(make_args, ProgressCallback(), Talks()).train()
    assert "at step 3\n" in screen_of(console).replace("\r", "")
    assert "at step" not in capsys.readouterr().out


@pytest.mark.parametrize("live", [True, False])
def test_a_display_that_fails_does_not_stop_training(
    make_args: MakeArgs, live: bool, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError("nobody reads")

    console = TerminalConsole(file=Broken(), force_terminal=live)
    trainer = trainer_with(make_args, ProgressCallback(console=console))
    assert trainer.train().global_step == 8
    assert sum("display failed" in record.message for record in caplog.records) == 1
    assert TerminalBars.shown is None


def test_a_training_inside_a_training_prints_plain_lines(
    make_args: MakeArgs, capsys: pytest.CaptureFixture[str]
) -> None:
    outer, inner = terminal(), terminal()

    class Nested(TrainerCallback):
        def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
            if state.global_step == 2:
                folder = f"{args.output_dir}-inner"
                trainer_with(make_args, ProgressCallback(console=inner), max_steps=4, output_dir=folder).train()

    assert trainer_with(make_args, ProgressCallback(console=outer), Nested()).train().global_step == 8
    assert "━" in screen_of(outer)
    assert "━" not in screen_of(inner)
    assert "trained 4 steps" in screen_of(inner)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_worker_writes_straight_through(monkeypatch: pytest.MonkeyPatch) -> None:
    bars = TerminalBars(terminal(), redirect=True)
    original = sys.stdout
    bars.start()
    try:
        child = os.fork()
        if child == 0:
            os._exit(0 if sys.stdout is original and bars.closed else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        bars.close()
    assert sys.stdout is original


# ---- words


def test_printer_prints_one_line_and_leaves_the_logs_alone(
    make_args: MakeArgs, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = {"loss": float("nan"), "total_flos": 12, "epoch": 0.5}
    PrinterCallback().on_log(make_args(), TrainerState(), TrainerControl(), logs=logs)
    assert list(logs) == ["loss", "total_flos", "epoch"]
    assert math.isnan(logs["loss"])
    assert capsys.readouterr().out == "{'loss': 'nan', 'epoch': '0.5'}\n"


def test_log_line() -> None:
    state = TrainerState(global_step=50, max_steps=200)
    logs = {"loss": 0.31, "learning_rate": 5e-05, "epoch": 0.5, "total_flos": 3.0}
    assert (
        wording.log_line(logs, state, pace="1234 samples/s")
        == "step 50/200  epoch 0.5  loss 0.31  lr 5e-05  1234 samples/s"
    )
    assert wording.log_line({"loss": float("nan")}, state) == "step 50/200  loss nan"
    assert "secret" not in wording.log_line({"note": "secret" * 50}, state)
    assert wording.log_line({"note": "x" * 101}, state, max_str_len=200).endswith("x" * 101)


@pytest.mark.parametrize(
    ("logs", "wanted", "shown"),
    [
        ({"eval_loss": 1.0, "eval_accuracy": 0.5}, None, ("accuracy", 0.5)),
        ({"eval_loss": 1.0, "eval_f1": 0.5, "eval_accuracy": 0.6}, "eval_f1", ("f1", 0.5)),
        ({"eval_loss": 1.0, "eval_runtime": 2.0}, None, ("eval_loss", 1.0)),
        ({"eval_loss": 1.0, "eval_accuracy": 0.5}, "loss", ("accuracy", 0.5)),
        ({"loss": 1.0}, None, None),
    ],
)
def test_deciding_metric(logs: dict[str, float], wanted: str | None, shown: Any) -> None:
    assert wording.deciding_metric(logs, wanted) == shown


def test_header_names_frozen_parameters_accumulation_and_the_step_resumed_from(make_args: MakeArgs) -> None:
    model = Plain()
    model.first.requires_grad_(False)
    args = make_args(gradient_accumulation_steps=4, per_device_train_batch_size=2)
    state = TrainerState(max_steps=10, global_step=5, num_train_epochs=5)
    header = wording.header_line(args, state, model, [0] * 8)
    assert "83 parameters (27 trainable)" in header
    assert "10 steps, 5 epochs, from step 5" in header
    assert "batch 8 (2 x 4)" in header


def test_no_name_of_a_number_moves_the_cursor() -> None:
    line = log_line({"loss\x1b]0;owned\x07": 1.0, "note": "two\nlines"}, TrainerState())
    assert line == "loss\\x1b]0;owned\\x07 1  note two\\nlines"
