"""A training that something happens to: ``launched.py FOLDER [WHAT STEP RANK]``, once; whoever starts it again goes on.

WHAT is the name of a signal that the process of that rank sends itself after that step, ``error`` for an exception,
``wait`` to wait there until there is a file ``asked``, or ``hours`` to have no time left.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.distributed.training import Noisy, Numbered, arguments
from trainwright import Trainer, TrainerCallback

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class OwnNoisy(Noisy):
    """Draws from a generator of its own, which each process has seeded differently."""

    def __init__(self) -> None:
        super().__init__()
        self.own = torch.Generator().manual_seed(100 + RANK)

    def logits(self, x: Tensor) -> Tensor:
        return super().logits(x * (torch.rand(x.shape, generator=self.own) > 0.2))


class Happens(TrainerCallback):
    """Once in the life of a folder."""

    def __init__(self, folder: Path, what: str, step: int, rank: int) -> None:
        self.mark, self.what, self.step, self.rank = folder / "happened", what, step, rank

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.what == "wait" and state.global_step >= self.step:
            (self.mark.parent / f"waits-{RANK}").touch()
            while not (self.mark.parent / "asked").exists():
                time.sleep(0.02)
            # What was sent is on its way.
            time.sleep(0.2)
        elif state.global_step == self.step and self.rank == RANK and self.what != "hours":
            self.mark.write_text(str(time.time()))
            if self.what == "error":
                raise RuntimeError("out of luck")
            os.kill(os.getpid(), getattr(signal, self.what))


def main(folder: Path, *happens: str) -> None:
    torch.set_num_threads(1)
    folder.mkdir(exist_ok=True)
    with (folder / f"attempts-{RANK}").open("a") as file:
        file.write("begun\n")
    again = (folder / "happened").exists()
    what, step, rank = (*happens, "0", "0")[:3] if happens and not again else ("", "0", "0")
    if what == "hours":
        (folder / "happened").touch()
    args = arguments(
        folder / "run",
        max_steps=20,
        save_strategy="steps",
        save_steps=3,
        resume="auto",
        max_hours=1e-9 if what == "hours" else None,
    )
    callbacks = [Happens(folder, what, int(step), int(rank))] if what else []
    model = OwnNoisy() if "OWN_GENERATOR" in os.environ else Noisy()
    trainer = Trainer(model, args, train_dataset=Numbered(44), callbacks=callbacks)
    trainer.train()
    weights = {name: value.double().tolist() for name, value in trainer.model.state_dict().items()}
    (folder / f"weights-{RANK}.json").write_text(json.dumps(weights))
    sys.stdout.flush()
    if "TRAINWRIGHT_STOP_FILE" not in os.environ:
        # On Ray the process is not ours to end.
        os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
