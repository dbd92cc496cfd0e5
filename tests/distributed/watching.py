"""Trainings that are watched: ``watching.py TASK FOLDER``, in two or three processes; see ``test_watching.py``."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.distributed.training import Noisy, Numbered, Recording, arguments
from trainwright import Trainer, TrainerCallback
from trainwright.core.errors import DivergedError

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class At(TrainerCallback):
    """Does something after a step, in one process."""

    def __init__(self, step: int, rank: int, act: Any) -> None:
        self.step, self.rank, self.act = step, rank, act

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step and self.rank == RANK:
            self.act(kwargs["model"])


def stop_myself(model: Any) -> None:
    # So that there is a sign of life from here.
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGSTOP)


def flip_a_bit(model: Any) -> None:
    with torch.no_grad():
        weights = list(model.parameters())[1]
        bits = weights.data.view(torch.int32 if weights.element_size() == 4 else torch.int64)
        bits.view(-1)[0] ^= 1


class Sleepy(Numbered):
    """Rows that one process waits for: for ever once, or a little each time."""

    def __init__(self, rows: int, *, seconds: float, after: int = 0) -> None:
        super().__init__(rows)
        self.seconds, self.after, self.given = seconds, after, 0

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        self.given += 1
        if RANK == 1 and self.given > self.after:
            self.sleep_in_the_dataset()
        return super().__getitem__(index)

    def sleep_in_the_dataset(self) -> None:
        time.sleep(self.seconds)


def hangs(folder: Path, rank: int | None) -> None:
    """One process stops itself, or never gets its data; the rest is up to the watchdogs."""
    callbacks = [] if rank is None else [At(4, rank, stop_myself)]
    rows = Sleepy(64, seconds=600, after=12) if rank is None else Numbered(64)
    args = arguments(folder / "run", max_steps=1000, watchdog_seconds=1.0, watchdog_exit=True)
    Trainer(Noisy(), args, train_dataset=rows, callbacks=callbacks).train()


def slow(folder: Path) -> None:
    """Rank 1 takes its time for every row; what is logged, and what files there are while it runs and afterwards."""
    token = "hunter2hunter2"
    os.environ["SOME_API_TOKEN"] = token
    seen: dict[str, list[str]] = {}

    def look(model: Any) -> None:
        logging.getLogger("trainwright").warning("process %d with %s", RANK, token)
        seen["ranks"] = sorted(path.name for path in (folder / "run/ranks").glob("*.json"))

    logged: list[dict[str, Any]] = []

    class Heard(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            logged.append(dict(kwargs["logs"]))

    args = arguments(folder / "run", max_steps=6, logging_steps=2, log_level="info")
    trainer = Trainer(Noisy(), args, train_dataset=Sleepy(64, seconds=0.05), callbacks=[At(3, RANK, look), Heard()])
    trainer.train()
    handlers = len(logging.getLogger("trainwright").handlers)
    answer = {"logged": logged, "history": trainer.state.log_history, "seen": seen, "handlers": handlers}
    (folder / f"slow-{RANK}.json").write_text(json.dumps(answer))


def diverged(folder: Path) -> None:
    """The weights of the last rank are changed after step 5; compared every 4 steps."""
    args = arguments(folder / "run", max_steps=20, save_strategy="steps", save_steps=4, check_weights_every=4)
    trainer = Trainer(Recording(), args, train_dataset=Numbered(48), callbacks=[At(5, WORLD - 1, flip_a_bit)])
    try:
        trainer.train()
        found = None
    except DivergedError as error:
        found = str(error)
    again = Trainer(Recording(), args, train_dataset=Numbered(48))
    again.train(resume_from_checkpoint=str(folder / "run/checkpoint-4"))
    answer = {"error": found, "step": trainer.state.global_step, "again": again.state.global_step}
    (folder / f"diverged-{RANK}.json").write_text(json.dumps(answer))


TASKS: dict[str, Any] = {
    "frozen-0": lambda folder: hangs(folder, 0),
    "frozen-1": lambda folder: hangs(folder, 1),
    "no-data": lambda folder: hangs(folder, None),
    "slow": slow,
    "diverged": diverged,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    TASKS[sys.argv[1]](Path(sys.argv[2]))
    sys.stdout.flush()
    os._exit(0)
