"""A second pair of eyes: when a run falls silent, write down where every thread stands."""

from __future__ import annotations

import faulthandler
import os
import statistics
import sys
import sysconfig
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from trainwright.callbacks.heartbeats import Heartbeats, Verdict
from trainwright.config.arguments import TrainingArguments
from trainwright.config.run_directory import run_directory
from trainwright.core.callback import TrainerCallback
from trainwright.core.events import RunEvents
from trainwright.core.state import TrainerControl, TrainerState

EXIT_CODE = 70
"""What a process ends with when it was found stuck (EX_SOFTWARE)."""

_TIMES_MEDIAN = 10
_PERIODS_KEPT = 64
_PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep
_STANDARD_LIBRARY = os.path.realpath(sysconfig.get_path("stdlib")) + os.sep

#: Where our own code stands -> what that means.
_PHASES = {
    os.path.join("loop", "evaluate"): "evaluating",
    os.path.join("trainer", "evaluation"): "evaluating",
    os.path.join("trainer", "saving"): "saving",
    os.path.join("checkpoint", "saver"): "saving",
    os.path.join("loop", "step"): "in a training step",
    os.path.join("data", "feed"): "waiting for data",
}


class WatchdogCallback(TrainerCallback):
    """Writes all stacks to ``stacks-<n>.txt`` when no event came for ``seconds``, or ten median steps if that is more.

    One report for each silence. ``exit_process`` also ends the process, so that whatever launched it starts it again;
    ``before_exit`` is called first. Code that blocks while it holds Python's global lock cannot be seen from inside the
    process.

    With several processes each has one. Their watching threads leave signs of life in ``<run>/ranks``, and when no step
    ends, the first process that is alive names those that are frozen, gone, or busy with something else while the
    others wait for them.
    """

    _is_internal = True

    _leaves_model_alone = True

    listens_last = True

    def __init__(
        self,
        events: RunEvents,
        seconds: float = 120.0,
        exit_process: bool = False,
        *,
        rank: int = 0,
        world_size: int = 1,
        before_exit: Callable[[], None] | None = None,
    ) -> None:
        if seconds <= 0:
            raise ValueError(f"seconds={seconds} must be positive; leave the watchdog out to switch it off.")
        self.events = events
        self.seconds = seconds
        self.exit_process = exit_process
        self._before_exit = before_exit
        self.rank, self.world_size = rank, world_size
        #: With several processes: what they say of themselves, and how often.
        self._signs: Heartbeats | None = None
        self._sign_seconds = min(max(seconds / 8, 0.05), 5.0 + world_size / 64)
        self._sign_given = 0.0
        self._folder = Path(".")
        self._state = TrainerState()
        self._watched_thread = 0
        self._stop: threading.Event | None = None
        self._watcher: threading.Thread | None = None
        self._forget_times()

    # ---- signs of life. Steps are not among these events: the watching thread sees the step count change by itself,
    # ---- so that watching costs a step nothing.

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._end_watch()
        self._folder, self._state = run_directory(args), state
        self._watched_thread = threading.get_ident()
        self._forget_times()
        if self.world_size > 1:
            self._signs = Heartbeats(self._folder, self.rank, self.world_size)
            self._give_sign(0.0)
        self._stop = threading.Event()
        self._watcher = threading.Thread(
            target=self._watch, args=(self._stop,), name="trainwright-watchdog", daemon=True
        )
        self._watcher.start()

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        self._end_watch()
        if self._signs is not None:
            self._signs.withdraw()
            self._signs = None

    def on_train_failed(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self._end_watch()

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        # A run that went back to a checkpoint has another state.
        self._state, self._beat = state, time.monotonic()

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        self._beat = time.monotonic()

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self._beat = time.monotonic()

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        self._beat = time.monotonic()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        self._beat = time.monotonic()

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        self._beat = time.monotonic()

    # ---- the watching thread

    def _forget_times(self) -> None:
        self._beat = time.monotonic()
        self._periods: deque[float] = deque(maxlen=_PERIODS_KEPT)

    def _end_watch(self) -> None:
        if self._stop is not None:
            self._stop.set()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join(timeout=5)
        self._stop = self._watcher = None

    def limit(self) -> float:
        """The longest silence that is still taken for work, in seconds."""
        known = list(self._periods)
        return max(self.seconds, _TIMES_MEDIAN * statistics.median(known)) if known else self.seconds

    def _watch(self, stop: threading.Event) -> None:
        reported = asleep_until = 0.0
        step, step_seen = self._state.global_step, time.monotonic()
        checked = time.monotonic()
        pause = min(max(self.seconds / 20, 0.005), 1.0)
        while not stop.wait(pause):
            now, current = time.monotonic(), self._state.global_step
            if current != step:
                # From one step to the next, waiting for data included; the median forgets evaluations in between.
                self._periods.append((now - step_seen) / max(current - step, 1))
                step, step_seen, self._beat = current, now, now
            beat = self._beat
            if now - checked > pause + self.seconds / 2:
                # This thread was held up as well: the whole process was suspended, which is nobody's fault.
                asleep_until = now
            checked = now
            silence = now - max(beat, asleep_until)
            if self._signs is not None and now - self._sign_given >= self._sign_seconds:
                self._give_sign(now - beat)
            if beat != reported and silence > self.limit():
                reported = beat
                if self._signs is not None:
                    self._report_together(self._signs, silence, stop)
                else:
                    self._report(silence)
                # It may have taken a while.
                checked = time.monotonic()

    # ---- several processes

    def _give_sign(self, silence: float) -> None:
        assert self._signs is not None
        self._sign_given = time.monotonic()
        frame = sys._current_frames().get(self._watched_thread)
        self._signs.give(
            step=self._state.global_step,
            phase=phase_of(frame),
            place=waiting_place(frame),
            silent=silence,
            frame=frame,
        )

    def _report_together(self, signs: Heartbeats, silence: float, stop: threading.Event) -> None:
        """Look twice, some signs apart; the first process that lives says what was seen."""
        before = signs.read()
        for _ in range(4):
            if stop.wait(self._sign_seconds):
                return
            self._give_sign(silence)
        verdict = signs.compare(before, signs.read())
        if self.rank == min(verdict.alive):
            self._name(verdict, silence)
        if self.exit_process:
            if self.rank != min(verdict.alive):
                # The launcher ends the rest as soon as one is gone: whoever reports should have done it.
                stop.wait(2 * self._sign_seconds)
            self._exit()

    def _name(self, verdict: Verdict, silence: float) -> None:
        frame = sys._current_frames().get(self._watched_thread)
        blamed = [*verdict.frozen, *verdict.behind]
        message = verdict.message() or f"every process is {phase_of(frame)}, this one in {waiting_place(frame)}"
        path = self._write_stacks()
        # The first process usually writes down events, and may be the one that is frozen.
        events = self.events if self.events.folder is not None else RunEvents(self._folder)
        events.record(
            "stuck",
            f"No step has ended for {silence:.3g} s: {message}.",
            step=self._state.global_step,
            phase=blamed[0].phase if blamed else phase_of(frame),
            place=blamed[0].place if blamed else waiting_place(frame),
            seconds=round(silence, 3),
            file=None if path is None else path.name,
            reported_by=self.rank,
            ranks=[sign.rank for sign in blamed] + verdict.missing,
            processes=[asdict(sign) for sign in blamed],
        )

    def _report(self, silence: float) -> None:
        frame = sys._current_frames().get(self._watched_thread)
        phase, place = phase_of(frame), waiting_place(frame)
        path = self._write_stacks()
        stacks = "the stacks could not be written" if path is None else f"all stacks are in {path}"
        self.events.record(
            "stuck",
            f"No sign of life for {silence:.3g} s while {phase}, in {place}; {stacks}.",
            step=self._state.global_step,
            phase=phase,
            place=place,
            seconds=round(silence, 3),
            file=None if path is None else path.name,
        )
        if self.exit_process:
            self._exit()

    def _exit(self) -> None:
        """End the process: the thread that hangs cannot be ended any other way."""
        try:
            if self._before_exit is not None:
                self._before_exit()
        finally:
            os._exit(EXIT_CODE)

    def _write_stacks(self) -> Path | None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            number = 1
            while (path := self._folder / f"stacks-{number}.txt").exists():
                number += 1
            with path.open("x", encoding="utf-8") as file:
                faulthandler.dump_traceback(file=file, all_threads=True)
        except OSError:
            # A full or vanished disk may be what the run hangs on; the event is recorded all the same.
            return None
        return path


def phase_of(frame: FrameType | None) -> str:
    """What a training thread is doing, from the innermost of our own files on its stack."""
    while frame is not None:
        file = os.path.realpath(frame.f_code.co_filename)
        if file.startswith(_PACKAGE):
            for part, phase in _PHASES.items():
                if file[len(_PACKAGE) :].startswith(part):
                    return phase
        frame = frame.f_back
    return "between steps"


def waiting_place(frame: FrameType | None) -> str:
    """Where a thread stands, in words: the user's innermost function that the library called, or whatever waits."""
    if frame is None:
        return "a thread that has ended"
    innermost = frame
    users: FrameType | None = None
    called_by_us = False
    while frame is not None:
        if os.path.realpath(frame.f_code.co_filename).startswith(_PACKAGE):
            called_by_us = True
            break
        if users is None and not _is_installed(frame.f_code.co_filename):
            users = frame
        frame = frame.f_back
    # A script's own `trainer.train()` lies outside of what the library called and says nothing.
    shown = users if users is not None and called_by_us else innermost
    return f"{shown.f_code.co_qualname} ({shown.f_code.co_filename}:{shown.f_lineno})"


def _is_installed(file: str) -> bool:
    """Whether code comes with Python or a package, or was made up at run time."""
    path = os.path.realpath(file)
    packages = {"site-packages", "dist-packages"} & set(Path(path).parts)
    return bool(packages) or path.startswith(_STANDARD_LIBRARY) or file.startswith("<")
