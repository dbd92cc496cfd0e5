"""Write checkpoints, and keep the run directory in order."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainwright.checkpoint.directory import checkpoint_path, rotate, step_of, sweep
from trainwright.checkpoint.durable import move_entries
from trainwright.checkpoint.identity import Owner, RunIdentity
from trainwright.checkpoint.ownership import claim, keep_claim
from trainwright.checkpoint.run_lock import RunLock
from trainwright.checkpoint.saver import SaveJob, Saver
from trainwright.checkpoint.shared_files import NothingToWrite
from trainwright.checkpoint.weights import WEIGHTS
from trainwright.config.intervals import SAVE, cadence
from trainwright.core.callback import listens_to
from trainwright.core.events import RunEvents
from trainwright.core.run import Actions
from trainwright.engines.torch.randomness import RandomState, of_all_processes
from trainwright.training.capture import Capture
from trainwright.training.checkpoint_texts import Snapshot
from trainwright.training.hooks import is_ours, is_overridden, is_users_own
from trainwright.training.one_writer import may_write, take_run_directory
from trainwright.training.random_state import random_now, say_what_came_late
from trainwright.training.run import TrainingRun
from trainwright.training.save_model import run_folder, shared_writers
from trainwright.training.setup import Setup

logger = logging.getLogger("trainwright")


def open_saving(setup: Setup, actions: Actions) -> TrainingRun:
    """A run with its own events and its own writer; what a killed one left in the folder is cleared.

    The folder is this run's alone from here on, until ``run.lock`` is released.
    """
    events = RunEvents(run_folder(setup) if setup.args.should_save else None)
    lock = take_run_directory(setup, events)
    try:
        return _opened(setup, actions, events, lock)
    except BaseException:
        if lock is not None:
            lock.release()
        raise


def _opened(setup: Setup, actions: Actions, events: RunEvents, lock: RunLock | None) -> TrainingRun:
    deliver = None if setup.checkpointer is None else setup.checkpointer.deliver
    after: Any = (lambda written: rotate_checkpoints(run, written)) if deliver is None else lambda written: None
    saver = Saver(events, after, deliver, None if lock is None else lock.refuse_if_taken_over)
    run = TrainingRun(
        setup=setup,
        actions=actions,
        events=events,
        saver=saver,
        capture=Capture(),
        owner=Owner(RunIdentity.new()),
        lock=lock,
    )
    if setup.args.should_save and (swept := sweep(run_folder(setup))):
        # Before a checkpoint is looked for: a kill in the middle of a save may have left one under another name.
        events.record("swept", f"Cleared what a killed run left behind: {', '.join(swept)}.", level=logging.INFO)
    shared_writers(setup)
    return run


def claim_run_directory(run: TrainingRun, last_step: int | None = None) -> None:
    """Make the run directory that of this run; once for each training, by the process that writes.

    ``last_step`` where it was resumed from a checkpoint that the user named: later ones are of another course.
    """
    setup = run.setup
    if setup.checkpointer is not None or not setup.args.should_save or not may_write(run):
        return
    if run.has_claimed:
        keep_claim(run_folder(setup), run.owner)
    else:
        run.has_claimed = True
        claim(run_folder(setup), run.owner, run.events, last_step)


def save_checkpoint(run: TrainingRun) -> None:
    """Write ``checkpoint-<step>`` whole, then let older ones go; in the background where nobody waits for it."""
    setup = run.setup
    run.default_save_ran = True
    let_subclass_save(run)
    # Somebody may have called the model since.
    setup.engine.weights.settle()
    setup.engine.rest_weights()
    random, position = random_of_all(run), run.feed.position_of_all(setup.engine.gather)
    if not setup.args.should_save and setup.writers is None and not setup.engine.weights.layout.gathered_to_save:
        note_best_folder(setup)
        return
    snapshot = None if setup.args.save_only_model else Snapshot(random, position)
    aside = setup.args.save_in_background and setup.checkpointer is None and not save_is_awaited(setup)
    write_snapshot(run, snapshot, background=aside)
    run.saved_snapshot = snapshot_key(run)


def write_snapshot(run: TrainingRun, snapshot: Snapshot | None, *, background: bool) -> None:
    setup = run.setup
    target = checkpoint_path(checkpoint_home(setup), setup.state.global_step)
    note_best_folder(setup)
    with run.saving, setup.engine.weights.whole(setup.model, setup.optimizer, keep=setup.args.should_save):
        if not setup.args.should_save and setup.writers is None:
            return
        # The one in flight uses the same room in memory.
        run.saver.wait()
        claim_run_directory(run)
        job = with_files_of_subclass(run, captured_job(run, target, snapshot))
        # What only the model's own code can write must be written while the model is whole.
        background = background and not (setup.engine.weights.layout.gathered_to_save and WEIGHTS not in job.tensors)
        run.saver.save(job, background=background)


@contextmanager
def noting_new_folder(run: TrainingRun) -> Iterator[None]:
    """While a subclass may save: know whether it is the one who made the checkpoint's folder."""
    target = checkpoint_path(run_folder(run.setup), run.setup.state.global_step)
    run.new_folder = None if os.path.lexists(target) else target
    try:
        yield
    finally:
        run.new_folder = None


#: What transformers calls with the folder of a checkpoint; a subclass writes files of its own there.
_SAVERS = ("_save_optimizer_and_scheduler", "_save_scaler", "_save_rng_state")


def let_subclass_save(run: TrainingRun) -> None:
    """Call the methods by which a subclass writes beside the optimizer; its files become part of the checkpoint."""
    setup = run.setup
    own = [name for name in _SAVERS if is_overridden(setup.hooks(), name)]
    if own and run.new_folder is not None and not setup.args.save_only_model:
        if setup.args.should_save:
            run.new_folder.mkdir(parents=True, exist_ok=True)
        for name in own:
            getattr(setup.hooks(), name)(str(run.new_folder))


def say_own_save(run: TrainingRun) -> None:
    """Say once what a checkpoint lacks that a subclass has written by itself."""
    if not run.own_save_was_noted:
        run.own_save_was_noted = True
        logger.warning(
            "%s._save_checkpoint does not call super()._save_checkpoint(model, trial): what it writes is not written "
            "whole or not at all, is not verified, and training cannot be resumed from it. Write your own files first "
            "and then call super(): they become part of the checkpoint.",
            type(run.setup.hooks()).__name__,
        )


def with_files_of_subclass(run: TrainingRun, job: SaveJob) -> SaveJob:
    """Let ``job`` begin with what a subclass wrote into the checkpoint's folder before it called ``super()``."""
    if run.new_folder == job.target and job.target.is_dir() and run.setup.args.should_save:
        fill = job.fill

        def fill_with_both(staging: Path) -> None:
            if job.target.is_dir():
                # Not so at a second attempt, after a failed one.
                move_entries(job.target, staging)
            fill(staging)

        job.fill = fill_with_both
    return job


def captured_job(run: TrainingRun, target: Path, snapshot: Snapshot | None) -> SaveJob:
    """The checkpoint to write; where it cannot be made, one that says what went wrong."""
    setup = run.setup
    try:
        return run.capture.job(run, target, snapshot)
    except Exception as error:
        # Anything: model, optimizer and schedule are asked for their state, and their code is not ours.
        run.capture.forget()
        shared = None if setup.writers is None else NothingToWrite(setup.writers)
        return SaveJob(target, setup.state.global_step, lambda folder: None, shared=shared, failure=error)


def note_best_folder(setup: Setup) -> None:
    """Remember where the best model is, or is about to be."""
    if setup.state.best_global_step is not None and setup.checkpointer is None:
        best = checkpoint_path(run_folder(setup), setup.state.best_global_step)
        if best.is_dir() or setup.state.best_global_step == setup.state.global_step:
            setup.state.best_model_checkpoint = str(best)


def save_is_awaited(setup: Setup) -> bool:
    """Whether somebody looks at the finished folder right after: a callback, an override, an upload."""
    listeners = [callback for callback in setup.callbacks.everyone if listens_to(callback, "on_save")]
    waits = is_users_own(setup.hooks(), "_save_checkpoint") or not all(is_ours(callback) for callback in listeners)
    return waits or (setup.args.push_to_hub and setup.args.hub_strategy != "end")


def rotate_checkpoints(run: TrainingRun, written: Path) -> None:
    setup = run.setup
    gone = rotate(
        run_folder(setup),
        run.owner,
        setup.args.save_total_limit,
        written,
        setup.state.best_model_checkpoint,
        keep_every=setup.args.keep_every,
    )
    for path in gone:
        run.events.record(
            "deleted",
            f"Deleted {path.name}: {setup.args.save_total_limit} checkpoints are kept.",
            step=step_of(path),
            level=logging.DEBUG,
        )


def checkpoint_home(setup: Setup) -> Path:
    """Where checkpoint folders are made."""
    return run_folder(setup) if setup.checkpointer is None else setup.checkpointer.home()


def hand_over_the_end(run: TrainingRun) -> None:
    """After a training whose checkpoints go to a checkpointer: the finished model."""
    setup = run.setup
    try:
        setup.hooks().save_model()
    except Exception as error:
        # Anything: it is the user's code, and the training itself went well.
        run.events.unsaved["the finished model, by the checkpointer"] = f"{type(error).__name__}: {error}"


def snapshot_key(run: TrainingRun) -> tuple[Any, ...]:
    """Equal for two looks at the same moment of a run."""
    setup = run.setup
    position = run.feed.position()
    return (setup.state.global_step, position["epoch"], position["batches"], len(setup.state.log_history))


def may_save_unasked(setup: Setup, kind: str | None = None) -> bool:
    """Whether checkpoints are wanted at all or, where something ends the run, for that ``kind`` of end."""
    wanted = wants_checkpoints(setup) or kind in (setup.args.rescue_on or ())
    takes_part = setup.args.should_save or setup.writers is not None or setup.engine.weights.layout.gathered_to_save
    return wanted and takes_part and not setup.args.save_only_model


def wants_checkpoints(setup: Setup) -> bool:
    by_strategy = setup.args.save_strategy == "best" or setup.args.enable_jit_checkpoint
    return bool(cadence(setup.args, SAVE)) or by_strategy


def random_of_all(run: TrainingRun) -> RandomState:
    """Random states of all processes, which stand between the same two steps."""
    setup = run.setup
    say_what_came_late(run)
    own = random_now(setup) if run.resumed_random is None else run.resumed_random
    return of_all_processes(setup.backend.gather(own))


def save_has_failed(run: TrainingRun) -> bool:
    setup = run.setup
    has_failed = run.saver.failed_step is not None
    return setup.backend.gather(has_failed)[0] if setup.engine.weights.layout.gathered_to_save else has_failed
