"""Save a run that something interrupted: an error, a signal, a step that hangs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainwright.checkpoint.directory import checkpoint_path
from trainwright.core.run import Phase
from trainwright.engines.torch.randomness import RandomState
from trainwright.training.checkpoint_texts import Snapshot
from trainwright.training.optimizers import optimizer_parameter_names
from trainwright.training.random_state import random_now
from trainwright.training.run import TrainingRun
from trainwright.training.save import (
    captured_job,
    checkpoint_home,
    claim_run_directory,
    may_save_unasked,
    snapshot_key,
    write_snapshot,
)
from trainwright.training.setup import Setup


def save_where_it_stands(
    run: TrainingRun, random: RandomState | None = None, position: dict[str, Any] | None = None
) -> Path | None:
    """Save the last boundary of an interrupted run: the unfinished step, if any, is undone first.

    ``random`` and ``position`` are those of all processes, where they were interrupted together.
    """
    setup = run.setup
    if run.phase is Phase.UPDATE:
        run.events.record(
            "not_saved", "The update of the weights was interrupted; there is no state worth saving.", step=None
        )
        return None
    # What is under way is about this moment or an earlier one.
    run.saver.wait()
    target = checkpoint_path(checkpoint_home(setup), setup.state.global_step)
    # What a checkpointer was given has a name here but no path.
    shown = target if setup.checkpointer is None else Path(target.name)
    # A save at its usual time does not know that the run is about to be ended by a callback.
    ends = setup.control.should_training_stop and setup.state.global_step < setup.state.max_steps
    is_there = run.saved_snapshot == snapshot_key(run) and run.saver.last_saved == target and not ends
    if setup.engine.weights.layout.gathered_to_save:
        # The first process writes, so it knows; the others must come if it wants to.
        is_there = setup.backend.gather(is_there)[0]
    if is_there:
        return shown
    snapshot = last_boundary(run)
    if run.phase is Phase.STEP:
        setup.engine.boundary.roll_back()
        setup.engine.weights.recover()
        setup.engine.clear_gradients()
    setup.engine.weights.settle()
    snapshot = dataclasses.replace(snapshot, in_training=rested_weights(setup), was_ending=ends)
    if random is not None:
        snapshot = dataclasses.replace(snapshot, random=random)
    if position is not None and run.phase is not Phase.STEP:
        snapshot = dataclasses.replace(snapshot, position=position)
    write_snapshot(run, snapshot, background=False)
    return shown if run.saver.last_saved == target else None


def rested_weights(setup: Setup) -> dict[str, Tensor]:
    """Let the weights rest; returns those that this changed, as they were.

    A schedule-free optimizer works its training weights out from its average, which is what is saved, but not to
    the last bit; a run that nobody interrupts does not come by here.
    """
    if not callable(getattr(setup.optimizer, "eval", None)):
        setup.engine.rest_weights()
        return {}
    parameters = [p for group in setup.optimizer.param_groups for p in group["params"]]
    before = [p.detach().clone() for p in parameters]
    setup.engine.rest_weights()
    named = zip(optimizer_parameter_names(setup), before, parameters, strict=True)
    return {name: old for name, old, now in named if not torch.equal(old, now)}


def last_boundary(run: TrainingRun) -> Snapshot:
    setup = run.setup
    boundary = setup.engine.boundary
    if run.phase is Phase.STEP:
        before = run.counts_before
        return Snapshot(
            boundary.random_state(),
            run.feed.position(before_last_group=True),
            boundary.buffers(),
            before[1:] if before is not None and before[0] == setup.state.global_step else None,
        )
    if run.resumed_random is not None:
        return Snapshot(run.resumed_random, run.feed.position())
    was_drawn_from = run.phase in (Phase.EVALUATION, Phase.FETCH)
    return Snapshot(boundary.random_state() if was_drawn_from else random_now(setup), run.feed.position())


def save_last_boundary_aside(run: TrainingRun, why: str) -> None:
    """From another thread, while a step is under way that will not end in time."""
    setup = run.setup
    with run.saving:
        with setup.engine.update_lock:
            may_copy = setup.engine.may_copy_aside and run.phase is not Phase.UPDATE
            if not may_copy or not may_save_unasked(setup) or run.saver.busy:
                return
            step = setup.state.global_step
            claim_run_directory(run)
            job = captured_job(run, checkpoint_path(checkpoint_home(setup), step), last_boundary(run))
            if job.copy is not None:
                job.copy()
                job.copy = None
        run.saver.save(job, background=False)
    run.events.record("deadline", f"{why}: step {step} was saved as it was before.", step=step)
