"""Which of several processes this one is, in Accelerate's words."""

from __future__ import annotations

from abc import ABC, abstractmethod


class ProcessNumbers(ABC):
    """What follows from three numbers, for objects that stand in for Accelerate's ``Accelerator``."""

    @property
    @abstractmethod
    def num_processes(self) -> int: ...

    @property
    @abstractmethod
    def process_index(self) -> int: ...

    @property
    @abstractmethod
    def local_process_index(self) -> int: ...

    @property
    def is_main_process(self) -> bool:
        return self.process_index == 0

    @property
    def is_local_main_process(self) -> bool:
        return self.local_process_index == 0

    @property
    def is_last_process(self) -> bool:
        return self.process_index == self.num_processes - 1

    @property
    def use_distributed(self) -> bool:
        return self.num_processes > 1
