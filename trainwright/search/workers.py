"""Several workers on one machine: a process for each, which takes trials from the study until none is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from trainwright.config.errors import ConfigError
from trainwright.launch.processes import stop_seconds

#: What a worker that was asked to stop, and has saved, ends with.
_STOPPED = 75


class Workers:
    """The processes, from their start until all have ended; left by an error or a signal, they save and stop.

    Args:
        description: What ``worker.main`` reads: the experiment, the sweep's folder and so on. It goes through a pipe,
            since it may hold secrets.
        folder: Where each writes what it says, into ``worker-0.log`` and so on.
        count: How many.
    """

    def __init__(self, description: dict[str, Any], folder: Path, count: int) -> None:
        self._description, self._folder, self._count = description, folder, count
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Workers:
        text = json.dumps(self._description).encode()
        devices = _devices(self._count)
        for number in range(self._count):
            command = [sys.executable, "-P", "-m", "trainwright.search.worker"]
            with self._log(number).open("ab") as log:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **devices[number]},
                    # Ctrl-C in a terminal reaches this process, which hands it on once.
                    start_new_session=True,
                )
            self._processes.append(process)
            assert process.stdin is not None
            try:
                process.stdin.write(text)
                process.stdin.close()
            except BrokenPipeError:
                # It has ended already; its log says why.
                pass
        return self

    def are_running(self) -> bool:
        return any(process.poll() is None for process in self._processes)

    def check(self) -> None:
        """An error where none of them came to its end as it should."""
        codes = [process.wait() for process in self._processes]
        if codes and all(code != 0 for code in codes):
            last = self._log(0).read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            raise ConfigError(f"All workers failed: {''.join(last)} (all of it is in {self._log(0)}).")

    def _log(self, number: int) -> Path:
        return self._folder / f"worker-{number}.log"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            for process in self._processes:
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(None if kind is None else stop_seconds())
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _devices(count: int) -> Sequence[dict[str, str]]:
    """Which GPUs each worker sees: its share of them, or one that it has together with others."""
    found = torch.cuda.device_count()
    if found < 2:
        return [{} for _ in range(count)]
    names = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(found)))).split(",")[:found]
    share = max(1, found // count)
    starts = [number * share % found for number in range(count)]
    return [{"CUDA_VISIBLE_DEVICES": ",".join(names[start : start + share])} for start in starts]
