"""A training for both groups of ``alaunch``: ``python -m tests.compat.accmt_asynchronous FOLDER [NAME=VALUE ...]``.

``die_at=N``: the evaluating group is killed in the evaluation of step N; ``fail_at=N``: the training fails there;
``kill_at=N``: it is killed there; ``slow=S``: each evaluation takes so many seconds.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.compat.accmt_modules import Accuracy, Latest, hyper, make, samples
from trainwright.compat.accmt import Callback, Trainer


class Random(Latest):
    """Its training draws random numbers, which an evaluation must not disturb."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 2))


class Noted(Callback):
    """Writes down who evaluates what, and ends processes where a test wants it."""

    def __init__(self, folder: Path, wanted: dict[str, str]) -> None:
        self.folder, self.wanted = folder, wanted
        self.trains = os.environ.get("ACCMT_TRAIN_GROUP") == "1"

    def on_evaluation_start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "evaluated.txt").open("a") as file:
            file.write(f"{self.state.global_step} {'training' if self.trains else 'evaluation'}\n")
        time.sleep(float(self.wanted.get("slow", 0)))
        if self._is_at("die_at") and not self.trains:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_after_optimizer_step(self, optimizer: Any) -> None:
        # The step that is under way is the next one.
        if self._is_at("kill_at"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._is_at("fail_at"):
            raise RuntimeError("the disk is on fire")

    def _is_at(self, name: str) -> bool:
        return self.state.global_step == int(self.wanted.get(name, -1))


def trained(folder: Path, wanted: dict[str, str] | None = None, **options: Any) -> Trainer:
    """A training of 21 steps with 12 evaluations, the first before any step."""
    given: dict[str, Any] = {
        "metrics": Accuracy("accuracy"),
        "evaluate_every_n_steps": 2,
        "model_saving": ["best_valid_loss", "best_accuracy", "best_train_loss", "always"],
        "shuffle_validation": True,
        "eval_when_start": True,
        "checkpoint_every": "3 evals",
        "safe_serialization": True,
        "callbacks": [Noted(folder, wanted or {})],
        **options,
    }
    torch.manual_seed(3)
    trainer = make(folder, hyper(epochs=3, batch_size=4), **given)
    trainer.fit(Random(), samples(), {"near": samples(20, 1), "far": samples(9, 2)})
    return trainer


if __name__ == "__main__":
    words = dict(word.split("=") for word in sys.argv[2:])
    trained(Path(sys.argv[1]), words, resume=None, verbose=True)
