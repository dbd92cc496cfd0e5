"""The state of a run, by what lies in its directory."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from trainwright.checkpoint.run_lock import writer_in
from trainwright.core.finished import read_finished
from trainwright.core.json_files import read_json
from trainwright.core.marker import FILE as PREEMPTED
from trainwright.report.lines import Entry, last_lines, number
from trainwright.report.stored_run import EVENTS, METRICS, PERFORMANCE

#: All words that there are.
STATES = ("training", "finished", "stopped", "failed", "interrupted")


class RunState(NamedTuple):
    """One of ``STATES``, and the sentence that goes with it."""

    word: str
    text: str


def state_of(folder: Path, *, last_checkpoint: int | None = None) -> RunState:
    """Training: somebody writes there. Finished: it came to its end. Stopped: it was asked to stop, and waits. Failed: an
    error ended it. Interrupted: none of these, so it was killed, or its machine was."""
    end = read_finished(folder)
    if end is not None:
        return RunState("finished", end.words)
    last = "" if last_checkpoint is None else f"; its last checkpoint is of step {last_checkpoint}"
    if (writer := writer_in(folder)) is not None:
        # Of another machine nobody here can say more than when it was last heard of.
        return RunState("training", f"in training, by {writer}{last}")
    try:
        stopped = read_json(folder / PREEMPTED, 2**20)
        return RunState("stopped", f"stopped by {stopped['reason']} at step {stopped['step']}{last}")
    except (OSError, ValueError, KeyError, TypeError):
        pass
    failure = failure_in(last_lines(folder / EVENTS))
    if failure is not None and not _went_on_after(folder, failure):
        return RunState("failed", f"{failure.get('message', 'failed')}{last}")
    return RunState("interrupted", f"not finished{last}")


def failure_in(events: list[Entry]) -> Entry | None:
    """The newest event that says that an error ended the run."""
    return next((event for event in reversed(events) if event.get("kind") == "failed"), None)


def _went_on_after(folder: Path, failure: Entry) -> bool:
    then = number(failure.get("time")) or 0.0
    newest = [line for name in (METRICS, PERFORMANCE) for line in last_lines(folder / name)[-1:]]
    return any((number(line.get("time")) or 0.0) > then for line in newest)
