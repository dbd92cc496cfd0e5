"""How long a run's first checkpoint keeps training waiting, next to the later ones.

    python bench/first_save.py [--steps 16] [--every 4] [--width 1024] [--layers 95]

The model of bench/checkpoint.py in a real run on the CPU. "Stall" is the call that saves, and what updates wait for its
copy. Where saves follow each other faster than the disk writes, a save waits for the one before, too.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
logging.disable(logging.WARNING)

import torch

from bench.checkpoint import BATCH, Tower
from trainwright import Trainer, TrainingArguments
from trainwright.checkpoint.saver import Saver
from trainwright.training.actions import TrainingActions


def stalls(options: argparse.Namespace) -> list[float]:
    """Seconds of each save."""
    found: list[float] = []
    save, wait = TrainingActions.save, Saver.wait_for_copy

    # From inside: a callback that listens to saves would be waited for.
    def timed_save(self: Any, run: Any) -> None:
        began = time.perf_counter()
        save(self, run)
        found.append(time.perf_counter() - began)

    def timed_wait(self: Any) -> None:
        began = time.perf_counter()
        wait(self)
        if found:
            found[-1] += time.perf_counter() - began

    TrainingActions.save, Saver.wait_for_copy = timed_save, timed_wait  # type: ignore[method-assign]
    rows = [{"x": torch.randn(options.width), "labels": torch.zeros(())} for _ in range(BATCH * options.steps)]
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder,
            max_steps=options.steps,
            save_steps=options.every,
            save_total_limit=1,
            per_device_train_batch_size=BATCH,
            use_cpu=True,
            disable_tqdm=True,
            logging_strategy="no",
            report_to="none",
        )
        Trainer(Tower(options.width, options.layers), args, train_dataset=rows).train()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("steps", 16), ("every", 4), ("width", 1024), ("layers", 95)):
        parser.add_argument(f"--{name}", type=int, default=value)
    print("stall of each save, seconds:", *(f"{seconds:.3f}" for seconds in stalls(parser.parse_args())))


if __name__ == "__main__":
    main()
