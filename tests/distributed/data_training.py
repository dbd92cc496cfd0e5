"""What the tests of data among several processes run: ``python data_training.py TASK FOLDER``, alone or under torchrun.

Alone, the batch of a process is as large as that of all together under torchrun.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torchmetrics
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, Sampler
from torchmetrics.utilities import dim_zero_cat

from tests.models import Plain, classification_rows
from trainwright import Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainerCallback, TrainingArguments
from trainwright.data.curriculum import StepsCurriculum

WORLD = int(os.environ.get("WORLD_SIZE", "1"))
RANK = int(os.environ.get("RANK", "0"))
#: Samples of a micro-batch over all processes.
BATCH = 4


def rows(count: int) -> list[dict[str, Any]]:
    """Rows that know their number and, as models of text have them, their length."""
    return [
        {**row, "number": torch.tensor(index), "length": 1 + index % 5}
        for index, row in enumerate(classification_rows(count, dtype=torch.float64))
    ]


class Recording(Plain):
    """Remembers the numbers of rows it was trained on."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.double()
        self.dropout = nn.Dropout(dropout)
        self.seen: list[int] = []

    def logits(self, x: Tensor) -> Tensor:
        return super().logits(self.dropout(x))

    def forward(self, x: Tensor, labels: Tensor | None = None, number: Tensor | None = None, **kwargs: Any) -> Any:
        if self.training and number is not None:
            self.seen += number.tolist()
        return super().forward(x, labels)


class Steps(TrainerCallback):
    """Which rows each step had, those of fillers left out."""

    trainer: Trainer

    def __init__(self) -> None:
        self.rows: list[tuple[int, list[int]]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model, feed = kwargs["model"], self.trainer._present_run().feed
        self.rows.append((feed.epoch, [] if feed.on_filler() else model.seen))
        model.seen = []


class Lines(IterableDataset[Any]):
    """A stream that knows nothing of processes and workers."""

    def __init__(self, count: int) -> None:
        self.rows = rows(count)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)


class Again:
    """The same, no dataset of torch's, only an object that can be iterated."""

    def __init__(self, count: int) -> None:
        self.rows = rows(count)

    def __iter__(self) -> Iterator[Any]:
        yield from self.rows


class Own(Lines):
    """Shares itself out, unevenly."""

    splits_by_process = True

    def __iter__(self) -> Iterator[Any]:
        third = len(self.rows) // 3
        return iter(self.rows if WORLD == 1 else self.rows[:third] if RANK == 0 else self.rows[third:])


class Parts(Sampler[list[int]]):
    """A user's batch sampler; its batches differ in size."""

    def __init__(self, count: int) -> None:
        starts = [0]
        while starts[-1] < count:
            starts.append(min(starts[-1] + 1 + len(starts) % 3, count))
        self.batches = [list(range(*part)) for part in pairwise(starts)]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)


class Loading:
    """A loader that somebody wrote himself."""

    def __init__(self, count: int) -> None:
        self.loader: Any = DataLoader(rows(count), batch_size=BATCH // 2)  # type: ignore[arg-type]

    def __iter__(self) -> Any:
        return iter(self.loader)


def hugging_face(count: int, shards: int) -> Any:
    import datasets

    def generate(parts: list[int]) -> Iterator[dict[str, Any]]:
        plain = rows(count)
        for part in parts:
            for row in plain[part::shards]:
                yield {name: value.tolist() if isinstance(value, Tensor) else value for name, value in row.items()}

    return datasets.IterableDataset.from_generator(generate, gen_kwargs={"parts": list(range(shards))})


def collate(samples: list[dict[str, Any]]) -> dict[str, Tensor]:
    return {
        "x": torch.stack([torch.as_tensor(sample["x"], dtype=torch.float64) for sample in samples]),
        "labels": torch.stack([torch.as_tensor(sample["labels"]) for sample in samples]),
        "number": torch.stack([torch.as_tensor(sample["number"]) for sample in samples]),
    }


def arguments(folder: Path, **more: Any) -> TrainingArguments:
    values: dict[str, Any] = {
        "per_device_train_batch_size": BATCH // WORLD,
        "per_device_eval_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 2,
        "learning_rate": 0.01,
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
        "remove_unused_columns": False,
        "report_to": "none",
        **more,
    }
    return TrainingArguments(str(folder), **values)


def whole(tensor: Any) -> Tensor:
    """``tensor`` of all processes, where each holds a part."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def train(
    folder: Path, data: Any, *, resume: Any = None, loader: Any = None, dropout: float = 0.0, **more: Any
) -> dict[str, Any]:
    steps = Steps()

    class WithLoader(Trainer):
        def get_train_dataloader(self) -> Any:
            return super().get_train_dataloader() if loader is None else loader

    trainer = WithLoader(
        Recording(dropout), arguments(folder, **more), train_dataset=data, data_collator=collate, callbacks=[steps]
    )
    steps.trainer = trainer
    trainer.train(resume_from_checkpoint=resume)
    weights = {name: whole(value).tolist() for name, value in trainer.model.state_dict().items()}
    return {"weights": weights, "steps": steps.rows}


def sharing(folder: Path) -> dict[str, Any]:
    """Data of every kind; the last rows are too few for all processes, or too few for a step."""
    some: dict[str, Any] = {"max_steps": 9}
    shared: Any = DataLoader(rows(31), batch_sampler=Parts(31), collate_fn=collate)  # type: ignore[arg-type]
    curriculum = StepsCurriculum()
    curriculum.add(rows(13), steps=3)
    curriculum.add(rows(21), steps=-1)
    one = WORLD == 1
    return {
        "stream": train(folder / "stream", Lines(33), **some),
        "workers": train(folder / "workers", Lines(33), dataloader_num_workers=0 if one else 2, **some),
        "iterable": train(folder / "iterable", Again(29), dataloader_drop_last=True, **some),
        "few": train(folder / "few", Lines(1), max_steps=3),
        "tokens": train(
            folder / "tokens", rows(45), max_tokens_per_batch=12, gradient_accumulation_steps=4 if one else 2
        ),
        "batch sampler": train(folder / "sampler", None, loader=shared, gradient_accumulation_steps=4 if one else 2),
        "own loader": train(
            folder / "own", None, loader=Loading(27), max_steps=6, gradient_accumulation_steps=4 if one else 2
        ),
        "lengths": train(folder / "lengths", rows(37), train_sampling_strategy="group_by_length"),
        "curriculum": train(folder / "curriculum", curriculum, max_steps=7),
        "drop last": train(folder / "drop", rows(37), dataloader_drop_last=True),
    }


def splitting(folder: Path) -> dict[str, Any]:
    """Streams that share themselves out: every row once an epoch, also where one process has more than another."""
    answers: dict[str, Any] = {
        # Two shards for two processes, and three, which are shared out row by row; the last one with workers.
        "shards": train(folder / "shards", hugging_face(29, 2), max_steps=8),
        "rows": train(folder / "rows", hugging_face(30, 3), max_steps=8),
        "many workers": train(folder / "workers", hugging_face(29, 4), max_steps=8, dataloader_num_workers=2),
        "own": train(folder / "itself", Own(30), max_steps=14),
    }
    # The same again, resumed in the middle of the second epoch: by the stream's state, and by reading it again.
    saved: dict[str, Any] = {"dropout": 0.3, "save_strategy": "steps", "save_steps": 1}
    for name, make, last, stop in (
        ("by state", lambda: hugging_face(29, 2), 8, 6),
        ("read again", lambda: Own(30), 14, 9),
        ("at a filler", lambda: Own(30), 14, 6),
        ("stride", lambda: Lines(33), 9, 7),
    ):
        straight = train(folder / name, make(), max_steps=last, **saved)
        resumed = train(
            folder / name, make(), max_steps=last, resume=str(folder / name / f"checkpoint-{stop}"), **saved
        )
        answers[name] = {"whole": straight, "resumed": resumed, "stop": stop}
    return answers


#: What a run that is stopped and goes on with another number of processes trains on.
KINDS: dict[str, Any] = {
    "map": lambda: rows(43),
    "drop last": lambda: rows(43),
    "tokens": lambda: rows(45),
    "stream": lambda: Lines(35),
    "sharded model": lambda: rows(43),
}


def leg(folder: Path, start: int) -> dict[str, Any]:
    """From step ``start`` to the end of a run that any number of processes may have begun."""
    answers: dict[str, Any] = {}
    for name, make in KINDS.items():
        more: dict[str, Any] = {"max_steps": 14, "save_strategy": "steps", "save_steps": 1}
        if name == "tokens":
            more |= {"max_tokens_per_batch": 12, "gradient_accumulation_steps": 4 // WORLD}
        more["dataloader_drop_last"] = name == "drop last"
        resume = str(folder / name / f"checkpoint-{start}") if start else None
        if name == "sharded model" and WORLD > 1:
            more["backend"] = "fsdp"
        answers[name] = train(folder / name, make(), resume=resume, **more)
    return answers


# ---- evaluation


class Accuracy:
    """A metric object of somebody's own: counts what it is shown, on this process."""

    def reset(self) -> None:
        self.right = self.all = 0

    def update(self, predictions: Tensor, labels: Tensor) -> None:
        self.right += int((predictions.argmax(-1) == labels).sum())
        self.all += len(labels)

    def compute(self) -> dict[str, float]:
        return {"accuracy": self.right / self.all, "rows": self.all}


class ByBatch:
    """A metric for ``batch_eval_metrics``."""

    def __init__(self) -> None:
        self.labels: list[int] = []

    def __call__(self, prediction: Any, compute_result: bool) -> dict[str, float]:
        self.labels += prediction.label_ids.tolist()
        if not compute_result:
            return {}
        found, self.labels = self.labels, []
        return {"rows": len(found), "sum": sum(label**2 for label in found)}


def accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def evaluated(folder: Path, data: Any, metric: Any, **more: Any) -> dict[str, Any]:
    trainer = Trainer(Recording(), arguments(folder, **more), data_collator=collate, compute_metrics=metric)
    metrics = trainer.evaluate(data)
    output = trainer.predict(data)
    found = {name: value for name, value in metrics.items() if "runtime" not in name and "second" not in name}
    return {
        "metrics": found,
        "predictions": None if output.predictions is None else output.predictions.tolist(),
        "labels": None if output.label_ids is None else output.label_ids.tolist(),
    }


class OwnKind(DataLoader[Any]):
    """A loader that may do things of its own, and is not rebuilt for that reason."""


def loader_of(count: int, **batching: Any) -> Any:
    return DataLoader(rows(count), collate_fn=collate, **batching)  # type: ignore[arg-type]


class Median(torchmetrics.Metric):
    """Keeps all predictions, of which each process has another number."""

    rows: Any

    def __init__(self) -> None:
        super().__init__()
        self.add_state("rows", default=[], dist_reduce_fx="cat")

    def update(self, predictions: Tensor, labels: Tensor) -> None:
        self.rows.append(predictions)

    def compute(self) -> dict[str, float]:
        rows = dim_zero_cat(self.rows)
        return {"median": float(rows.median()), "rows": len(rows)}


def torchmetric(kind: str) -> Any:
    if kind == "sum":
        return torchmetrics.MetricCollection({"accuracy": torchmetrics.classification.MulticlassAccuracy(3)})
    return Median()


def evaluating(folder: Path) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for count in (1, 2, 7, 13):
        datasets: dict[str, Any] = {
            "map": rows(count),
            "stream": Lines(count),
            "hugging face": hugging_face(count, 2),
            "loader": loader_of(count, batch_size=3),
            "batch sampler": loader_of(count, batch_sampler=Parts(count)),
            "own loader": OwnKind(rows(count), batch_size=2, collate_fn=collate),  # type: ignore[arg-type]
        }
        for name, data in datasets.items():
            answers[f"{name} {count}"] = evaluated(folder, data, accuracy)
        for name in ("map", "stream"):
            answers[f"object {name} {count}"] = evaluated(folder, datasets[name], Accuracy())
            answers[f"by batch {name} {count}"] = evaluated(folder, datasets[name], ByBatch(), batch_eval_metrics=True)
            answers[f"sum {name} {count}"] = evaluated(folder, datasets[name], torchmetric("sum"))
            answers[f"kept {name} {count}"] = evaluated(folder, datasets[name], torchmetric("kept"))
    answers["workers"] = evaluated(folder, Lines(13), accuracy, dataloader_num_workers=2 if WORLD > 1 else 0)
    answers["drop last"] = evaluated(folder, rows(13), accuracy, dataloader_drop_last=True)
    answers["longest first"] = evaluated(folder, rows(13), accuracy, train_sampling_strategy="group_by_length")
    answers["generated"] = generated(folder)
    answers["sharded model"] = {str(count): sharded_model(folder, count) for count in (1, 5)}
    return answers


def sharded_model(folder: Path, count: int) -> list[float]:
    """Losses of evaluations in a training whose model is in parts: no process may run a batch more than another."""
    more: dict[str, Any] = {} if WORLD == 1 else {"backend": "fsdp"}
    # The same whole batch on one, two and three processes.
    more["per_device_train_batch_size"] = 6 // WORLD
    losses: list[float] = []
    for data in (rows(count), Lines(count)):
        args = arguments(folder, max_steps=2, eval_strategy="steps", eval_steps=1, **more)
        trainer = Trainer(Recording(), args, train_dataset=rows(9), eval_dataset=data, data_collator=collate)
        trainer.train()
        losses += [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    return losses


def generated(folder: Path) -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(vocab_size=24, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, pad_token_id=0)
    config.decoder_start_token_id = 0
    args = Seq2SeqTrainingArguments(
        str(folder),
        predict_with_generate=True,
        generation_max_length=6,
        per_device_eval_batch_size=2,
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
    )
    trainer = Seq2SeqTrainer(T5ForConditionalGeneration(config), args)
    data = [{"input_ids": torch.arange(2, 7) + index, "labels": torch.arange(3, 7) + index} for index in range(7)]
    output = trainer.predict(data)
    return {"predictions": output.predictions.tolist(), "labels": output.label_ids.tolist()}


TASKS = {"sharing": sharing, "splitting": splitting, "evaluating": evaluating}

if __name__ == "__main__":
    torch.set_num_threads(1)
    chosen, place = sys.argv[1], Path(sys.argv[2])
    name, _, begin = chosen.partition("-")
    answers = leg(place, int(begin)) if name == "leg" else TASKS[name](place)
    (place / f"{chosen}-{WORLD}-{RANK}.json").write_text(json.dumps(answers))
    # The work is done. What torch's gloo threads do while a process ends is not what is tested.
    sys.stdout.flush()
    os._exit(0)
