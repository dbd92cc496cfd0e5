"""Writes checkpoints while training goes on: one at a time, whole or not at all.

    training thread                          background thread
    fill: small files into the staging folder
    copy tensors to main memory              (or here, until the next update of the weights)
    go on training                           write and hash all files, the manifest last
                                             fsync all of them together, rename, fsync the parent
                                             let older checkpoints go

A save that fails leaves nothing behind, touches no older checkpoint, is recorded as an event, and training goes on.
"""

from __future__ import annotations

import errno
import logging
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from trainwright.checkpoint.adopted import adopt_files
from trainwright.checkpoint.directory import set_aside
from trainwright.checkpoint.durable import (
    Chunk,
    FileFacts,
    discard,
    publish,
    rename_to_first_free,
    staging_of,
    write_file,
    write_text,
)
from trainwright.checkpoint.identity import RunIdentity
from trainwright.checkpoint.left_out import LeftOut, in_words
from trainwright.checkpoint.manifest import DamagedCheckpoint, has_manifest, problems_of, run_of, write_manifest
from trainwright.checkpoint.writer_group import WriterGroup
from trainwright.core.errors import RunTakenOver
from trainwright.core.events import RunEvents
from trainwright.core.fsync import force_folder, force_to_disk

#: A network drive may answer again in a moment.
_PASSING = {errno.EIO, errno.EAGAIN, errno.ETIMEDOUT, errno.ESTALE, errno.EINTR}
_WAITS = (0.5, 2.0)
_SMALL_FILES = 2**20
_WRITERS = 2


class Shared(Protocol):
    """One process's part of a checkpoint that several write."""

    together: WriterGroup
    #: Whether ``fill`` takes all processes: the model is written by somebody else's code.
    fill_by_all: bool

    def files(self) -> tuple[dict[str, list[Chunk]], Any]:
        """This process's files, once tensors are copied, and what the first process must know of them."""
        ...

    def index(self, said: list[Any]) -> dict[str, str]:
        """What the first process writes besides, from what all have said."""
        ...


@dataclass
class SaveJob:
    """One checkpoint to write."""

    target: Path
    step: int
    #: Called in the training thread with the staging folder: what must not be left to a background thread.
    fill: Callable[[Path], None]
    #: Tensors for each file, in main memory once ``copy`` has run.
    tensors: dict[str, Callable[[], list[Chunk]]] = field(default_factory=dict)
    texts: dict[str, Callable[[], str]] = field(default_factory=dict)
    #: What ``tensors`` will take on disk.
    size: int = 0
    #: Copies tensors to main memory; False if they were changed meanwhile, so that the copy is of no use.
    copy: Callable[[], bool] | None = None
    #: Further files from the copies, written by somebody else's code.
    finish: Callable[[Path], None] | None = None
    #: Where all processes write their part of it.
    shared: Shared | None = None
    #: What went wrong before anything was written.
    failure: BaseException | None = None
    #: The run that it belongs to.
    run: RunIdentity | None = None
    #: Files elsewhere that it counts on: forced to disk together with its own.
    refers_to: tuple[Path, ...] = ()
    #: What code that is not ours could not add to it.
    left_out: LeftOut = field(default_factory=LeftOut)


class TornCopy(RuntimeError):
    """Weights changed while they were copied."""


class Saver:
    """At most one checkpoint in flight; ``wait`` before anything that needs it."""

    def __init__(
        self,
        events: RunEvents,
        after: Callable[[Path], None] = lambda path: None,
        deliver: Callable[[Path, int], None] | None = None,
        refuse_if_taken_over: Callable[[], None] | None = None,
    ) -> None:
        self._events = events
        self._after = after
        #: Takes a finished folder, and its step, elsewhere; without it the folder gets its name where it is.
        self._deliver = deliver
        #: Raises ``RunTakenOver`` where the folder is no longer this run's: what is there is not ours to change.
        self._refuse_if_taken_over = refuse_if_taken_over or (lambda: None)
        self._thread: threading.Thread | None = None
        self._copied = threading.Event()
        self._copied.set()
        #: The step whose save failed and was not made up for since.
        self.failed_step: int | None = None
        #: Why the last save that failed did.
        self.failure: str | None = None
        self.last_saved: Path | None = None
        #: Something other than an update writes weights: copy in the training thread from now on.
        self.copies_at_once = False
        #: A copy was of no use, and its moment is to be made up for.
        self.owes_a_save = False
        #: What is known to be missing from checkpoints, so that each save need not say it again.
        self._said_missing: set[str] = set()

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def save(self, job: SaveJob, *, background: bool) -> None:
        """Begin to write ``job`` after the one in flight; returns when the rest needs no training thread."""
        self.wait()
        if not self._begin(job):
            return
        if job.copy is not None and (self.copies_at_once or not background):
            job.copy()
            job.copy = None
        if not background:
            self._run(job)
            return
        if job.copy is not None:
            self._copied.clear()
        thread = threading.Thread(target=self._run, args=(job,), name="trainwright-save")
        try:
            thread.start()
        except RuntimeError:
            # The system gives no more threads: then it takes as long as it takes.
            self._run(job)
            return
        self._thread = thread

    def wait(self) -> None:
        """Until nothing is being written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def wait_for_copy(self) -> None:
        """Until weights may be changed again; this comes with every step."""
        if not self._copied.is_set():
            self._copied.wait()

    def _begin(self, job: SaveJob) -> bool:
        """Check the room and let the training thread write its part; False if that failed."""
        try:
            if job.failure is not None:
                raise job.failure
            self._refuse_if_taken_over()
            job.target.parent.mkdir(parents=True, exist_ok=True)
            needed = int(job.size * 1.02) + _SMALL_FILES
            free = shutil.disk_usage(job.target.parent).free
            if free < needed:
                raise OSError(errno.ENOSPC, f"needs {megabytes(needed)}, {megabytes(free)} are free")
            self._fill_staging(job)
        except Exception as error:
            # Anything: a model's own code may have been called.
            if job.shared is not None:
                # The others are about to ask.
                job.failure = error
                return True
            self._give_up(job, error)
            return False
        return True

    def _fill_staging(self, job: SaveJob) -> None:
        staging = staging_of(job.target)
        is_first = job.shared is None or job.shared.together.rank == 0
        if is_first:
            discard(staging)
            staging.mkdir()
        if job.shared is not None and job.shared.fill_by_all:
            # The folder must be there before others look for it.
            job.shared.together.exchange(None)
        if is_first or (job.shared is not None and job.shared.fill_by_all):
            job.fill(staging)

    def _run(self, job: SaveJob) -> None:
        started = time.monotonic()
        try:
            if job.copy is not None and not job.copy():
                self.copies_at_once = self.owes_a_save = True
                torn = TornCopy("the weights were changed while they were copied; the next step is saved instead")
                if job.shared is None:
                    raise torn
                job.failure = torn
            self._copied.set()
            if job.shared is not None:
                self._write_together(job, job.shared)
            else:
                self._write_alone(job)
        except Exception as error:
            # Anything: a failed save must not end a run that is otherwise well.
            self._give_up(job, error)
            return
        finally:
            self._copied.set()
        self.failed_step = None
        self.last_saved = job.target
        seconds = round(time.monotonic() - started, 3)
        self._events.record(
            "saved", f"{job.target.name} is saved.", step=job.step, level=logging.DEBUG, seconds=seconds
        )
        self._say_what_is_missing(job)
        if job.shared is None or job.shared.together.rank == 0:
            self._let_older_ones_go(job)

    def _write_alone(self, job: SaveJob) -> None:
        self._write_with_patience(job)
        self._refuse_if_taken_over()
        if self._deliver is not None:
            self._deliver(staging_of(job.target), job.step)
        else:
            self._spare_what_is_not_ours(job)
            publish(staging_of(job.target), job.target)

    def _spare_what_is_not_ours(self, job: SaveJob) -> None:
        """Give another name to what another library, or another run, wrote under the same one."""
        if not job.target.exists():
            return
        if has_manifest(job.target):
            writer = run_of(job.target)
            if writer is None or job.run is None or writer.id == job.run.id:
                return
            spared = set_aside(job.target)
            message = f"{job.target.name} of another run was there: it is {spared.parent.name}/{spared.name} now."
        else:
            spared = rename_to_first_free(job.target, ".other-")
            message = f"{job.target.name} was there and is not ours: it is called {spared.name} now."
        self._events.record("renamed", message, step=job.step)

    def _say_what_is_missing(self, job: SaveJob) -> None:
        for what in dict.fromkeys(job.left_out.reasons):
            self._events.record(
                "left_out",
                f"{job.target.name} is saved without {what}.",
                step=job.step,
                level=logging.DEBUG if what in self._said_missing else logging.ERROR,
            )
            self._said_missing.add(what)

    def _let_older_ones_go(self, job: SaveJob) -> None:
        try:
            self._refuse_if_taken_over()
            self._after(job.target)
        except RunTakenOver:
            return
        except OSError as error:
            self._events.record("rotation_failed", f"An old checkpoint could not be deleted: {error}.", step=job.step)

    def _write_with_patience(self, job: SaveJob) -> None:
        for pause in (*_WAITS, None):
            try:
                self._write(job)
                return
            except OSError as error:
                if pause is None or error.errno not in _PASSING:
                    raise
                time.sleep(pause)

    def _write(self, job: SaveJob) -> None:
        staging = staging_of(job.target)
        with ThreadPoolExecutor(_WRITERS, thread_name_prefix="trainwright-write") as writers:
            writing = {name: writers.submit(_write_unforced, staging / name, get) for name, get in job.tensors.items()}
            files = {name: done.result() for name, done in writing.items()}
        for name, text in job.texts.items():
            files[name] = write_text(staging / name, text(), force=False)
        if job.finish is not None:
            finish = job.finish
            job.left_out.add_files("files in another library's format", staging, lambda: finish(staging))
        self._close(job, files)
        force_folder(staging, job.refers_to)

    def _close(self, job: SaveJob, files: dict[str, FileFacts]) -> None:
        """Take in what other code has written, list everything, and look at the list as a reader will."""
        staging = staging_of(job.target)
        adopted, thrown_out = adopt_files(staging, files)
        job.left_out.reasons += thrown_out
        write_manifest(staging, files | adopted, job.step, job.run, force=False)
        if problems := problems_of(staging, hashes=False):
            raise DamagedCheckpoint(staging, problems)

    def _write_together(self, job: SaveJob, shared: Shared) -> None:
        """Each process writes its files; the first seals and publishes the folder once all have, and says so.

        What goes wrong in one process is told to all, so that none waits for a folder that will never come. One that
        dies meanwhile is noticed by the group's error; then nothing is published.
        """
        together, staging = shared.together, staging_of(job.target)
        _refuse_failed(together.exchange(_said(job.failure)), job)
        files: dict[str, FileFacts] = {}
        note: Any = None
        failure: BaseException | None = None
        try:
            contents, note = shared.files()
            files = {name: write_file(staging / name, chunks, force=False) for name, chunks in contents.items()}
            force_to_disk(staging / name for name in files)
        except Exception as error:
            failure = error
        heard = together.exchange({**_said(failure), "files": files, "note": note})
        _refuse_failed(heard, job, failure)
        if together.rank == 0:
            try:
                self._seal(
                    job, {name: FileFacts(*facts) for one in heard for name, facts in one["files"].items()}, heard
                )
            except Exception as error:
                failure = error
        _refuse_failed(together.exchange(_said(failure)), job, failure)

    def _seal(self, job: SaveJob, files: dict[str, FileFacts], heard: list[Any]) -> None:
        assert job.shared is not None
        staging = staging_of(job.target)
        texts = {name: text() for name, text in job.texts.items()} | job.shared.index([one["note"] for one in heard])
        for name, text in texts.items():
            files[name] = write_text(staging / name, text, force=False)
        files |= {name: write_file(staging / name, get(), force=False) for name, get in job.tensors.items()}
        self._close(job, files)
        force_folder(staging, job.refers_to)
        self._refuse_if_taken_over()
        self._spare_what_is_not_ours(job)
        publish(staging, job.target)

    def _give_up(self, job: SaveJob, error: BaseException) -> None:
        self.failed_step, self.failure = job.step, (reason := _reason(error))
        try:
            self._refuse_if_taken_over()
        except RunTakenOver:
            # The run ends for it, and says so. The other training may be writing a folder of the same name.
            return
        if job.shared is None or job.shared.together.rank == 0:
            discard(staging_of(job.target))
        self._events.record(
            "save_failed",
            f"{job.target.name} was NOT saved: {reason}. Training goes on; older checkpoints are untouched.",
            step=job.step,
            level=logging.ERROR,
            error=type(error).__name__,
        )


def _said(failure: BaseException | None) -> dict[str, Any]:
    return {"error": None if failure is None else _reason(failure)}


def _refuse_failed(heard: list[Any], job: SaveJob, own: BaseException | None = None) -> None:
    """Raise what went wrong in any process; this one's own error, if it has one."""
    if own is not None or job.failure is not None:
        raise own or job.failure or AssertionError
    for rank, said in enumerate(heard):
        if said["error"] is not None:
            raise RuntimeError(f"process {rank} could not write its part: {said['error']}")


def _write_unforced(path: Path, chunks: Callable[[], list[Chunk]]) -> FileFacts:
    return write_file(path, chunks(), force=False)


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"the disk is full ({error.strerror})"
    if isinstance(error, OSError) and error.strerror:
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror}{where}"
    return in_words(error)


def megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
