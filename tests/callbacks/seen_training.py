"""A short training for a real terminal: ``python seen_training.py <folder> [stop|fail|slow]``."""

from __future__ import annotations

import logging
import sys
import time
import warnings
from typing import Any

import torch

from tests.models import Plain, classification_rows
from trainwright import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments

logging.basicConfig(format="%(name)s says %(message)s")
torch.set_num_threads(1)


class Talks(TrainerCallback):
    """Does what users' code does while a panel is shown."""

    def __init__(self, fails: bool, seconds: float) -> None:
        self.fails, self.seconds = fails, seconds

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        time.sleep(self.seconds)
        if state.global_step == 10:
            print("printed at step 10")
            print("to stderr at step 10", file=sys.stderr)
        if state.global_step == 12:
            logging.getLogger("somebody").warning("logged at step 12")
        if state.global_step == 14:
            warnings.warn("warned at step 14", stacklevel=1)
        if self.fails and state.global_step == 16:
            raise RuntimeError("the user's own mistake")


def main(folder: str, how: str = "") -> None:
    """Train for a second and a half."""
    args = TrainingArguments(
        folder,
        num_train_epochs=3,
        per_device_train_batch_size=4,
        logging_steps=4,
        eval_strategy="steps",
        eval_steps=8,
        save_steps=8,
        save_total_limit=1,
        metric_for_best_model="accuracy",
        learning_rate=0.0 if how == "stop" else 1e-2,
        use_cpu=True,
        report_to="none",
    )
    rows = classification_rows(32)
    callbacks: list[Any] = [Talks(how == "fail", 0.4 if how == "slow" else 0.06)]
    if how == "stop":
        callbacks.append(EarlyStoppingCallback(1))
    measure = lambda found: {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())}  # noqa: E731
    Trainer(Plain(), args, train_dataset=rows, eval_dataset=rows, compute_metrics=measure, callbacks=callbacks).train()


if __name__ == "__main__":
    main(*sys.argv[1:])
