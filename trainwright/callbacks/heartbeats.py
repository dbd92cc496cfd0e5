"""What each of several processes says about itself while it lives, in ``<run>/ranks``, and who holds up the others."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import traceback
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import FrameType

from trainwright.core.files import replace_text

FOLDER = "ranks"
#: Frames of a stack that are kept, the innermost ones.
_FRAMES = 12
#: Files of torch in which a process waits for others; a backward pass may wait for them too.
_EXCHANGES = (os.path.join("torch", "distributed"), os.path.join("torch", "autograd", "graph"))


@dataclass(frozen=True)
class Heartbeat:
    """What one process said last."""

    rank: int
    host: str
    pid: int
    step: int
    #: What it is doing, where in whose code, and for how many seconds it has finished nothing.
    phase: str
    place: str
    silent: float
    stack: list[str]
    #: Whether it waits for others, as far as its stack can tell.
    waits: bool
    #: Grows with every sign: whether a process lives is seen without comparing the clocks of machines.
    number: int

    def words(self) -> str:
        return f"rank {self.rank} on {self.host} (pid {self.pid})"


@dataclass(frozen=True)
class Verdict:
    """Who holds up the others: processes that stopped giving signs, and those that do something else than wait."""

    frozen: list[Heartbeat]
    missing: list[int]
    behind: list[Heartbeat]
    #: Those that give signs.
    alive: list[int]

    def message(self) -> str:
        """In a sentence; empty where nobody stands out."""
        parts = [f"{sign.words()} gives no sign of life any more; it was {sign.phase}" for sign in self.frozen]
        parts += [f"rank {rank} never gave a sign of life" for rank in self.missing]
        parts += [f"{sign.words()} is {sign.phase} after step {sign.step}, in {sign.place}" for sign in self.behind]
        return "; ".join(parts)


class Heartbeats:
    """The signs of all processes of a run, in a folder that all of them reach."""

    def __init__(self, run: Path, rank: int, world_size: int) -> None:
        self._folder, self.rank, self.world_size = run / FOLDER, rank, world_size
        self._number = 0

    def _path(self, rank: int) -> Path:
        return self._folder / f"rank-{rank:05d}.json"

    def give(self, *, step: int, phase: str, place: str, silent: float, frame: FrameType | None) -> None:
        """Say where this process stands; a disk that refuses is no reason to stop."""
        self._number += 1
        sign = Heartbeat(
            self.rank,
            socket.gethostname(),
            os.getpid(),
            step,
            phase,
            place,
            round(silent, 3),
            short_stack(frame),
            waits_for_others(frame),
            self._number,
        )
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            replace_text(self._path(self.rank), json.dumps(asdict(sign)) + "\n", by_several=True)

    def read(self) -> dict[int, Heartbeat]:
        """The last sign of each process that has given one."""
        found: dict[int, Heartbeat] = {}
        names = {entry.name for entry in fields(Heartbeat)}
        for rank in range(self.world_size):
            with contextlib.suppress(OSError, ValueError, TypeError):
                given = json.loads(self._path(rank).read_text(encoding="utf-8"))
                found[rank] = Heartbeat(**{name: given[name] for name in names & set(given)})
        return found

    def withdraw(self) -> None:
        """This process is done; the last one takes the folder away."""
        with contextlib.suppress(OSError):
            self._path(self.rank).unlink(missing_ok=True)
            self._folder.rmdir()

    def compare(self, before: dict[int, Heartbeat], now: dict[int, Heartbeat]) -> Verdict:
        """Judge by two readings some signs apart; ``now`` must hold a fresh sign of this process."""
        alive = [
            rank
            for rank, sign in now.items()
            if rank == self.rank or rank not in before or sign.number != before[rank].number
        ]
        frozen = [sign for rank, sign in now.items() if rank not in alive]
        missing = [rank for rank in range(self.world_size) if rank not in now]
        living = [now[rank] for rank in alive]
        furthest = max((sign.step for sign in living), default=0)
        some_wait = any(sign.waits for sign in living)
        behind = [sign for sign in living if sign.step < furthest or (some_wait and not sign.waits)]
        # Where all are held up by one that is gone, what the others do is its consequence.
        return Verdict(frozen, missing, [] if frozen or missing else behind, alive)


def short_stack(frame: FrameType | None) -> list[str]:
    """Where a thread stands, innermost frame last, a line for each."""
    if frame is None:
        return []
    entries = traceback.extract_stack(frame)[-_FRAMES:]
    return [f"{entry.name} ({entry.filename}:{entry.lineno})" for entry in entries]


def waits_for_others(frame: FrameType | None) -> bool:
    """Whether a thread stands in torch's exchange between processes."""
    while frame is not None:
        if any(part in frame.f_code.co_filename for part in _EXCHANGES):
            return True
        frame = frame.f_back
    return False
