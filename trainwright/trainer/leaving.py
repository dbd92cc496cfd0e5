"""Trainer methods that leave a run before its end: because somebody asked, or because something went wrong."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import NamedTuple

from trainwright.callbacks.flow import DefaultFlowCallback, seconds
from trainwright.checkpoint.directory import checkpoint_path, list_checkpoints
from trainwright.config.fields import ours
from trainwright.core.children import kill_children
from trainwright.core.errors import Preempted, StopRequested
from trainwright.core.marker import mark_preempted
from trainwright.core.run import Run
from trainwright.engines.torch.memory import is_out_of_memory
from trainwright.engines.torch.nonfinite import NonFiniteWatch
from trainwright.trainer.fitting import FittingMethods

logger = logging.getLogger("trainwright")

#: How long a run that hangs may take for its last save.
_LAST_SAVE_SECONDS = 60.0


class Told(NamedTuple):
    """What processes tell each other before a step; what all heard is the sum."""

    owes_a_save: int = 0
    is_asked_to_stop: int = 0
    #: By the clock of the first process; the others say zero.
    milliseconds: int = 0


class LeavingMethods(FittingMethods):
    """Look after each step whether to go on; stop it, rescue it."""

    _nonfinite: NonFiniteWatch
    _run: Run
    _clock_began = _agreed_seconds = 0.0

    def _stop_early(self, run: Run, stop: StopRequested) -> None:
        """Save, and raise what the caller should see."""
        random = position = None
        if self._backend.world_size > 1:
            random, position = self._random_of_all(), self._feed.position_of_all(self.engine.gather)
        may_save = self._may_save_unasked("interrupt" if stop.by_keyboard else None)
        saved = self._save_where_it_stands(run, random, position) if may_save else None
        if saved is None and not may_save and self.args.should_save:
            logger.warning("save_strategy='no': nothing is saved before stopping.")
        if self._backend.world_size > 1 and self._backend.sum(int(saved is not None)):
            # All leave when it is on disk: a launcher that sees the first one go may not wait for the rest.
            saved = saved or checkpoint_path(self._checkpoint_home(), self.state.global_step)
        where = f"{saved.name} holds everything" if saved is not None else "nothing was saved"
        self._events.record(
            "stopped",
            f"Stopped by {stop.reason} after step {self.state.global_step}; {where}.",
            step=self.state.global_step,
            checkpoint=None if saved is None else saved.name,
        )
        if self._is_lost(may_save and saved is None):
            name = checkpoint_path(self._checkpoint_home(), self.state.global_step).name
            self._events.unsaved[name] = self._saver.failure or "another process could not write its part"
            raise self._not_saved(f"was stopped by {stop.reason}")
        if stop.by_keyboard:
            raise KeyboardInterrupt
        code = ours(self.args, "preempted_exit_code")
        if self.args.should_save:
            name = None if saved is None else saved.name
            mark_preempted(
                self._run_directory(), reason=stop.reason, step=self.state.global_step, checkpoint=name, code=code
            )
        raise Preempted(stop.reason, code, None if saved is None else str(saved))

    def _is_lost(self, own: bool) -> bool:
        """Return True if any process wanted to save and could not."""
        return own if self._backend.world_size == 1 else bool(self._backend.sum(int(own)))

    def _pass_the_deadline(self, run: Run) -> None:
        """From another thread: the step that is under way when a signal comes does not end."""
        if self.state.global_step > self._first_step or self._stops is None or self._stops.by_keyboard:
            self._save_last_boundary_aside(run, "The step takes too long")
            return
        # The first step: compiling, or waiting for data. Nothing was done yet, so there is nothing to wait for.
        code = ours(self.args, "preempted_exit_code")
        step, reason = self.state.global_step, self._stops.reason
        self._events.record(
            "stopped",
            f"Stopped by {reason} before the first step was done: nothing was done yet that could be lost.",
            step=step,
        )
        if self.args.should_save:
            mark_preempted(self._run_directory(), reason=reason, step=step, checkpoint=None, code=code)
        # The main thread does not answer.
        kill_children()
        os._exit(code)

    def _leave_hanging(self) -> None:
        """From the watchdog's thread, before it ends the process: save the last boundary if that is possible."""
        if self._backend.world_size == 1 and not self.strategy.gathers_to_save:
            saving = threading.Thread(target=self._save_what_hangs, name="trainwright-last", daemon=True)
            saving.start()
            # A disk may be what it hangs on.
            saving.join(_LAST_SAVE_SECONDS)
        kill_children()

    def _save_what_hangs(self) -> None:
        # It may be about this very moment.
        self._saver.wait()
        is_new = self.state.global_step > self._first_step
        if is_new and not (self._saved_moment == self._moment_key() and self._saver.failed_step is None):
            self._save_last_boundary_aside(self._run, "The run hangs and is ended")

    def _rescue(self, run: Run, error: BaseException) -> None:
        """Save the last boundary before an error ends the run; whatever fails here must not hide the error."""
        if self._backend.world_size > 1:
            self._say_where_it_goes_on(error)
            return
        if not self._may_save_unasked(_kind_of(error)) or self.state.global_step == self._first_step:
            return
        try:
            saved = self._save_where_it_stands(run)
        except Exception as second:
            self._events.record("not_saved", f"The state could not be saved after the error: {second}.")
            return
        if saved is not None:
            self._events.record(
                "rescued",
                f"{type(error).__name__} ended the run; step {self.state.global_step} is saved in {saved.name}.",
                step=self.state.global_step,
                error=type(error).__name__,
            )

    def _say_where_it_goes_on(self, error: BaseException) -> None:
        """With several processes: a state without the random numbers of the others would not go on exactly."""
        if not self.args.should_save:
            return
        self._saver.wait()
        found = list_checkpoints(self._run_directory())
        place = found[-1].name if found else "the start" if self._handing_over is None else "what was handed over"
        self._events.record(
            "not_saved",
            f"{type(error).__name__} ended this process among {self._backend.world_size} at step "
            f"{self.state.global_step}; nothing is saved after it, and the run will go on from {place}.",
            step=self.state.global_step,
            error=type(error).__name__,
        )

    def _attend(self) -> None:
        if not self.engine.is_alone:
            self._attend_together()
            return
        if self._saver.owes_a_save:
            self._saver.owes_a_save = False
            self.control.should_save = True
        self._nonfinite.look(self.state.global_step, self.engine.was_bad, self._feed)
        self._leave_if_asked()

    def _flags(self) -> list[int]:
        """What the other processes have to know of this one."""
        stops = int(self._stops is not None and self._stops.asked)
        now = round(1000 * (time.monotonic() - self._clock_began)) if self._backend.rank == 0 else 0
        return list(Told(int(self._saver.owes_a_save), stops, now))

    def _agree_on_the_time(self) -> None:
        """Let what is due by the clock be due by that of the first process, as all heard it before the step."""
        self._clock_began, self._agreed_seconds = time.monotonic(), 0.0
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, DefaultFlowCallback):
                callback.clock = seconds if self.engine.is_alone else self._agreed_time

    def _agreed_time(self) -> float:
        if self.engine.heard:
            self._agreed_seconds = Told(*self.engine.heard).milliseconds / 1000
        return self._agreed_seconds

    def _attend_together(self) -> None:
        """The same where several processes must do alike: one that saved or left alone would wait for the others.

        What they say to each other goes with the counts of a step's targets, so it is heard a step later.
        """
        assert self._stops is not None
        if self._deaths.error is not None:
            self._deaths.raise_it()
        self._agreed_time()
        heard = Told(*self.engine.heard)
        self.engine.heard = []
        if heard.owes_a_save:
            self._saver.owes_a_save = False
            self.control.should_save = True
        self._nonfinite.look(self.state.global_step, self.engine.was_bad, self._feed)
        if heard.is_asked_to_stop:
            self._stops.raise_if_asked()
            raise StopRequested("another process")


def _kind_of(error: BaseException) -> str:
    """What ``rescue_on`` calls it."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupt"
    return "out_of_memory" if isinstance(error, Exception) and is_out_of_memory(error) else "error"
