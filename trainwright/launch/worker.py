"""One process of a launch: ``python -m trainwright.launch.worker script.py ...`` or ``... -m module ...``.

It runs the script as ``python script.py`` would. If the run is stopped because it was asked to, the launcher is told by
a note and the exit code is 0, since torchrun would start the group again after any other.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path

from trainwright.core.children import end_with_parent
from trainwright.core.errors import Preempted, lost_a_peer
from trainwright.core.stops import LeavesAtOnce
from trainwright.launch.notes import INTERRUPTED, Notes, code_of


def main(words: list[str]) -> None:
    """Run ``words``: a script or ``-m module``, and its arguments."""
    notes, rank = Notes.of_this_launch(), int(os.environ.get("RANK", "0"))
    if notes is None:
        run_python(words)
        return
    # In this order: whoever asks looks for processes after leaving the note.
    notes.leave_process(rank)
    # A launcher that was killed cannot tell its processes to stop.
    end_with_parent(signal.SIGTERM)
    asked, stopped = notes.asked(), notes.stop_code()
    if asked is not None or stopped is not None:
        # The group is being started again, but it was asked to stop in between.
        code = stopped if stopped is not None else code_of(asked or signal.SIGTERM)
        notes.leave_stopped(rank, code, "a request before it began")
        return
    try:
        LeavesAtOnce(_say_stopped).do(lambda: run_python(words))
    except Preempted as stop:
        if stop.reason == "SIGTERM" and stop.checkpoint is None and notes.asked() is None:
            # Nobody asked the launcher: it ends this process because another one died, and may start all of them again.
            sys.exit(1)
        # Whoever asks once more must not end a process that has nothing left to do.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        notes.leave_stopped(rank, int(stop.code or 0), stop.reason)
    except KeyboardInterrupt:
        notes.leave_stopped(rank, INTERRUPTED, "Ctrl-C")
    except SystemExit as end:
        if end.code != INTERRUPTED:
            raise
        notes.leave_stopped(rank, INTERRUPTED, "Ctrl-C")
    except Exception as error:
        if not lost_a_peer(error):
            raise
        # The traceback that matters is the other's.
        print(
            f"Process {rank} lost another one of the run and ends: {str(error).splitlines()[0][:200]}", file=sys.stderr
        )
        sys.exit(1)


def _say_stopped(reason: str) -> None:
    print(f"Stopped by {reason} before the training began.", file=sys.stderr)


def run_python(words: list[str]) -> None:
    """Run ``words`` in this process as python would: a script or ``-m module``, and its arguments."""
    if words[:1] == ["-m"]:
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = list(words)
    if not sys.flags.safe_path:
        sys.path.insert(0, str(Path(words[0]).resolve().parent))
    runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    if sys.argv[1] != "-m" and not sys.flags.safe_path:
        # The folder in which a module is looked for; for a script its own takes the place.
        del sys.path[0]
    main(sys.argv[1:])
