"""``run.lease.json`` in a run directory: which process writes there, and that it is still alive.

A lock of the system would be enough, were it not for network folders on which locks do nothing. The lease does not
depend on them: its writer raises a counter every few seconds, and whoever watches it by a clock of its own sees whether
that goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import time
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from trainwright.core.files import replace_text
from trainwright.core.json_files import read_json

FILE = "run.lease.json"
#: Nobody's lease is longer; what is larger was not written by us.
_LARGEST = 16_384
_LONGEST_TEXT = 255
#: However long a lease says that it takes from beat to beat, nobody waits longer for one.
_SLOWEST_BEAT, _FASTEST_BEAT = 60.0, 0.01
_ATTEMPTS, _PAUSE = 3, 0.02


@dataclass(frozen=True)
class Lease:
    """The process that writes into a run directory."""

    #: Random, new for each training: two of the same process are two.
    token: str
    host: str
    #: Which start of that machine, and in which numbering of processes ``pid`` is meant; empty where not known.
    boot: str
    pid_namespace: str
    pid: int
    #: When the process was started, in ticks since the machine was; another process may get the same number later.
    process_began: int
    #: The inode of the folder: a copy of the folder has another.
    folder: int
    #: Seconds since 1970, by the writer's clock; for people only.
    began: float
    beat_at: float
    #: Raised with every beat, ``seconds_between_beats`` apart.
    beat: int
    seconds_between_beats: float

    @classmethod
    def new(cls, folder: int, seconds_between_beats: float) -> Lease:
        """A lease of this process."""
        now = round(time.time(), 3)
        pid = os.getpid()
        return cls(
            token=secrets.token_hex(16),
            host=_printable(socket.gethostname()),
            boot=_boot(),
            pid_namespace=_pid_namespace(),
            pid=pid,
            process_began=_began(pid)[0],
            folder=folder,
            began=now,
            beat_at=now,
            beat=0,
            seconds_between_beats=seconds_between_beats,
        )

    def next_beat(self, folder: int) -> Lease:
        return replace(self, beat=self.beat + 1, beat_at=round(time.time(), 3), folder=folder)

    @property
    def patience(self) -> float:
        """Seconds in which two beats should have come, within reason."""
        return 2 * min(max(self.seconds_between_beats, _FASTEST_BEAT), _SLOWEST_BEAT)

    def __str__(self) -> str:
        began, beat = (_clock(moment) for moment in (self.began, self.beat_at))
        return f"process {self.pid} on {self.host} (training since {began}, last heard of at {beat})"

    def is_of_a_gone_process(self) -> bool:
        """Return True when it is certain that the writer has ended; False also where that cannot be known."""
        is_known = bool(self.boot) and bool(self.pid_namespace)
        if not is_known or (self.boot, self.pid_namespace) != (_boot(), _pid_namespace()):
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            # Somebody else's process: it is there.
            pass
        began, state = _began(self.pid)
        # One that was killed keeps its number until whoever started it has asked how it ended.
        return state in ("Z", "X") or (0 not in (began, self.process_began) and began != self.process_began)

    def is_of_this_process(self) -> bool:
        """Return True when this very process has written it."""
        is_same = (self.boot, self.pid_namespace, self.pid) == (_boot(), _pid_namespace(), os.getpid())
        return is_same and self.process_began == _began(self.pid)[0] != 0

    def is_of_another_folder(self, folder: int) -> bool:
        """Return True when it came here with a copy of the folder that it was written in."""
        return bool(self.boot) and self.boot == _boot() and self.folder != folder


def read_lease(run_directory: Path) -> Lease | None:
    """The lease in a folder; None where there is none, or something that no training wrote."""
    for _ in range(_ATTEMPTS):
        try:
            return _checked(read_json(run_directory / FILE, _LARGEST))
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        except OSError:
            # A network folder whose file was replaced at this moment.
            time.sleep(_PAUSE)
    return None


def write_lease(run_directory: Path, lease: Lease) -> None:
    """Put ``lease`` in the place of the one there is; ``OSError`` where the disk refuses."""
    # Somebody who takes the folder over by force writes at the same time.
    replace_text(run_directory / FILE, json.dumps(asdict(lease), indent=2) + "\n", by_several=True)


def keep_alive(run_directory: Path, lease: Lease) -> None:
    """Write the next beat of a lease; on a full disk its time alone is changed, which takes no room."""
    try:
        write_lease(run_directory, lease)
    except OSError:
        there = read_lease(run_directory)
        if there is None or there.token != lease.token:
            raise
        os.utime(run_directory / FILE)


def sign_of_life(run_directory: Path) -> tuple[str, int, int] | None:
    """Something that changes with every beat; None where there is no lease."""
    lease = read_lease(run_directory)
    if lease is None:
        return None
    try:
        return lease.token, lease.beat, os.stat(run_directory / FILE).st_mtime_ns
    except OSError:
        return None


def remove_lease(run_directory: Path, lease: Lease) -> None:
    """Remove ``lease``, and nobody else's."""
    with contextlib.suppress(OSError):
        there = read_lease(run_directory)
        if there is not None and there.token == lease.token:
            (run_directory / FILE).unlink(missing_ok=True)


def remove_drafts(run_directory: Path) -> None:
    """Remove what processes left that were killed while they wrote a lease."""
    with contextlib.suppress(OSError):
        for draft in run_directory.glob(f".{FILE}.*.writing"):
            draft.unlink(missing_ok=True)


def _checked(stored: object) -> Lease | None:
    """A lease from JSON that anybody may have written; None for anything else."""
    if not isinstance(stored, dict) or not all(isinstance(name, str) for name in stored):
        return None
    values: dict[str, Any] = {}
    for spec in fields(Lease):
        value: Any = stored.get(spec.name)
        if spec.type == "str" and isinstance(value, str):
            values[spec.name] = _printable(value)
        elif spec.type == "int" and type(value) is int and abs(value) < 2**64:
            values[spec.name] = value
        elif spec.type == "float" and type(value) in (int, float) and abs(value) < 2**53:
            values[spec.name] = float(value)
        else:
            return None
    return Lease(**values) if 0 < values["pid"] < 2**31 and values["token"] else None


def _printable(text: str) -> str:
    """``text`` as it can be shown: it is printed to terminals, and anybody may have written it."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_LONGEST_TEXT])


def _clock(moment: float) -> str:
    try:
        return datetime.fromtimestamp(moment).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return "an unknown time"


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _began(pid: int) -> tuple[int, str]:
    """When a process was started, in ticks, and the letter of its state; 0 and "" where the system does not say."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        # The second word is the program's name, in brackets, and may hold anything.
        words = text.rpartition(")")[2].split()
        return int(words[19]), words[0]
    except (OSError, ValueError, IndexError):
        return 0, ""
