"""What the tests of several processes run: ``python training.py TASK FOLDER``, alone or under torchrun."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.models import Plain, classification_rows
from trainwright import Module, Trainer, TrainerCallback, TrainingArguments

WORLD = int(os.environ.get("WORLD_SIZE", "1"))
RANK = int(os.environ.get("RANK", "0"))


class Numbered:
    """Rows that know their number."""

    def __init__(self, count: int) -> None:
        self.rows = classification_rows(count)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**self.rows[index], "number": torch.tensor(index)}


class Recording(Plain):
    """Remembers which rows it was trained on; may run out of memory."""

    def __init__(self, most_rows: int = 10**9) -> None:
        super().__init__()
        self.seen: list[int] = []
        self.most_rows = most_rows

    def forward(self, x: Tensor, labels: Tensor | None = None, number: Tensor | None = None, **kwargs: Any) -> Any:
        if len(x) > self.most_rows:
            raise torch.OutOfMemoryError("CUDA out of memory (injected)")
        if self.training and number is not None:
            self.seen += number.tolist()
        return super().forward(x, labels)


class Epochs(TrainerCallback):
    """Which rows each epoch had."""

    def __init__(self) -> None:
        self.rows: list[list[int]] = []

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model = kwargs["model"]
        self.rows.append(model.seen)
        model.seen = []


def arguments(folder: Path, **more: Any) -> TrainingArguments:
    values: dict[str, Any] = {
        # The same optimizer step, whether one process has the whole batch or several share it.
        "per_device_train_batch_size": 8 // WORLD,
        "per_device_eval_batch_size": 3,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 2,
        "learning_rate": 0.01,
        "logging_steps": 1,
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
        **more,
    }
    return TrainingArguments(str(folder), **values)


def result(trainer: Trainer, **more: Any) -> dict[str, Any]:
    weights = {name: value.double().tolist() for name, value in trainer.model.state_dict().items()}
    logs = [{k: v for k, v in e.items() if "runtime" not in k and "second" not in k} for e in trainer.state.log_history]
    return {"weights": weights, "logs": logs, "steps": trainer.state.global_step, **more}


def accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def train(folder: Path, rows: int, *, resume: bool = False, **more: Any) -> dict[str, Any]:
    epochs, most = Epochs(), more.pop("most_rows", 10**9)
    trainer = Trainer(
        Recording(most),
        arguments(folder, eval_strategy="epoch", **more),
        train_dataset=Numbered(rows),
        eval_dataset=Numbered(11),
        compute_metrics=accuracy,
        callbacks=[epochs],
    )
    trainer.train(resume_from_checkpoint=resume)
    predicted = trainer.predict(Numbered(7))
    return result(trainer, seen=epochs.rows, predictions=predicted.predictions.tolist(), metrics=predicted.metrics)


def agree(folder: Path) -> dict[str, Any]:
    """Whole batches, a last one that is shared unevenly, one with a single row, one with fewer rows than processes."""
    return {str(rows): train(folder / str(rows), rows) for rows in (32, 41, 33, 5)}


def drop_last(folder: Path) -> dict[str, Any]:
    return {"43": train(folder / "drop", 43, dataloader_drop_last=True)}


def out_of_memory(folder: Path) -> dict[str, Any]:
    """Only one process runs out of memory, and only one does its step again."""
    return {"32": train(folder / "oom", 32, micro_batch="auto", most_rows=1 if RANK else 10**9)}


def resume(folder: Path) -> dict[str, Any]:
    saving = {"save_strategy": "steps", "save_steps": 2, "load_best_model_at_end": False}
    whole = train(folder / "whole", 41, **saving)
    trainer = Trainer(
        Recording(),
        arguments(folder / "whole", eval_strategy="epoch", **saving),
        train_dataset=Numbered(41),
        eval_dataset=Numbered(11),
        compute_metrics=accuracy,
    )
    trainer.train(resume_from_checkpoint=str(folder / "whole" / "checkpoint-2"))
    best = train(folder / "best", 41, **{**saving, "load_best_model_at_end": True})
    return {"whole": whole, "resumed": result(trainer), "best": best}


class Counted(Module):
    """Logs in training and in validation; some targets are left out, so batches weigh differently."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Plain()

    def training_step(self, batch: Any) -> Any:
        logits = self.model.logits(batch["x"])
        kept = batch["labels"] != -100
        hits = (logits.argmax(-1) == batch["labels"])[kept]
        self.log("hits", hits.double().mean() if len(hits) else 0.0)
        if RANK == 0:
            self.log("first_rank_only", 2.0)
        loss = F.cross_entropy(logits, batch["labels"])
        return {"loss": loss, "logits": logits, "labels": batch["labels"]}

    def configure_optimizers(self, plan: Any) -> Any:
        first = torch.optim.SGD(self.model.first.parameters(), lr=0.1)
        second = torch.optim.Adam(self.model.second.parameters(), lr=0.01)
        return [first, second], [torch.optim.lr_scheduler.OneCycleLR(second, 0.01, total_steps=plan.max_steps)]


class ByHand(Counted):
    """Two optimizers, stepped by the module."""

    automatic_optimization = False

    def training_step(self, batch: Any) -> Any:
        if not self.training:
            return super().training_step(batch)
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            loss = F.cross_entropy(self.model.logits(batch["x"]), batch["labels"])
            self.backward(loss)
            optimizer.step()
        return loss


def gaps(count: int) -> list[dict[str, Tensor]]:
    rows = classification_rows(count)
    for index in range(0, count, 3):
        rows[index]["labels"] = torch.tensor(-100)
    return rows


def modules(folder: Path) -> dict[str, Any]:
    trainer = Trainer(Counted(), arguments(folder / "counted", eval_strategy="epoch"))
    trainer.fit(train=gaps(41), val={"a": gaps(11), "b": gaps(5)})
    by_hand = Trainer(ByHand(), arguments(folder / "hand", gradient_accumulation_steps=1, num_train_epochs=1))
    # Equal parts of every batch, all with targets: a mean over processes is then the mean over the batch.
    by_hand.fit(train=classification_rows(32))
    return {"counted": result(trainer), "by_hand": result(by_hand)}


class Slow(TrainerCallback):
    """Leaves a mark after the third step, and then takes its time."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step >= 3:
            self.mark.touch()
            time.sleep(0.05)


def stoppable(folder: Path) -> dict[str, Any]:
    """Slow the first time; whoever comes again goes on where it was stopped, quickly."""
    mark = folder / f"third-step-{RANK}"
    callbacks = [] if mark.exists() else [Slow(mark)]
    args = arguments(folder / "run", max_steps=60, save_strategy="steps", save_steps=1000, resume="auto")
    trainer = Trainer(Recording(), args, train_dataset=Numbered(41), callbacks=callbacks)
    trainer.train()
    return result(trainer)


TASKS = {
    "stoppable": stoppable,
    "agree": agree,
    "modules": modules,
    "drop_last": drop_last,
    "out_of_memory": out_of_memory,
    "resume": resume,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    chosen, place = sys.argv[1], Path(sys.argv[2])
    answers = TASKS[chosen](place)
    (place / f"{chosen}-{WORLD}-{RANK}.json").write_text(json.dumps(answers))
