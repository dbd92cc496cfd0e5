"""Leave a run before its end: because somebody asked, or because something went wrong."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NoReturn

from trainwright.callbacks.flow import DefaultFlowCallback, seconds
from trainwright.checkpoint.directory import checkpoint_path, list_checkpoints
from trainwright.core.children import kill_children
from trainwright.core.errors import Preempted
from trainwright.core.marker import mark_preempted
from trainwright.core.run import Rewind, Stopped
from trainwright.engines.torch.memory import is_out_of_memory
from trainwright.training.finish import not_saved
from trainwright.training.interrupted import save_last_boundary_aside, save_where_it_stands
from trainwright.training.one_writer import leave_if_taken_over, may_write
from trainwright.training.run import Told, TrainingRun
from trainwright.training.save import checkpoint_home, may_save_unasked, random_of_all, snapshot_key
from trainwright.training.save_model import run_folder
from trainwright.training.setup import Setup

logger = logging.getLogger("trainwright")


def leave_if_asked(run: TrainingRun) -> None:
    """Leave an evaluation, or a wait for data, if a signal or the time asks for it, or a worker died."""
    if run.setup.run is not run:
        return
    if run.deaths.error is not None:
        run.deaths.raise_it()
    if run.stops is not None and run.setup.backend.world_size == 1:
        if run.lock is not None and run.lock.taken_by is not None:
            leave_if_taken_over(run)
        run.stops.raise_if_asked()


@contextmanager
def finding_its_place(run: TrainingRun) -> Iterator[None]:
    """While a resumed run reads its data up to where it was: it may be left at any moment, since nothing is lost.

    In each process by itself: they do not meet before they all have found their place.
    """
    if run.stops is None or run.last_rewind is not None:
        # A run that went back knows which batches to leave out, and its checkpoint does not.
        yield
        return
    run.is_finding_its_place = True
    with run.stops.answered_at_once():
        yield
    run.is_finding_its_place = False


#: The exit code of a process that Ctrl-C ends.
CTRL_C = 130
#: Of an error's message, which may have a tensor in it.
_LONGEST_REASON = 2000
#: How long a run that hangs may take for its last save.
_LAST_SAVE_SECONDS = 60.0


def stop_early(run: TrainingRun, stop: Stopped) -> None:
    """Save, and raise what the caller should see."""
    setup = run.setup
    if run.is_finding_its_place:
        leave_as_it_was(run, stop)
    leave_if_taken_over(run)
    random = position = None
    if setup.backend.world_size > 1:
        random, position = random_of_all(run), run.feed.position_of_all(setup.engine.gather)
    may_save = may_save_unasked(setup, "interrupt" if stop.by_keyboard else None)
    with run.spent.on("save"):
        saved = save_where_it_stands(run, random, position) if may_save else None
    if saved is None and not may_save and setup.args.should_save:
        logger.warning("save_strategy='no': nothing is saved before stopping.")
    if setup.backend.world_size > 1 and setup.backend.sum(int(saved is not None)):
        # All leave when it is on disk: a launcher that sees the first one go may not wait for the rest.
        saved = saved or checkpoint_path(checkpoint_home(setup), setup.state.global_step)
    where = f"{saved.name} holds everything" if saved is not None else "nothing was saved"
    run.events.record(
        "stopped",
        f"Stopped by {stop.reason} after step {setup.state.global_step}; {where}.",
        step=setup.state.global_step,
        checkpoint=None if saved is None else saved.name,
    )
    if is_lost(setup, may_save and saved is None):
        name = checkpoint_path(checkpoint_home(setup), setup.state.global_step).name
        run.events.unsaved[name] = run.saver.failure or "another process could not write its part"
        raise not_saved(run, f"was stopped by {stop.reason}")
    raise marked(run, stop, saved)


def leave_as_it_was(run: TrainingRun, stop: Stopped) -> NoReturn:
    """Leave a resumed run that has not found its place in the data yet: its checkpoint still holds everything."""
    setup = run.setup
    found = checkpoint_path(checkpoint_home(setup), setup.state.global_step)
    saved = found if found.is_dir() or setup.checkpointer is not None else None
    if may_write(run):
        run.events.record(
            "stopped",
            f"Stopped by {stop.reason} while the data was read up to step {setup.state.global_step}: nothing was done "
            f"yet that could be lost{'.' if saved is None else f'; {saved.name} is as it was.'}",
            step=setup.state.global_step,
            checkpoint=None if saved is None else saved.name,
        )
    raise marked(run, stop, saved)


def marked(run: TrainingRun, stop: Stopped, saved: Path | None) -> BaseException:
    """Say in ``preempted.json`` that the run waits to be started again; returns what the caller should see."""
    setup = run.setup
    code = CTRL_C if stop.by_keyboard else setup.args.preempted_exit_code
    if setup.args.should_save and may_write(run):
        name = None if saved is None else saved.name
        mark_preempted(run_folder(setup), reason=stop.reason, step=setup.state.global_step, checkpoint=name, code=code)
    if stop.by_keyboard:
        return KeyboardInterrupt()
    return Preempted(stop.reason, code, None if saved is None else str(saved))


def mark_interrupted(run: TrainingRun) -> None:
    """The same for a ``KeyboardInterrupt`` that did not come by way of the loop, so that it could not stop cleanly."""
    if not run.setup.args.should_save:
        return
    found = list_checkpoints(run_folder(run.setup)) if run.setup.checkpointer is None else []
    marked(run, Stopped("SIGINT", by_keyboard=True), found[-1] if found else None)


def is_lost(setup: Setup, own: bool) -> bool:
    """Return True if any process wanted to save and could not."""
    return own if setup.backend.world_size == 1 else bool(setup.backend.sum(int(own)))


def pass_the_deadline(run: TrainingRun) -> None:
    """From another thread: the step that is under way when a signal comes does not end."""
    setup = run.setup
    if setup.state.global_step > run.first_step or run.stops is None or run.stops.by_keyboard:
        save_last_boundary_aside(run, "The step takes too long")
        return
    # The first step: compiling, or waiting for data. Nothing was done yet, so there is nothing to wait for.
    code = setup.args.preempted_exit_code
    step, reason = setup.state.global_step, run.stops.reason
    run.events.record(
        "stopped",
        f"Stopped by {reason} before the first step was done: nothing was done yet that could be lost.",
        step=step,
    )
    if setup.args.should_save and may_write(run):
        mark_preempted(run_folder(setup), reason=reason, step=step, checkpoint=None, code=code)
    # The main thread does not answer.
    kill_children()
    os._exit(code)


def leave_hanging(run: TrainingRun) -> None:
    """From the watchdog's thread, before it ends the process: save the last boundary if that is possible."""
    setup = run.setup
    if setup.backend.world_size == 1 and not setup.engine.weights.layout.gathered_to_save:
        saving = threading.Thread(target=partial(save_what_hangs, run), name="trainwright-last", daemon=True)
        saving.start()
        # A disk may be what it hangs on.
        saving.join(_LAST_SAVE_SECONDS)
    kill_children()


def save_what_hangs(run: TrainingRun) -> None:
    setup = run.setup
    # It may be about this very moment.
    run.saver.wait()
    is_new = setup.state.global_step > run.first_step
    if is_new and not (run.saved_snapshot == snapshot_key(run) and run.saver.failed_step is None):
        save_last_boundary_aside(run, "The run hangs and is ended")


def rescue(run: TrainingRun, error: BaseException) -> None:
    """Save the last boundary before an error ends the run; whatever fails here must not hide the error."""
    setup = run.setup
    if not may_write(run):
        return
    if setup.backend.world_size > 1:
        say_where_it_goes_on(run, error)
        return
    if not may_save_unasked(setup, _kind_of(error)) or setup.state.global_step == run.first_step:
        return
    try:
        with run.spent.on("save"):
            saved = save_where_it_stands(run)
    except Exception as second:
        run.events.record("not_saved", f"The state could not be saved after the error: {second}.")
        return
    if saved is not None:
        run.events.record(
            "rescued",
            f"{type(error).__name__} ended the run; step {setup.state.global_step} is saved in {saved.name}.",
            step=setup.state.global_step,
            error=type(error).__name__,
        )


def note_failure(run: TrainingRun, error: BaseException) -> None:
    """Say in the run directory that an error ended the run; nobody else does, once the process is gone."""
    setup, folder = run.setup, run_folder(run.setup)
    if not isinstance(error, Exception) or not setup.args.should_save or not may_write(run) or not folder.is_dir():
        return
    said = (str(error).strip().splitlines() or ["no message"])[0]
    said = said if len(said) <= _LONGEST_REASON else f"{said[:_LONGEST_REASON]}..."
    run.events.record(
        "failed",
        f"{type(error).__name__} at step {setup.state.global_step}: {said}",
        step=setup.state.global_step,
        # Whoever called train() sees the error itself.
        level=logging.DEBUG,
        error=type(error).__name__,
    )


def say_where_it_goes_on(run: TrainingRun, error: BaseException) -> None:
    """With several processes: a state without the random numbers of the others would not go on exactly."""
    setup = run.setup
    if not setup.args.should_save:
        return
    run.saver.wait()
    found = list_checkpoints(run_folder(setup))
    place = found[-1].name if found else "the start" if setup.checkpointer is None else "what was handed over"
    run.events.record(
        "not_saved",
        f"{type(error).__name__} ended this process among {setup.backend.world_size} at step "
        f"{setup.state.global_step}; nothing is saved after it, and the run will go on from {place}.",
        step=setup.state.global_step,
        error=type(error).__name__,
    )


def attend(run: TrainingRun) -> Rewind | Stopped | None:
    """After a step: whether the loop is to be left; saves that are owed are switched on."""
    setup = run.setup
    if not setup.engine.is_alone:
        return attend_together(run)
    if run.lock is not None and run.lock.taken_by is not None:
        return Stopped("another training")
    if run.saver.owes_a_save:
        run.saver.owes_a_save = False
        setup.control.should_save = True
    rewind = run.nonfinite.look(setup.state.global_step, setup.engine.was_bad, run.feed)
    if rewind is not None:
        return rewind
    if run.deaths.error is not None:
        run.deaths.raise_it()
    return None if run.stops is None else run.stops.request()


def flags_for_others(run: TrainingRun) -> list[int]:
    """What the other processes have to know of this one."""
    setup = run.setup
    is_taken = run.lock is not None and run.lock.taken_by is not None
    stops = int(is_taken or (run.stops is not None and run.stops.asked))
    now = round(1000 * (time.monotonic() - run.clock_began)) if setup.backend.rank == 0 else 0
    return list(Told(int(run.saver.owes_a_save), stops, now))


def hear_others(run: TrainingRun, sums: list[int]) -> None:
    """Keep what all processes said before a step, until the run attends to it."""
    run.heard = Told(*sums)
    run.agreed_seconds = run.heard.milliseconds / 1000


def agree_on_the_time(run: TrainingRun) -> None:
    """Let what is due by the clock be due by that of the first process, as all heard it before the step."""
    setup = run.setup
    # A run that goes back to a checkpoint keeps its clock: what was last done was done by that.
    run.clock_began, run.heard = run.clock_began or time.monotonic(), Told()
    for callback in setup.callbacks.everyone:
        if isinstance(callback, DefaultFlowCallback):
            callback.clock = seconds if setup.engine.is_alone else lambda: run.agreed_seconds


def attend_together(run: TrainingRun) -> Rewind | Stopped | None:
    """The same where several processes must do alike: one that saved or left alone would wait for the others.

    What they say to each other goes with the counts of a step's targets, so it is heard a step later.
    """
    setup = run.setup
    assert run.stops is not None
    if run.deaths.error is not None:
        run.deaths.raise_it()
    # Once: a save that it asks for comes by here again.
    heard, run.heard = run.heard, Told()
    if heard.owes_a_save:
        run.saver.owes_a_save = False
        setup.control.should_save = True
    rewind = run.nonfinite.look(setup.state.global_step, setup.engine.was_bad, run.feed)
    if rewind is not None or not heard.is_asked_to_stop:
        return rewind
    return run.stops.request() or Stopped("another process")


def _kind_of(error: BaseException) -> str:
    """What ``rescue_on`` calls it."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupt"
    return "out_of_memory" if isinstance(error, Exception) and is_out_of_memory(error) else "error"
