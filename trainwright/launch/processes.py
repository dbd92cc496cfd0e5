"""torchrun for trainings: ``python -m trainwright.launch.processes ...``, with torchrun's arguments.

Where it differs: on one machine it listens on 127.0.0.1 only; a signal is handed on to the processes and they take the
time they need to save, up to ``TRAINWRIGHT_STOP_SECONDS``; a run that was asked to stop is not started again; and the
exit code is that of the processes (75 for a run that was stopped and saved), where torchrun always ends with 1.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from contextlib import suppress
from types import FrameType

from trainwright.core.children import end_with_parent
from trainwright.launch.notes import VARIABLE, Notes, code_of
from trainwright.launch.torchrun import LAUNCHER

#: Seconds that the others have, once one process has died, before they are killed. They have nothing to save.
_AFTER_A_DEATH = "10"
#: Seconds that processes have once they were asked to stop: some may wait for each other for ever.
STOP_SECONDS, _USUAL = "TRAINWRIGHT_STOP_SECONDS", 1800.0
#: From the third Ctrl-C on, as in one process, nobody waits for what is being saved.
_IMPATIENT, _THEN = 3, 10.0


def main(words: list[str]) -> int:
    """Run torchrun with ``words``; the code of the first process that failed, 128 + n where signal n ended it."""
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", _AFTER_A_DEATH)
    # A new store for each attempt: in a shared one new processes find the addresses of those that died.
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    if "--nproc-per-node=1" not in words:
        # As torchrun does, with a page of stars: each process would take all cores.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(prefix="trainwright-launch-") as folder:
        os.environ[VARIABLE] = folder
        notes = Notes(folder)
        # Before torch is imported, which takes seconds in which somebody may ask.
        _hand_signals_on(notes)
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.run import main as torchrun

        from trainwright.launch.loopback import register

        register()
        try:
            # torchrun would count its own time from a signal on, and then kill processes that are still saving.
            torchrun(["--signals-to-handle=SIGQUIT", *words])
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            code = 128 - failure.exitcode if failure.exitcode < 0 else failure.exitcode or 1
            ended = _code_after_failure(notes, code)
            if ended == code:
                how = signal.Signals(code - 128).name if failure.exitcode < 0 else f"exit code {code}"
                print(f"Process {rank} of the run failed first: {how}.", file=sys.stderr)
            return ended
        stopped = notes.stop_code()
        return 0 if stopped is None else stopped


def stop_seconds() -> float:
    """How long processes may take to stop, by the environment."""
    text = os.environ.get(STOP_SECONDS, "")
    try:
        seconds = float(text) if text else _USUAL
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= threading.TIMEOUT_MAX:
        raise ValueError(f"{STOP_SECONDS}={text} must be a number of seconds above 0.")
    return seconds


def _kill_later(notes: Notes, seconds: float) -> None:
    """Kill what still runs then: a process that waits for another, which waits for it, hears no signal."""

    def kill() -> None:
        print(
            f"The processes were asked to stop {seconds:g} s ago and have not: they are killed. "
            f"{STOP_SECONDS} says how long they may take.",
            file=sys.stderr,
            flush=True,
        )
        for process in notes.processes():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    timer = threading.Timer(seconds, kill)
    timer.daemon = True
    timer.start()


def _hand_signals_on(notes: Notes) -> None:
    patience, interrupts = stop_seconds(), 0

    def hand_on(number: int, frame: FrameType | None) -> None:
        nonlocal interrupts
        interrupts += number == signal.SIGINT
        if notes.asked() is None:
            _kill_later(notes, patience)
        elif interrupts == _IMPATIENT:
            _kill_later(notes, min(patience, _THEN))
        # A closed terminal asks for the same as a scheduler.
        sent = signal.SIGTERM if number == signal.SIGHUP else number
        notes.leave_asked(sent)
        for process in notes.processes():
            with suppress(ProcessLookupError):
                os.kill(process, sent)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
        # Under nohup a closed terminal is to be ignored.
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, hand_on)
    if os.environ.get(LAUNCHER) == str(os.getppid()):
        # As if somebody had asked: whoever started this was killed, and could not. Not so a shell, which may end.
        end_with_parent(signal.SIGTERM)


def _code_after_failure(notes: Notes, code: int) -> int:
    """What a failed launch ends with: a process may have been ended by the very signal that asked it to stop."""
    stopped, asked = notes.stop_code(), notes.asked()
    if stopped is not None:
        return stopped
    return code_of(asked) if asked is not None and code == 128 + asked else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
