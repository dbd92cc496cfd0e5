"""One writer for a run directory: the second training that is started there is refused, by name.

Three things keep others out, each where the one before it cannot:

    a table in this process          two Trainers of one process: the system's locks do not stop a process from itself
    a record lock on ``run.lock``    two processes; the system lets it go with the process, however that ends, and no
                                     worker that was forked from it has it
    ``run.lease.json``               network folders on which locks do nothing (``run_lease.py``)

A record lock may be dropped (``lock_file.py``), so it is taken again with every beat, and the lease alone says whose
the folder is.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from trainwright.checkpoint.lock_file import LockFile
from trainwright.checkpoint.run_lease import (
    Lease,
    keep_alive,
    read_lease,
    remove_drafts,
    remove_lease,
    sign_of_life,
    write_lease,
)
from trainwright.core.errors import RunTakenOver

logger = logging.getLogger("trainwright")

FILE = "run.lock"
#: Seconds between two signs of life.
BEAT_SECONDS = 5.0
_LOOKS_IN_A_BEAT = 50


@dataclass(frozen=True)
class Note:
    """What happened when a folder was taken, for the run's events."""

    kind: str
    message: str
    level: int = logging.INFO


class RunLock:
    """The right to write into a run directory, from :func:`take` to :meth:`release`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes: list[Note] = []
        #: Who has taken the folder over; from then on nothing may be written there. Looked at in every step.
        self.taken_by: str | None = None
        #: Called, in whichever thread finds out, when somebody took the folder over.
        self.when_lost: Callable[[], None] = lambda: None
        #: Kept for a training that is about to begin in this process, and whether it has begun.
        self.is_lent = self.lends = False
        self.began = time.strftime("%H:%M:%S")
        self._pid = os.getpid()
        self._mutex = threading.RLock()
        self._file = LockFile(folder / FILE, "")
        self._lease: Lease | None = None
        self._last_look = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat_on, name="trainwright-lease", daemon=True)

    # ---- taking

    def take(self, *, force: bool, say: Callable[[str], None]) -> None:
        """Take the folder; ``ValueError`` where somebody else trains there."""
        lease = self._lease = Lease.new(self._inode(), BEAT_SECONDS)
        self._file = LockFile(self.folder / FILE, lease.token)
        refused: OSError | None = None
        try:
            self._file.open()
        except OSError as error:
            refused = error
        has_lock = self._file.take() if force else self._wait_for_lock(say)
        there = self._live_lease(say) if has_lock else read_lease(self.folder)
        if not has_lock or there is not None:
            if not force:
                raise ValueError(self._refusal(there))
            self._take_by_force(there, say, has_lock=has_lock)
        if not self._file.is_signed():
            self._file.sign()
            self._file.share()
        try:
            write_lease(self.folder, lease)
        except OSError as error:
            # Without a lease there is nothing to compare with.
            refused, self._lease = error, None
        if refused is not None:
            # The disk may be full, broken or read-only: that does not stop a training.
            why = f"{self.folder} could not be locked ({refused}): a second training there may go unnoticed."
            self._note("not_locked", why, logging.WARNING)
        if self._lease is not None:
            remove_drafts(self.folder)
            self._last_look = time.monotonic()
            with contextlib.suppress(RuntimeError):
                # The system may give no more threads; then the lock has to do.
                self._thread.start()

    def _wait_for_lock(self, say: Callable[[str], None]) -> bool:
        """Return True once the lock is ours; whoever has it may be about to end."""
        if self._file.take():
            return True
        there = read_lease(self.folder)
        end = time.monotonic() + _patience(there)
        say(f"{_name(there)} trains in {self.folder}: waiting up to {_patience(there):g} seconds for it to end.")
        while not self._file.take():
            if time.monotonic() >= end:
                return False
            time.sleep(BEAT_SECONDS / _LOOKS_IN_A_BEAT)
        return True

    def _live_lease(self, say: Callable[[str], None]) -> Lease | None:
        """The lease of somebody who trains here although we have the lock; None where nobody does."""
        there = read_lease(self.folder)
        if there is None or there.is_of_this_process():
            return None
        if there.is_of_a_gone_process():
            self._note("lock_recovered", f"The training of {there} in this folder was ended from outside.")
            return None
        if there.is_of_another_folder(self._inode()):
            self._note("lock_recovered", f"This folder is a copy of one in which {there} trained.")
            return None
        # It may be on another machine: nothing but its beats tells.
        say(f"{there} may still train in {self.folder}: waiting up to {there.patience:g} seconds for a sign of life.")
        first, end = sign_of_life(self.folder), time.monotonic() + there.patience
        while time.monotonic() < end:
            time.sleep(there.patience / 2 / _LOOKS_IN_A_BEAT)
            now = sign_of_life(self.folder)
            if now is None:
                # It has ended meanwhile.
                return None
            if now != first:
                return read_lease(self.folder)
        silent = f"Took the folder over from {there}, which gave no sign of life for {there.patience:g} seconds."
        self._note("lock_taken_over", silent, logging.WARNING)
        return None

    def _refusal(self, there: Lease | None) -> str:
        return (
            f"{self.folder} is in use: {_name(there)} trains there, and two trainings would mix their metrics and "
            "delete each other's checkpoints. Wait for it or stop it; train in another folder (output_dir; on the "
            "command line also name=... or --fresh); or take the folder over (--force on the command line, "
            "TrainingArguments(take_over=True) in Python), which ends the other training without a save."
        )

    def _take_by_force(self, there: Lease | None, say: Callable[[str], None], *, has_lock: bool) -> None:
        """Say what will happen, put our lease in the place of the other, and wait until the other has noticed."""
        assert self._lease is not None
        who = _name(there)
        say(
            f"Taking {self.folder} over from {who}: that training will stop within seconds and save nothing more; its "
            "steps since its last checkpoint are lost."
        )
        self._note("lock_forced", f"The folder was taken over by force from {who}.", logging.WARNING)
        end = time.monotonic() + _patience(there)
        while time.monotonic() < end:
            now = read_lease(self.folder)
            if now is None or now.token != self._lease.token:
                # Also again: its beat may have come between.
                with contextlib.suppress(OSError):
                    write_lease(self.folder, self._lease)
                self._file.sign()
            if not has_lock and self._file.take():
                # It lets go as soon as it knows.
                return
            time.sleep(BEAT_SECONDS / _LOOKS_IN_A_BEAT)

    # ---- keeping

    def is_ours(self) -> bool:
        """Look at the disk whether the folder is still this training's; before anything there is changed."""
        with self._mutex:
            return self._look()

    def is_still_ours(self) -> bool:
        """The same without a look at the disk, unless the last one is so long ago that somebody may have come."""
        if self.taken_by is None and time.monotonic() - self._last_look > 1.5 * BEAT_SECONDS:
            return self.is_ours()
        return self.taken_by is None

    def refuse_if_taken_over(self) -> None:
        """Raise ``RunTakenOver`` where somebody else has the folder by now."""
        if not self.is_ours():
            raise RunTakenOver(str(self.folder), self.taken_by or "another process")

    def _look(self) -> bool:
        if self.taken_by is not None or self._lease is None:
            return self.taken_by is None
        there = read_lease(self.folder)
        if there is None:
            # Removed by hand, or by somebody who took the folder while we slept, and has gone since.
            if self._file.signed() not in ("", self._lease.token):
                self._lose("another training, which has ended since")
        elif there.token != self._lease.token and not there.is_of_another_folder(self._inode()):
            self._lose(str(there))
        self._last_look = time.monotonic()
        return self.taken_by is None

    def _lose(self, who: str) -> None:
        self.taken_by = who
        # Whoever took it waits for this.
        self._file.close()
        self.when_lost()

    def _beat_on(self) -> None:
        while not self._over.wait(BEAT_SECONDS):
            with self._mutex:
                if self._over.is_set() or not self._look():
                    return
                self._beat()

    def _beat(self) -> None:
        assert self._lease is not None
        # What the disk refuses now it may take at the next beat.
        with contextlib.suppress(OSError):
            self._lease = self._lease.next_beat(self._inode())
            keep_alive(self.folder, self._lease)
            if not self._file.is_where_it_was():
                self._file.close()
                self._file.open()
            if not self._file.is_signed():
                # Also by somebody who got the lock, and was refused all the same.
                self._file.sign()
            self._file.share()

    # ---- letting go

    def release(self) -> None:
        """Let others train in the folder; may be called twice."""
        if self._pid != os.getpid():
            # A process that was forked from the one that trains leaves by the same way.
            return
        if self.lends and self.is_lent:
            self.is_lent, self.when_lost = False, lambda: None
            return
        self._over.set()
        with self._mutex:
            if self.taken_by is None and self._lease is not None:
                remove_lease(self.folder, self._lease)
            self._lease = None
            self._file.close()
        _forget(self)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            # A network folder that does not answer must not hold up the end.
            self._thread.join(timeout=BEAT_SECONDS)

    def _inode(self) -> int:
        try:
            return os.stat(self.folder).st_ino
        except OSError:
            return 0

    def _note(self, kind: str, message: str, level: int = logging.INFO) -> None:
        self.notes.append(Note(kind, message, level))


#: Folders that trainings of this process write into, by device and inode. A process is what a lock belongs to, so this
#: is the process's.
_held: dict[tuple[int, int], RunLock] = {}
_registering = threading.Lock()


def take(folder: Path, *, force: bool = False, say: Callable[[str], None] = logger.warning) -> RunLock:
    """Take a run directory for a training; ``ValueError`` names whoever trains there.

    With ``force`` it is taken from them; ``say`` is told before that what will happen.
    """
    # The working directory may change while it trains.
    folder = folder.absolute()
    lock = RunLock(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        found = os.stat(folder)
    except OSError as error:
        lock._note("not_locked", f"{folder} could not be locked: {error}.", logging.WARNING)
        return lock
    with _registering:
        held = _held.get((found.st_dev, found.st_ino))
        if held is not None and held._pid == os.getpid():
            return _lent(held)
        _held[found.st_dev, found.st_ino] = lock
    try:
        lock.take(force=force, say=say)
    except BaseException:
        lock.release()
        raise
    return lock


@contextlib.contextmanager
def holding(folder: Path, *, force: bool = False, say: Callable[[str], None] = logger.warning) -> Iterator[RunLock]:
    """Keep a run directory for a training that begins, in this process, in this block."""
    lock = take(folder, force=force, say=say)
    lock.lends = True
    try:
        yield lock
    finally:
        lock.lends = False
        lock.release()


def is_anothers(folder: Path) -> bool:
    """Return True when another process seems to train in ``folder``; without waiting to be certain."""
    there = writer_in(folder)
    return there is not None and not there.is_of_this_process()


def writer_in(folder: Path) -> Lease | None:
    """Whoever seems to train in ``folder``, by what is written there."""
    there = read_lease(folder)
    is_over = there is None or there.is_of_a_gone_process() or there.is_of_another_folder(os.stat(folder).st_ino)
    return None if is_over else there


def _lent(held: RunLock) -> RunLock:
    if not held.lends or held.is_lent:
        raise ValueError(
            f"{held.folder} is in use: another Trainer of this process has been training there since {held.began}, and "
            "two trainings would mix their metrics and delete each other's checkpoints. Let it end first, or choose "
            "another output_dir."
        )
    held.is_lent = True
    return held


def _name(there: Lease | None) -> str:
    return "another process" if there is None else str(there)


def _patience(there: Lease | None) -> float:
    """How long a training may take to show that it is alive, or to end."""
    return 2 * BEAT_SECONDS if there is None else there.patience


def _forget(lock: RunLock) -> None:
    with _registering:
        for key in [key for key, held in _held.items() if held is lock]:
            del _held[key]
