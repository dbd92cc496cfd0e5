"""Workers of a loader that die: said in words, and only where the main thread can be left.

torch's handler of SIGCHLD raises in the main thread wherever it happens to be: in the midst of an update, or in the
save that is to rescue the run. While a training runs it may do so only where the main thread waits for workers;
elsewhere the error is kept until the loop comes to a place that may be left.

Relies on these internals of torch (2.10 to 2.13): ``_utils.signal_handling._set_SIGCHLD_handler``, which sets a handler
once for the whole process; what its error says; and the waits of ``_MultiProcessingDataLoaderIter``, for a batch in
``_try_get_data`` and for the end of its workers in ``_shutdown_workers``.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any

from torch.utils.data._utils import signal_handling
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

#: Where nothing but an error may bring the main thread on: a worker may have died with half a batch written or a lock.
_WAITS = (
    _MultiProcessingDataLoaderIter._try_get_data.__code__,
    _MultiProcessingDataLoaderIter._shutdown_workers.__code__,
)
_SAID = re.compile(r"\(pid (?P<pid>\d+)\) is killed by signal: (?P<words>[^.]+)\.")
_NUMBERS = {signal.strsignal(number): number.value for number in signal.Signals}
#: What usually lies behind a signal that nobody sent on purpose.
_CAUSES = {
    "SIGKILL": "as the kernel does when the machine runs short of memory: use fewer workers (dataloader_num_workers), "
    "let them read less ahead (dataloader_prefetch_factor), or keep less in the dataset",
    "SIGBUS": "which is what a full /dev/shm does to those who share batches through it: make it larger, or use fewer "
    "workers (dataloader_num_workers)",
    "SIGSEGV": "by a fault in compiled code that the dataset or the collator uses",
}


class WorkerDied(RuntimeError):
    """A worker process of a data loader is gone before its work was done."""


def death_in_words(workers: Sequence[Any]) -> str:
    """Say what became of worker processes that are gone."""
    return "; ".join(_one_in_words(worker.pid, worker.exitcode) for worker in workers)


def said_of_death(error: BaseException) -> str | None:
    """Put what torch's handler says of a death into our words; None if the error is about something else."""
    found = _SAID.search(str(error))
    number = None if found is None else _NUMBERS.get(found["words"])
    return None if found is None or number is None else _one_in_words(found["pid"], -number)


def _one_in_words(pid: int | str, code: int | None) -> str:
    which = f"A worker of the data loader (pid {pid})"
    if code is None or code >= 0:
        return (
            f"{which} ended by itself with exit code {code}: something in the dataset or the collator ends processes."
        )
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    cause = _CAUSES.get(name)
    return f"{which} was killed by {name}" + (f", {cause}." if cause else ".")


class DeferredDeaths:
    """A context in which the death of a worker waits until it may be raised.

    >>> with DeferredDeaths() as deaths:
    ...     deaths.error is None
    True
    """

    def __init__(self) -> None:
        #: The death that is to be raised at the next place where the loop may be left.
        self.error: RuntimeError | None = None
        self._torchs: Any = None

    def __enter__(self) -> DeferredDeaths:
        if hasattr(signal, "SIGCHLD") and threading.current_thread() is threading.main_thread():
            # torch sets it once, when the first worker is started: it must not come after ours.
            signal_handling._set_SIGCHLD_handler()
            before = signal.getsignal(signal.SIGCHLD)
            if callable(before):
                self._torchs = before
                signal.signal(signal.SIGCHLD, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        if self._torchs is not None and signal.getsignal(signal.SIGCHLD) == self._note:
            signal.signal(signal.SIGCHLD, self._torchs)

    def _note(self, number: int, frame: FrameType | None) -> None:
        try:
            self._torchs(number, frame)
        except RuntimeError as error:
            if _waits_for_workers(frame):
                raise
            self.error = error

    def raise_it(self) -> None:
        """Raise the death that was kept."""
        error, self.error = self.error, None
        assert error is not None
        raise WorkerDied(said_of_death(error) or str(error)) from None


def _waits_for_workers(frame: FrameType | None) -> bool:
    """Return True where the main thread has nothing else to do."""
    while frame is not None:
        if frame.f_code in _WAITS:
            return True
        frame = frame.f_back
    return False
