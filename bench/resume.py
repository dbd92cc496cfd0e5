"""How long a resumed run takes to its first new step, early and late in an epoch.

    python bench/resume.py [--rounds 5] [--steps 0 20 2000 20000] [--cost 50]

A map-style dataset of 25,000 batches whose every sample costs 50 microseconds of work. Checkpoints are real: a run of
two steps saves one, and the step and the place in the data that it names are then moved on. The clock runs from the
call of ``train(resume_from_checkpoint=...)`` to the end of the first new step; samples read until then are counted.
Step 0 is a new run, for comparison. Contenders take turns in one process; medians over the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

BATCH = 4
STEPS_IN_EPOCH = 25_000


class Tiny(nn.Module):
    """So small that only the data matters."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 2)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.layer(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Costly(Dataset[dict[str, Tensor]]):
    """Each sample takes ``microseconds`` of work to make."""

    def __init__(self, microseconds: float) -> None:
        self.x, self.label = torch.ones(8), torch.zeros((), dtype=torch.long)
        self.seconds = microseconds * 1e-6
        self.reads = 0

    def __len__(self) -> int:
        return STEPS_IN_EPOCH * BATCH

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        end = time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            pass
        self.reads += 1
        return {"x": self.x, "labels": self.label}


def _library(name: str) -> Any:
    import importlib

    return importlib.import_module(name)


def make_trainer(library: Any, folder: Path, data: Costly, last_step: int, callbacks: list[Any]) -> Any:
    args = library.TrainingArguments(
        str(folder),
        per_device_train_batch_size=BATCH,
        max_steps=last_step,
        lr_scheduler_type="constant",
        save_steps=2,
        logging_strategy="no",
        disable_tqdm=True,
        report_to="none",
        use_cpu=True,
    )
    return library.Trainer(Tiny(), args, train_dataset=data, callbacks=callbacks)


def checkpoint_of(library: Any, folder: Path, cost: float) -> Path:
    """A real checkpoint after two steps."""
    make_trainer(library, folder, Costly(cost), 2, []).train()
    return folder / "checkpoint-2"


def moved(checkpoint: Path, step: int, also: Callable[[Path, int], None]) -> Path:
    """A copy that says it was saved after ``step`` steps of the first epoch."""
    target = checkpoint.parent / f"checkpoint-{step}"
    shutil.copytree(checkpoint, target)
    path = target / "trainer_state.json"
    state = json.loads(path.read_text())
    state |= {"global_step": step, "epoch": step / STEPS_IN_EPOCH}
    path.write_text(json.dumps(state))
    also(target, step)
    return target


def move_place(checkpoint: Path, step: int) -> None:
    """trainwright keeps the place in the data apart, and seals what it writes."""
    from trainwright.checkpoint.durable import facts_of
    from trainwright.checkpoint.manifest import read_manifest, write_manifest

    path = checkpoint / "training_state.json"
    state = json.loads(path.read_text())
    state["data"] |= {"batches": step, "samples": step * BATCH}
    path.write_text(json.dumps(state))
    files = read_manifest(checkpoint)["files"]
    write_manifest(checkpoint, {name: facts_of(checkpoint / name) for name in files}, step)


#: How a checkpoint is moved on, beside its ``trainer_state.json``; transformers counts batches from ``global_step``.
CONTENDERS: dict[str, Callable[[Path, int], None]] = {
    "trainwright": move_place,
    "transformers": lambda checkpoint, step: None,
}


def first_step(library: Any, checkpoint: Path | None, step: int, cost: float) -> tuple[float, int]:
    """Seconds until the first new step is done, and samples read by then."""
    data = Costly(cost)
    seen: list[tuple[float, int]] = []

    class Watch(library.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seen.append((time.perf_counter(), data.reads))
            assert state.global_step == step + 1, "it did not go on where it was told to"
            control.should_training_stop = True

    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(library, Path(folder), data, STEPS_IN_EPOCH, [Watch()])
        began = time.perf_counter()
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    return seen[0][0] - began, seen[0][1]


def measure(folder: Path, steps: list[int], rounds: int, cost: float) -> dict[tuple[str, int], list[tuple[float, int]]]:
    checkpoints: dict[tuple[str, int], Path | None] = {}
    for name, also in CONTENDERS.items():
        original = checkpoint_of(_library(name), folder / name, cost)
        checkpoints |= {(name, step): moved(original, step, also) if step else None for step in steps}
    results: dict[tuple[str, int], list[tuple[float, int]]] = {case: [] for case in checkpoints}
    for _ in range(rounds):
        for (name, step), checkpoint in checkpoints.items():
            results[name, step].append(first_step(_library(name), checkpoint, step, cost))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, nargs="+", default=[0, 20, 2_000, 20_000])
    parser.add_argument("--cost", type=float, default=50.0, help="microseconds of work in each sample")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        results = measure(Path(folder), options.steps, options.rounds, options.cost)
    print("| resumed after step | " + " | ".join(f"{name}, s | samples read" for name in CONTENDERS) + " |")
    print("|---" * (1 + 2 * len(CONTENDERS)) + "|")
    for step in options.steps:
        cells = []
        for name in CONTENDERS:
            seconds, reads = zip(*results[name, step], strict=True)
            cells.append(f"{statistics.median(seconds):.3f} | {int(statistics.median(reads)):,}")
        print(f"| {step:,} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
