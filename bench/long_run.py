"""A run that logs every step, for a million steps: what a save costs, and what the process holds in memory.

    python bench/long_run.py [--steps 1000000] [--library trainwright|transformers]

A model of ten parameters. Five saves are made for each row, 150 steps apart: "training waits" is the time from the end
of a step to the beginning of the next one, "whole save" that until the checkpoint has its name; medians. transformers
is named to compare with; beyond 20,000 steps it takes patience.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

STEPS = (1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000)
#: Saves of which the median is taken, this many steps apart, so that one slow fsync is no result.
REPEATS, APART = 5, 150


class Tiny(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layer(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def rows() -> list[dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    return [{"x": torch.randn(4), "labels": torch.tensor(number % 2)} for number in range(512)]


def resident_megabytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def saved_seconds(folder: Path) -> dict[int, float]:
    """Seconds that each save took in the background, as the run's events say."""
    events = folder / "events.jsonl"
    found = [json.loads(line) for line in events.read_text().splitlines()] if events.is_file() else []
    return {event["step"]: event["seconds"] for event in found if event["kind"] == "saved"}


def is_saved(step: int) -> bool:
    """Return True for a row's own step and a few just before it."""
    return any(0 <= target - step < REPEATS * APART and (target - step) % APART == 0 for target in STEPS)


def measuring(base: Any, name: str, folder: Path) -> Any:
    """A callback that asks for saves and measures how long it takes until the next step begins."""

    class Measures(base):
        def __init__(self) -> None:
            self.began: float | None = None
            self.waits: dict[int, float] = {}

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if is_saved(state.global_step):
                control.should_save = True
                self.began = time.perf_counter()
            elif state.global_step - APART in STEPS:
                self.row(state.global_step - APART)

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if self.began is not None:
                self.waits[state.global_step] = time.perf_counter() - self.began
                self.began = None

        def row(self, step: int) -> None:
            aside = saved_seconds(folder)
            waits = statistics.median(self.waits.values())
            wholes = statistics.median(wait + aside.get(at, 0.0) for at, wait in self.waits.items())
            size = (folder / f"checkpoint-{step}" / "trainer_state.json").stat().st_size
            numbers = f"{1000 * waits:.1f} | {1000 * wholes:.0f} | {resident_megabytes():.0f} | {size / 1000:,.0f}"
            print(f"| {name} | {step:,} | {numbers} |", flush=True)
            self.waits = {}

    return Measures()


def train(name: str, library: Any, folder: Path, steps: int) -> None:
    args = library.TrainingArguments(
        output_dir=str(folder),
        max_steps=steps + 2 * APART,
        logging_steps=1,
        # Never by itself: the callback asks.
        save_strategy="steps",
        save_steps=10**9,
        save_total_limit=3,
        per_device_train_batch_size=1,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = library.Trainer(Tiny(), args, train_dataset=rows())
    trainer.add_callback(measuring(library.TrainerCallback, name, folder))
    trainer.remove_callback(library.PrinterCallback)
    began = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - began
    began = time.perf_counter()
    entries = sum(1 for _ in trainer.state.log_history)
    read = time.perf_counter() - began
    print(
        f"\n{name}: {1000 * seconds / steps:.2f} ms a step; {entries:,} entries of log_history read in {read:.1f} s\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--library", choices=["trainwright", "transformers"], default="trainwright")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="long-run-"))
    print("| | logged steps | training waits, ms | whole save, ms | process, MB | trainer_state.json, kB |")
    print("|---|---|---|---|---|---|", flush=True)
    try:
        train(given.library, importlib.import_module(given.library), folder / "run", given.steps)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
