"""The state of a run, by what lies in its directory."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from trainwright.checkpoint.run_lock import writer_in
from trainwright.core.finished import read_finished
from trainwright.core.json_files import read_json
from trainwright.core.marker import FILE as PREEMPTED
from trainwright.report.stored_run import failure_in
from trainwright.report.words import shortened

#: All words that there are.
STATES = ("training", "finished", "stopped", "failed", "interrupted")


class RunState(NamedTuple):
    """One of ``STATES``, and the sentence that goes with it."""

    word: str
    text: str


def state_of(folder: Path, *, last_checkpoint: int | None = None, is_over: bool = False) -> RunState:
    """How the run in ``folder`` stands.

    Training: somebody writes there. Finished: it came to its end. Stopped: it was asked to stop, and waits. Failed: an
    error ended it. Interrupted: none of these, so it was killed, or its machine was. ``is_over``: whoever asks has
    trained there and knows that it has ended, though its process still keeps the folder.
    """
    end = read_finished(folder)
    if end is not None:
        return RunState("finished", end.words)
    last = "" if last_checkpoint is None else f"; its last checkpoint is of step {last_checkpoint}"
    if not is_over and (writer := writer_in(folder)) is not None:
        # Of another machine nobody here can say more than when it was last heard of.
        return RunState("training", f"in training, by {writer}{last}")
    try:
        stopped = read_json(folder / PREEMPTED, 2**20)
        return RunState("stopped", f"stopped by {stopped['reason']} at step {stopped['step']}{last}")
    except (OSError, ValueError, KeyError, TypeError):
        pass
    failure = failure_in(folder)
    if failure is not None:
        return RunState("failed", f"{shortened(str(failure.get('message', 'failed')))}{last}")
    return RunState("interrupted", f"not finished{last}")
