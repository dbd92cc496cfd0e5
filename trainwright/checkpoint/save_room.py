"""Room for a run's checkpoints, touched before the first of them needs it.

Memory that is touched for the first time comes from the kernel page by page, zeroed: 1.2 GB take 0.5 to 2 seconds, in
which the first save would keep training waiting. So the room is made after a run's first step and touched by a thread
while the next steps run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from torch import Tensor

from trainwright.core.main_memory import available_memory

#: Below this the first save takes a few hundredths of a second longer, which is not worth a thread.
SMALLEST = 64 * 2**20
#: What others may want meanwhile.
_LEFT_FREE = 2**30
_PAGE = 4096
#: Touched between two looks whether to stop: some ten milliseconds.
_PIECE = 32 * 2**20


def there_is_room(size: int, available: Callable[[], int | None] = available_memory) -> bool:
    """Whether ``size`` bytes may be taken now that the first save would take anyway: twice as much must be free."""
    free = available()
    return free is not None and free >= 2 * size + _LEFT_FREE


class RoomToucher:
    """A thread that touches memory which nobody uses yet; ``stop`` before anybody does."""

    def __init__(self, rooms: Sequence[Tensor]) -> None:
        self._rooms = rooms
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._touch, name="trainwright-save-room", daemon=True)

    def start(self) -> bool:
        """Return False where the system gives no more threads: then the first save touches it."""
        try:
            self._thread.start()
        except RuntimeError:
            return False
        return True

    def stop(self) -> None:
        """End at the next piece; what was touched stays so."""
        self._is_over.set()
        self._thread.join()

    def wait(self) -> None:
        """Until all is touched."""
        self._thread.join()

    def _touch(self) -> None:
        for room in self._rooms:
            for start in range(0, len(room), _PIECE):
                if self._is_over.is_set():
                    return
                # One byte of each page. torch lets go of Python's lock meanwhile.
                room[start : start + _PIECE : _PAGE].zero_()
