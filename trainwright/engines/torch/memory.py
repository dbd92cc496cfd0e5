"""Memory: what a stage used, what is held now, and whether there was too little."""

from __future__ import annotations

import contextlib
import gc
from pathlib import Path

import torch


def resident_bytes() -> int:
    """Memory of this process that is in RAM; 0 where the system does not tell."""
    return _status_bytes("VmRSS")


def peak_resident_bytes() -> int:
    """The most memory this process had in RAM since :func:`forget_peak`."""
    return _status_bytes("VmHWM")


def forget_peak() -> None:
    """Start a new peak, so that a stage is not charged with what an earlier one needed."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _status_bytes(name: str) -> int:
    """A line such as ``VmRSS:   1234 kB`` of Linux's account of this process."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return 0


#: What torch's allocators and the libraries under them say when memory is short.
_TOO_LITTLE = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` says that there was not enough memory, of a device or of this machine.

    >>> is_out_of_memory(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: tried 64 bytes"))
    True
    """
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _TOO_LITTLE)


def release_memory(device: torch.device) -> None:
    """Give back what nobody holds any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


class MemoryReport:
    """``skip_memory_metrics=False``: how much each of init, train, evaluate and predict allocated.

    The keys are HF's: ``<stage>_mem_cpu_alloc_delta`` is what stayed, ``..._peaked_delta`` what was needed on top for a
    while; the same with ``gpu``.
    """

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self._stages: dict[str, tuple[int, int]] = {}
        self._init: dict[str, int] = {}

    def start(self, stage: str) -> None:
        """Begin to watch ``stage``; an evaluation inside training belongs to training, as in HF."""
        if not self.enabled or self._stages:
            return
        gc.collect()
        forget_peak()
        gpu = 0
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
            gpu = torch.cuda.memory_allocated()
        self._stages[stage] = (resident_bytes(), gpu)

    def stop(self, stage: str) -> dict[str, int]:
        """Metrics of ``stage``; those of ``init`` come with the first one after it. Empty when switched off."""
        if not self.enabled or stage not in self._stages:
            return {}
        cpu_before, gpu_before = self._stages.pop(stage)
        cpu_peak = peak_resident_bytes()
        gc.collect()
        cpu = resident_bytes()
        metrics = {
            f"{stage}_mem_cpu_alloc_delta": cpu - cpu_before,
            f"{stage}_mem_cpu_peaked_delta": max(0, cpu_peak - max(cpu, cpu_before)),
        }
        if torch.cuda.is_available():
            gpu = torch.cuda.memory_allocated()
            metrics[f"{stage}_mem_gpu_alloc_delta"] = gpu - gpu_before
            metrics[f"{stage}_mem_gpu_peaked_delta"] = max(0, torch.cuda.max_memory_allocated() - gpu)
        if stage == "init":
            self._init = {"before_init_mem_cpu": cpu_before, **metrics}
            return {}
        metrics, self._init = self._init | metrics, {}
        return metrics
