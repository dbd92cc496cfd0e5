"""Commands that start a script in several processes, and running one so that signals and the exit code pass through."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import FrameType

_FORWARDED = ("SIGTERM", "SIGINT", "SIGUSR1")


def torchrun_command(
    script: Sequence[str],
    *,
    processes: int,
    nodes: int = 1,
    node_rank: int | None = None,
    rendezvous: str | None = None,
) -> list[str]:
    """The command that runs ``script`` (a file and its arguments) in ``processes`` processes on this machine.

    With several ``nodes`` the same is called on each; ``rendezvous`` is ``host:port`` of the first.

    >>> torchrun_command(["train.py", "--lr", "1e-3"], processes=2)[1:]
    ['-m', 'trainwright.launch.processes', '--standalone', '--nproc-per-node=2', 'train.py', '--lr', '1e-3']
    """
    if not script:
        raise ValueError("There is no script to start.")
    if processes < 1 or nodes < 1:
        raise ValueError(f"processes={processes} and nodes={nodes} must be at least 1.")
    command = [sys.executable, "-m", "trainwright.launch.processes"]
    if nodes == 1:
        # A port of its own choosing, so that several runs on one machine do not meet.
        command += ["--standalone"]
    else:
        if rendezvous is None or node_rank is None:
            raise ValueError("Several nodes need rendezvous='host:port' of the first one and each its node_rank.")
        command += [f"--nnodes={nodes}", f"--node-rank={node_rank}", f"--rdzv-endpoint={rendezvous}"]
        command += ["--rdzv-backend=c10d"]
    return [*command, f"--nproc-per-node={processes}", *script]


def launch(command: Sequence[str], *, environment: Mapping[str, str] | None = None) -> int:
    """Run ``command`` and return its exit code; 128 + n where signal n ended it.

    No shell takes part, so a path is what it is. Signals that ask to stop are handed on, and the child decides when it
    is done: it may have something to save.

    >>> launch([sys.executable, "-c", "raise SystemExit(3)"])
    3
    """
    child = subprocess.Popen(list(command), env={**os.environ, **(environment or {})})

    def hand_on(number: int, frame: FrameType | None) -> None:
        if child.poll() is None:
            child.send_signal(number)

    before = {number: signal.signal(number, hand_on) for number in _signals()}
    try:
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 128 - code if code < 0 else code


def _signals() -> list[int]:
    return [getattr(signal, name) for name in _FORWARDED if hasattr(signal, name)]
