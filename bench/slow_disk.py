"""How long a run takes to save and leave after SIGTERM where the disk takes its time.

    python bench/slow_disk.py [--seconds 2.0]

Every fsync takes ``--seconds`` longer than it does here, as on a busy network drive; several at once take no longer
than one. Printed are the fsyncs of the checkpoint, the seconds from the signal to the end of ``train()``, and what they
would be one after the other.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")
logging.disable(logging.ERROR)

import torch
from torch import nn

from trainwright import Preempted, Trainer, TrainerCallback, TrainingArguments
from trainwright.core import fsync


class SlowDisk:
    """``os`` with an fsync that takes a while."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.calls, self._lock = seconds, 0, threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def fsync(self, descriptor: int) -> None:
        with self._lock:
            self.calls += 1
        os.fsync(descriptor)
        time.sleep(self.seconds)


class Stop(TrainerCallback):
    """Sends the signal that schedulers send, after the third step."""

    sent = 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 3:
            self.sent = time.monotonic()
            signal.raise_signal(signal.SIGTERM)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=2.0)
    seconds = parser.parse_args().seconds
    rows = [{"input": torch.randn(4), "labels": torch.tensor(i % 2)} for i in range(64)]
    stop, disk = Stop(), SlowDisk(seconds)
    with tempfile.TemporaryDirectory() as place:
        args = TrainingArguments(place, max_steps=8, save_steps=100, disable_tqdm=True, use_cpu=True, report_to="none")
        trainer = Trainer(nn.Linear(4, 2), args, train_dataset=rows, callbacks=[stop])
        fsync.os = disk  # type: ignore[assignment]
        with contextlib.suppress(Preempted):
            trainer.train()
        took = time.monotonic() - stop.sent
        assert (Path(place) / "checkpoint-3/manifest.json").is_file()
    print(f"{disk.calls} fsyncs of {seconds:g} s more each: saved and left within {took:.1f} s of the signal")
    print(f"one after the other: {disk.calls * seconds:.1f} s")


if __name__ == "__main__":
    main()
