"""Worker processes: told the epoch with every batch, deaf to the scheduler's signals, and always brought to an end.

Relies on these internals of torch (2.10 to 2.13): ``_MultiProcessingDataLoaderIter`` with ``_try_get_data``,
``_shutdown_workers``, ``_workers``, ``_workers_status``, ``_shutdown``, ``_worker_pids_set`` and
``_pin_memory_thread_done_event``; that it reads what it needs from the loader it is given; and
``_utils.signal_handling._remove_worker_pids``, without which torch's SIGCHLD handler takes a worker that we kill for
one that failed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from multiprocessing.util import Finalize
from typing import Any

import torch.utils.data._utils as torch_internals
from torch.utils.data import get_worker_info
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from trainwright.core.children import end_with_parent
from trainwright.core.signals import STOPPING
from trainwright.data.order import set_epoch_of
from trainwright.data.seeding import MapFetch
from trainwright.data.stream_sharing import StreamForWorkers
from trainwright.data.worker_deaths import WorkerDied, death_in_words, said_of_death

# How long workers that were asked to leave may take before they are killed.
_GRACE_SECONDS = 2.0
# How long it may take from the first sign of a worker's death to its exit code.
_DEATH_SECONDS = 1.0
# How often a wait for a batch calls `poll`.
_POLL_SECONDS = 0.4
# A scheduler sends these to the whole process group; the main process decides what they mean.
_MAIN_PROCESS_SIGNALS = STOPPING


class LoaderNow:
    """What a loader's iterators must know at any time; an object of its own, so that they need not hold the loader.

    Held by its iterator, a loader that nobody wants any more would keep its workers until the garbage collector came.
    """

    def __init__(self, poll: Callable[[], None] | None) -> None:
        #: Called while waiting for workers.
        self.poll = poll
        self.epoch = 0


class WorkerIterator(_MultiProcessingDataLoaderIter):
    """torch's iterator over workers, whose waits are polled and whose end is certain."""

    def __init__(self, loader: object, now: LoaderNow) -> None:
        self._now = now
        self._lost_one = False
        self._exit: Finalize | None = None
        # Started under a mask, a worker cannot be hit by a signal before it has learnt to ignore it.
        with _signals_held():
            super().__init__(_AsWorkersSeeIt(loader, now))

    def _try_get_data(self, timeout: float = torch_internals.MP_STATUS_CHECK_INTERVAL) -> Any:
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            success, data = self._got(min(_POLL_SECONDS, max(left, 0.0)))
            if success or left <= _POLL_SECONDS:
                return success, data
            if self._now.poll is not None:
                self._now.poll()

    def _got(self, timeout: float) -> Any:
        try:
            return super()._try_get_data(timeout)
        except (RuntimeError, OSError, EOFError) as error:
            # What shares a batch may be gone a moment before the worker counts as dead; and where the handler raised
            # while its exit code was being fetched, nobody will ever know that.
            dead = self._dead(wait=not isinstance(error, RuntimeError))
            words = death_in_words(dead) if dead else said_of_death(error)
            if words is None:
                raise
            self._lost_one = True
            raise WorkerDied(words) from error

    def _dead(self, *, wait: bool = False) -> list[Any]:
        """Workers that are gone and should not be."""
        end = time.monotonic() + (_DEATH_SECONDS if wait else 0.0)
        while True:
            dead = [worker for worker in self._workers if worker.exitcode not in (None, 0)]
            if dead or time.monotonic() >= end:
                return dead
            time.sleep(0.02)

    def _reset(self, loader: object, first_iter: bool = False) -> None:
        if self._exit is None:
            self._watch_exit()
        super()._reset(loader, first_iter)

    def _shutdown_workers(self) -> None:
        """Ask the workers to leave, and kill those that do not.

        torch would send SIGTERM to those that stay, which ours ignore, and wait ten seconds for each.
        """
        if torch_internals.python_exit_status is not False or getattr(self, "_shutdown", True):
            return
        if not hasattr(self, "_workers_status") or self._lost_one or self._dead():
            self._abandon()
            return
        killer = threading.Timer(_GRACE_SECONDS, self._kill_workers)
        killer.daemon = True
        killer.start()
        try:
            super()._shutdown_workers()
        except RuntimeError as error:
            if said_of_death(error) is None:
                raise
            self._abandon()
        finally:
            killer.cancel()
            if self._exit is not None:
                self._exit.cancel()

    def _abandon(self) -> None:
        """Kill what is left of the workers, without a word to them.

        One that died may have held a lock that a word would wait for; and where not all could be started, torch does
        not know which it should speak to.
        """
        self._shutdown = True
        self._worker_pids_set = False
        if self._exit is not None:
            self._exit.cancel()
        if hasattr(self, "_pin_memory_thread_done_event"):
            self._pin_memory_thread_done_event.set()
        _kill(self._workers, id(self))
        for worker in self._workers:
            worker.join(timeout=_GRACE_SECONDS)
        for queue in (*self._index_queues, self._worker_result_queue):
            queue.cancel_join_thread()
            queue.close()

    def _watch_exit(self) -> None:
        # multiprocessing ends daemons at exit with SIGTERM and then waits for them without limit; finalizers with a
        # priority run before that. One made in another process (after a fork) does nothing there.
        self._exit = Finalize(None, _kill, args=(self._workers, id(self)), exitpriority=100)

    def _kill_workers(self) -> None:
        if self._worker_pids_set:
            self._worker_pids_set = False
            _kill(self._workers, id(self))


class _AsWorkersSeeIt:
    """A loader as torch's iterator reads it, with what the workers need in place of the user's objects."""

    def __init__(self, loader: Any, now: LoaderNow) -> None:
        self._loader = loader
        self.worker_init_fn = WorkerStart(loader.worker_init_fn)
        if loader.is_map_style and loader.batch_sampler is not None:
            self.dataset = WorkerDataset(MapFetch(loader.dataset, loader.collate_fn, loader.fetch_seed))
            self.collate_fn = _as_it_is
            self._index_sampler = _WithEpoch(loader.batch_sampler, now)
        elif not loader.is_map_style:
            shared = loader.for_workers()
            self.dataset = loader.stream if shared is None else shared
            if shared is not None:
                # Batches come finished, one for each turn of torch's endless sampler.
                self.collate_fn, self._auto_collation, self._index_sampler = _as_it_is, False, loader.sampler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _WithEpoch:
    """The batch sampler's batches, each with its epoch: nothing else reaches workers that outlive an epoch."""

    def __init__(self, batch_sampler: Any, now: LoaderNow) -> None:
        self._batch_sampler = batch_sampler
        self._now = now

    def __iter__(self) -> Iterator[tuple[int, list[Any]]]:
        for indices in self._batch_sampler:
            yield self._now.epoch, indices

    def __len__(self) -> int:
        return len(self._batch_sampler)


class WorkerDataset:
    """What a worker fetches from: gets (epoch, indices) and returns the finished batch."""

    def __init__(self, fetch: MapFetch) -> None:
        self.fetch = fetch
        self._told_epoch: int | None = None

    def __getitems__(self, order: tuple[int, list[Any]]) -> Any:
        epoch, indices = order
        if epoch != self._told_epoch:
            self._told_epoch = epoch
            set_epoch_of(self.fetch.dataset, epoch)
        return self.fetch(epoch, indices)


class WorkerStart:
    """First thing in a worker: ignore the signals meant for the main process, then the user's ``worker_init_fn``."""

    def __init__(self, users: Callable[[int], Any] | None) -> None:
        self.users = users
        #: The process that starts the worker, if its thread is one that stays as long as the process.
        self._parent = os.getpid() if threading.current_thread() is threading.main_thread() else None

    def __call__(self, worker: int) -> None:
        _ignore_signals()
        if os.getppid() == self._parent:
            # A worker in the midst of a fetch does not see that the main process was killed.
            end_with_parent(signal.SIGKILL)
        info = get_worker_info()
        # Whoever asks get_worker_info() for the dataset means their own; torch's record refuses plain assignment.
        if info is not None and isinstance(info.dataset, WorkerDataset):
            object.__setattr__(info, "dataset", info.dataset.fetch.dataset)
        elif info is not None and isinstance(info.dataset, StreamForWorkers):
            object.__setattr__(info, "dataset", info.dataset.source)
        if self.users is not None:
            self.users(worker)


def _ignore_signals() -> None:
    if threading.current_thread() is not threading.main_thread():
        return
    for number in _MAIN_PROCESS_SIGNALS:
        if signal.getsignal(number) is signal.SIG_IGN:
            continue
        # A handler that does nothing, and not SIG_IGN, which programs started by a dataset would inherit: terminating
        # a decoder would then do nothing. Interrupted system calls start over by themselves.
        signal.signal(number, _do_nothing)
        if hasattr(signal, "siginterrupt"):
            signal.siginterrupt(number, False)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _MAIN_PROCESS_SIGNALS)


def _do_nothing(number: int, frame: object) -> None:
    pass


@contextlib.contextmanager
def _signals_held() -> Generator[None, None, None]:
    """Signals for the main process wait until the end of the block; processes started inside hold them from birth."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _MAIN_PROCESS_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _kill(workers: list[Any], key: int) -> None:
    """SIGKILL for the workers that still run."""
    with contextlib.suppress(ValueError, KeyError):
        torch_internals.signal_handling._remove_worker_pids(key)
    for worker in workers:
        # Not `is_alive()`: it may take the exit status away from a thread that waits for it.
        if worker._popen is not None and worker._popen.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, getattr(signal, "SIGKILL", signal.SIGTERM))


def _as_it_is(batch: object) -> Any:
    return batch
