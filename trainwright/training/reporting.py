"""``report.html`` and ``report.md`` at the end of every training, also of one that failed or was stopped.

Made when the checkpoint and the word that it is over are on disk, in the process that wrote them. A process that was
asked to stop has a few seconds at most: it leaves the report to another one, which outlives it. Whatever goes wrong
here changes nothing about how the training ended.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trainwright.core.errors import Preempted, RunTakenOver
from trainwright.report.page import HTML, write_report
from trainwright.report.stored_run import is_run
from trainwright.training.evaluation_details import add_inputs
from trainwright.training.one_writer import may_write
from trainwright.training.run import TrainingRun
from trainwright.training.save_model import run_folder

logger = logging.getLogger("trainwright")

#: Of longer logs a process of its own makes the report: it takes memory that this one may not have.
_LARGEST_LOGS = 64 * 2**20


@contextmanager
def reported(run: TrainingRun) -> Iterator[None]:
    """The training within it has a report, however it ends."""
    try:
        yield
    except BaseException as error:
        _report(run, error)
        raise
    _report(run, None)


def _report(run: TrainingRun, error: BaseException | None) -> None:
    setup = run.setup
    folder = run_folder(setup)
    # Of a search's many trials `trainwright report` makes those that one wants to see.
    wants = setup.args.write_report and setup.args.should_save and setup.search is None
    wants = wants and run.stops is not None and not run.is_over
    if not wants or isinstance(error, RunTakenOver) or not folder.is_dir() or not may_write(run):
        return
    if error is not None and not is_run(folder):
        # Refused before anything was noted: the error itself is all there is to say.
        return
    try:
        if isinstance(error, (Preempted, KeyboardInterrupt)) or _logs_of(folder) > _LARGEST_LOGS:
            leave_to_another_process(folder)
            return
        add_inputs(run)
        write_report(folder, is_over=True)
        run.report = str(folder / HTML)
    except (KeyboardInterrupt, SystemExit) as stop:
        # The training has ended as it has; whoever is in a hurry does not wait for its report.
        with suppress(OSError):
            leave_to_another_process(folder)
        if not isinstance(stop, KeyboardInterrupt):
            raise
        logger.warning("The report is left to a process in the background; the training had ended before.")
    except Exception as problem:
        run.events.record(
            "no_report",
            f"The report could not be written ({type(problem).__name__}: {problem}): trainwright report {folder} tries "
            "again.",
        )


def _logs_of(folder: Path) -> int:
    size = 0
    for name in ("metrics.jsonl", "performance.jsonl", "events.jsonl"):
        with suppress(OSError):
            size += (folder / name).stat().st_size
    return size


def leave_to_another_process(folder: Path) -> None:
    """Start ``trainwright report`` on its own: it goes on when this process has ended, and a signal to us misses it."""
    # Nothing of the current folder is imported, and the same trainwright as here; where packages are installed it is
    # found anyway, and they are not to come before Python's own.
    home = Path(__file__).resolve().parents[2]
    ours = [] if home.name in ("site-packages", "dist-packages") else [str(home)]
    known = [str(Path(one).resolve()) for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "trainwright", "report", str(folder.resolve()), "--in-background"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd=os.sep,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*ours, *known])},
    )
    # Nobody waits for it: Python would warn that it is still there.
    process.returncode = 0
