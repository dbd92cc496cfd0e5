"""A training of two processes that somebody else keeps out of its folder, then lets in, then throws out.

locked.py FOLDER
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from tests.distributed.training import Noisy, Numbered, arguments
from trainwright import Trainer, TrainerCallback
from trainwright.checkpoint import run_lock
from trainwright.core.errors import RunTakenOver

RANK = os.environ["RANK"]


class Steps(TrainerCallback):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        (self.folder / f"trains-{RANK}").touch()
        time.sleep(0.02)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    run_lock.BEAT_SECONDS = 0.2
    given = arguments(folder / "run", max_steps=100_000, save_strategy="steps", save_steps=1000)
    trainer = Trainer(Noisy(), given, train_dataset=Numbered(32), callbacks=[Steps(folder)])
    try:
        trainer.train()
    except ValueError as error:
        (folder / f"refused-{RANK}").write_text(str(error))
    while not (folder / "free").exists():
        time.sleep(0.02)
    try:
        trainer.train()
    except RunTakenOver as error:
        (folder / f"out-{RANK}").write_text(str(error))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
