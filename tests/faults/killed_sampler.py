"""Trains on 24 numbered samples, killed and started again: which samples each epoch had, and the last weights."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler

from tests.faults.runner import forked
from trainwright import Trainer, TrainingArguments

COUNT, EPOCHS, KILLED_AFTER = 24, 3, 9


class Unseeded(Sampler[int]):
    """Draws its order from a generator that nobody seeded."""

    def __init__(self) -> None:
        self.rng = random.Random()

    def __len__(self) -> int:
        return COUNT

    def __iter__(self) -> Iterator[int]:
        return iter(self.rng.sample(range(COUNT), COUNT))


class Numbered:
    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": torch.tensor([index / COUNT]), "number": torch.tensor(index), "labels": torch.tensor(index % 2)}


class Noting(nn.Module):
    """Writes down which samples it was given; kills its process in the step after ``killed_after`` of them."""

    def __init__(self, file: Path, killed_after: int | None, *, seed: int) -> None:
        super().__init__()
        self.layer, self.file, self.killed_after, self.calls = nn.Linear(1, 2), file, killed_after, 0
        with torch.no_grad():
            self.layer.weight.fill_(0.5)
            self.layer.bias.fill_(0.1)
        self.generator = torch.Generator().manual_seed(seed)

    def forward(self, x: Tensor, number: Tensor) -> Tensor:
        self.calls += 1
        kept = torch.rand(x.shape, generator=self.generator) > 0.3
        if self.calls == self.killed_after:
            os.kill(os.getpid(), signal.SIGKILL)
        with self.file.open("a") as file:
            file.write(json.dumps(number.tolist()) + "\n")
        return self.layer(x * kept)


class OwnLoader(Trainer):
    def get_train_dataloader(self) -> Any:
        data: Any = Numbered()
        return DataLoader(data, batch_size=4, sampler=Unseeded(), collate_fn=self.data_collator)


def trained(folder: Path, name: str, killed_after: int | None, seed: int) -> str:
    args = TrainingArguments(
        str(folder / "run"),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=4,
        learning_rate=0.1,
        save_steps=4,
        resume="auto",
        disable_tqdm=True,
        use_cpu=True,
        log_level="error",
        save_in_background=False,
    )
    trainer = OwnLoader(Noting(folder / name, killed_after, seed=seed), args, train_dataset=Numbered())
    trainer.train()
    weights = [parameter.tolist() for parameter in trainer.model.parameters()]
    return json.dumps([trainer.state.global_step, weights])


def results(folder: Path) -> dict[str, Any]:
    """What became of the run that was killed, and of two that go on from what it left."""
    folder.mkdir(parents=True, exist_ok=True)
    code = forked(lambda: trained(folder, "first", KILLED_AFTER + 1, seed=1))
    # The same again, twice: with another seed in the script, since the state decides and not the seed.
    ends = []
    for number in (1, 2):
        kept = folder / f"copy-{number}"
        kept.mkdir()
        shutil.copytree(folder / "run", kept / "run")
        assert forked(lambda kept=kept: trained(kept, "second", None, seed=99), kept / "end") == 0
        ends.append(json.loads((kept / "end").read_text()))
    rows = [
        [json.loads(line) for line in (folder / name).read_text().splitlines()] for name in ("first", "copy-1/second")
    ]
    return {"code": code, "first": rows[0], "second": rows[1], "ends": ends}
