"""Commands that start a script in several processes, and running one so that signals and the exit code pass through."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import FrameType

from trainwright.config.errors import ConfigError

#: Names the process that started another and stays until that is done.
LAUNCHER = "TRAINWRIGHT_LAUNCHER"
_FORWARDED = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP")


def torchrun_command(
    script: Sequence[str],
    *,
    processes: int,
    nodes: int | str = 1,
    node_rank: int | None = None,
    rendezvous: str | None = None,
    rendezvous_id: str | None = None,
    max_restarts: int = 0,
) -> list[str]:
    """The command that runs ``script`` (a file, or ``-m`` and a module, and its arguments) in several processes.

    ``processes`` are those on this machine. With several ``nodes`` (a number, or ``"2:4"`` for as many as come) the
    same is called on each; ``rendezvous`` is ``host:port`` of the first.

    >>> torchrun_command(["train.py", "--lr", "1e-3"], processes=2)[4:]  # doctest: +NORMALIZE_WHITESPACE
    ['--nnodes=1', '--rdzv-backend=trainwright-loopback', '--rdzv-endpoint=127.0.0.1:0', '--nproc-per-node=2',
     '--max-restarts=0', '-m', '--', 'trainwright.launch.worker', 'train.py', '--lr', '1e-3']
    """
    if not script:
        raise ConfigError("There is no script to start.")
    fewest, most = _node_range(nodes)
    if processes < 1 or fewest < 1:
        raise ConfigError(f"{processes} processes on {nodes} nodes: both must be at least 1.")
    if max_restarts < 0:
        raise ConfigError(f"--max-restarts {max_restarts}: how often the processes are started again, 0 or more.")
    command = [sys.executable, "-P", "-m", "trainwright.launch.processes"]
    if most == 1:
        _refuse_rendezvous(node_rank, rendezvous, rendezvous_id)
        # A port of its own choosing, on 127.0.0.1: several runs on one machine do not meet, nor do strangers.
        # The number of nodes is said because torchrun would otherwise take it from PET_NNODES.
        command += ["--nnodes=1", "--rdzv-backend=trainwright-loopback", "--rdzv-endpoint=127.0.0.1:0"]
    else:
        endpoint = _checked_endpoint(rendezvous, node_rank, most)
        command += [f"--nnodes={nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}"]
        command += [f"--rdzv-id={rendezvous_id or 'trainwright'}"]
        if node_rank is not None:
            # Otherwise each machine guesses from its names whether it is the one that the others connect to.
            command += [f"--rdzv-conf=is_host={int(node_rank == 0)}"]
    command += [f"--nproc-per-node={processes}", f"--max-restarts={max_restarts}"]
    # Behind the two dashes torchrun looks for no options of its own, which a script's may begin like.
    return [*command, "-m", "--", "trainwright.launch.worker", *script]


def _node_range(nodes: int | str) -> tuple[int, int]:
    if not re.fullmatch(r"\d+(:\d+)?", str(nodes)):
        raise ConfigError(f"--nnodes {nodes}: give a number of machines, or MIN:MAX.")
    fewest, _, most = str(nodes).partition(":")
    if most and int(most) < int(fewest):
        raise ConfigError(f"--nnodes {nodes}: the first number must not be the larger one.")
    return int(fewest), int(most or fewest)


def _refuse_rendezvous(node_rank: int | None, rendezvous: str | None, rendezvous_id: str | None) -> None:
    for name, value in (("--node-rank", node_rank), ("--rdzv", rendezvous), ("--rdzv-id", rendezvous_id)):
        if value is not None:
            raise ConfigError(f"{name} {value} is for several machines: add --nnodes N, or leave it out.")


def _checked_endpoint(rendezvous: str | None, node_rank: int | None, most: int) -> str:
    if rendezvous is None:
        raise ConfigError("Several machines need rendezvous='host:port' (--rdzv HOST:PORT) of the first one.")
    if not re.fullmatch(r"(\[[0-9a-fA-F:.%\w]+\]|[^:\s]+):\d{1,5}", rendezvous):
        raise ConfigError(f"--rdzv {rendezvous}: give HOST:PORT of the first machine, such as node-1:29500.")
    if node_rank is not None and not 0 <= node_rank < most:
        raise ConfigError(f"--node-rank {node_rank}: with {most} machines it is one of 0 to {most - 1}.")
    return rendezvous


def launch(command: Sequence[str], *, environment: Mapping[str, str] | None = None) -> int:
    """Run ``command`` and return its exit code; 128 + n where signal n ended it.

    No shell takes part, so a path is what it is. Signals that ask to stop are handed on, and the child decides when it
    is done: it may have something to save.

    >>> launch([sys.executable, "-c", "raise SystemExit(3)"])
    3
    """
    told = {**os.environ, LAUNCHER: str(os.getpid()), **(environment or {})}
    # In a session of its own: Ctrl-C in a terminal would otherwise reach it twice, and count as impatience.
    child = subprocess.Popen(list(command), env=told, start_new_session=True)

    def hand_on(number: int, frame: FrameType | None) -> None:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM if number == _HANG_UP else number)

    before = {number: signal.signal(number, hand_on) for number in _signals()}
    try:
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 128 - code if code < 0 else code


_HANG_UP = getattr(signal, "SIGHUP", None)


def _signals() -> list[int]:
    numbers = [getattr(signal, name) for name in _FORWARDED if hasattr(signal, name)]
    # Under nohup a closed terminal is to be ignored.
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
