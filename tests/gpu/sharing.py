"""What two processes on one GPU run: ``python sharing.py WAY FOLDER``, alone or under torchrun."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from tests.models import tiny_llama, token_rows
from trainwright import Trainer, TrainingArguments

WORLD, RANK = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))


def sums(trainer: Trainer) -> list[float]:
    every = [t.full_tensor() if hasattr(t, "full_tensor") else t for t in trainer.model.parameters()]
    return [float(t.double().sum()) for t in every]


def train(folder: Path, way: str, resume: Any = None) -> Trainer:
    args = TrainingArguments(
        str(folder / f"{way}-run-{WORLD}"),
        max_steps=6,
        per_device_train_batch_size=8 // WORLD,
        gradient_accumulation_steps=2,
        save_strategy="steps",
        save_steps=2,
        disable_tqdm=True,
        ddp_backend="gloo" if WORLD > 1 else None,
        backend=way if WORLD > 1 else None,
    )
    torch.manual_seed(0)
    trainer = Trainer(tiny_llama(), args, train_dataset=token_rows(64))
    trainer.train(resume_from_checkpoint=resume)
    return trainer


if __name__ == "__main__":
    way, place = sys.argv[1], Path(sys.argv[2])
    trainer = train(place, way)
    last = sums(trainer)
    first = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry][:1]
    resumed = sums(train(place, way, str(place / f"{way}-run-{WORLD}" / "checkpoint-4")))
    if RANK == 0:
        answer = {"first": first, "last": last, "resumed": resumed}
        (place / f"{way}-{WORLD}.json").write_text(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)
