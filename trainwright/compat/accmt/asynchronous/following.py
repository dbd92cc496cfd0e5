"""The group that evaluates: it takes the weights that the training hands over, one after the other."""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path

from trainwright.compat.accmt.asynchronous.groups import Group
from trainwright.compat.accmt.asynchronous.measuring import Measuring
from trainwright.compat.accmt.asynchronous.queue import EvaluationQueue, RunNotes
from trainwright.config.backends import rank_from_environment
from trainwright.core.children import end_with_parent
from trainwright.core.results import TrainOutput

logger = logging.getLogger("trainwright")

#: Seconds between two looks.
PAUSE = 0.05


class TrainingHasEnded(RuntimeError):
    """The training ended before its evaluations were all asked for."""


def wait_for_training(queue: EvaluationQueue, group: Group) -> RunNotes:
    """What the training says of itself, once it has begun."""
    if os.getppid() == group.launcher:
        # Nobody would end it: the training goes on without it then.
        end_with_parent(signal.SIGTERM)
    while True:
        is_over = group.other_has_ended()
        notes = queue.notes_of_launch(group.launch)
        if notes is not None and not _followed(group, notes).exists():
            return notes
        if is_over:
            raise TrainingHasEnded("The training ended before its first step: there is nothing to evaluate.")
        time.sleep(PAUSE)


def follow(tools: Measuring, queue: EvaluationQueue, group: Group, notes: RunNotes) -> TrainOutput:
    """Evaluate until the training is over; ``TrainingHasEnded`` where it failed, after what waits has been done."""
    native, count, last = tools.native, 0, -1
    # As a training would have told it: one process alone writes what is found.
    native.state.is_world_process_zero = native.is_world_process_zero()
    native.state.is_local_process_zero = native.is_local_process_zero()
    # A second fit() of the script waits for the next training.
    _followed(group, notes).touch()
    for listener in (tools.keeper, *tools.kept):
        # They hear of a training here that is elsewhere.
        listener.on_train_begin(native.args, native.state, native.control)
    tools.adopt(notes.carried)
    while True:
        # Both questions before the look: what was handed over before the end is seen by it.
        now = queue.notes()
        is_over, has_ended = now is None or now.id != notes.id, group.other_has_ended()
        step = next((number for number in queue.waiting() if number > last), None)
        if step is not None:
            entry, weights = queue.take(step)
            result = tools.measure(entry, weights)
            if native.state.is_world_process_zero:
                queue.done(result)
            count, last = count + 1, step
            tools.keeper.status.update(entry.status)
        elif is_over and not queue.has_failed(notes.id):
            break
        elif is_over or has_ended:
            raise TrainingHasEnded(
                f"The training has ended before its time; all {count} evaluations that it had asked for are done."
            )
        else:
            time.sleep(PAUSE)
    for one in tools.kept:
        one.on_train_end(native.args, native.state, native.control)
    logger.info("Evaluated %d times.", count)
    return TrainOutput(max(last, 0), 0.0, {})


def _followed(group: Group, notes: RunNotes) -> Path:
    return group.folder / f"followed-{notes.id}-{rank_from_environment().rank}"
