"""``alaunch``: start the group that trains and the group that evaluates, and end with them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from trainwright.compat.accmt.asynchronous.groups import (
    EVALUATION,
    FOLDER,
    IS_ASYNCHRONOUS,
    LAUNCHED_BY,
    TRAINING,
    TRAINS,
    asked_note,
    ended_note,
)
from trainwright.launch.torchrun import LAUNCHER

#: Seconds that the evaluating group has to end once somebody has asked for it and the training is over.
GRACE = 30.0
_PAUSE = 0.05
_HANG_UP = getattr(signal, "SIGHUP", None)
_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1") if hasattr(signal, name)]


def launch_groups(commands: Mapping[str, Sequence[str]], environments: Mapping[str, Mapping[str, str]]) -> int:
    """Run both groups, and return the exit code of the training; 128 + n where signal n ended it.

    ``commands`` and ``environments`` are by group. The evaluating group may end before: the training goes on.
    """
    with tempfile.TemporaryDirectory(prefix="accmt-async-") as name:
        folder = Path(name)
        groups = {
            TRAINING: _start(TRAINING, commands[TRAINING], environments[TRAINING], folder),
            EVALUATION: _start(EVALUATION, commands[EVALUATION], environments[EVALUATION], folder),
        }
        asked: list[int] = []

        def hand_on(number: int, frame: FrameType | None) -> None:
            asked.append(number)
            # Before the signal itself: it may end a wait of the training for the others.
            asked_note(folder).touch()
            for group, process in groups.items():
                if process.poll() is None:
                    # Who evaluates answers fewer of them; all of them ask to stop.
                    is_plain = group == EVALUATION and number != signal.SIGINT
                    process.send_signal(signal.SIGTERM if is_plain or number == _HANG_UP else number)

        before = {number: signal.signal(number, hand_on) for number in _SIGNALS if _is_heard(number)}
        try:
            codes = _wait(groups, folder, asked)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            for process in groups.values():
                _kill(process)
    return codes[TRAINING]


def _start(group: str, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> subprocess.Popen[bytes]:
    told = {
        **os.environ,
        **environment,
        LAUNCHER: str(os.getpid()),
        LAUNCHED_BY: str(os.getpid()),
        IS_ASYNCHRONOUS: "1",
        FOLDER: str(folder),
        TRAINS: str(int(group == TRAINING)),
    }
    # In a session of its own: Ctrl-C in a terminal would otherwise reach it twice.
    return subprocess.Popen(list(command), env=told, start_new_session=True)


def _wait(groups: dict[str, subprocess.Popen[bytes]], folder: Path, asked: list[int]) -> dict[str, int]:
    """Wait for both; each is told when the other has ended."""
    codes: dict[str, int] = {}
    training_ended = 0.0
    while len(codes) < len(groups):
        for group, process in groups.items():
            code = process.poll()
            if code is None or group in codes:
                continue
            codes[group] = 128 - code if code < 0 else code
            ended_note(folder, group).write_text(f"{codes[group]}\n", encoding="utf-8")
            if group == TRAINING:
                training_ended = time.monotonic()
            elif codes[group] and TRAINING not in codes and not asked:
                print(
                    f"accmt: the evaluating processes ended with code {codes[group]}; the training goes on, and "
                    "evaluates by itself.",
                    file=sys.stderr,
                    flush=True,
                )
        if asked and TRAINING in codes and time.monotonic() - training_ended > GRACE:
            _kill(groups[EVALUATION])
        time.sleep(_PAUSE)
    return codes


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a group for good; what it has started itself too."""
    if process.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _is_heard(number: int) -> bool:
    # Under nohup a closed terminal is to be ignored.
    return signal.getsignal(number) is not signal.SIG_IGN
