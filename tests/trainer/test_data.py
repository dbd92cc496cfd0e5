"""Every kind of data that people bring, and what is said when it does not fit."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from tests.models import Plain, classification_rows, sentence_rows, tiny_bert, tiny_gpt2
from trainwright import Trainer, TrainerCallback, TrainingArguments

Make = Callable[..., TrainingArguments]
ROWS = classification_rows(16)
COLUMNS = {"x": [row["x"].tolist() for row in ROWS], "labels": [int(row["labels"]) for row in ROWS]}


class Mapped(Dataset[dict[str, Tensor]]):
    def __init__(self, rows: list[dict[str, Tensor]]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self.rows[index]


class Streamed(IterableDataset[dict[str, Tensor]]):
    """Shares its samples out among workers."""

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        worker = get_worker_info()
        start, step = (worker.id, worker.num_workers) if worker else (0, 1)
        yield from ROWS[start::step]


class OnlyIterates:
    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return iter(ROWS)


def table() -> datasets.Dataset:
    return datasets.Dataset.from_dict(COLUMNS)


def generated() -> Iterator[dict[str, Any]]:
    for x, label in zip(COLUMNS["x"], COLUMNS["labels"], strict=True):
        yield {"x": x, "labels": label}


def as_arrays(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "x": np.asarray(batch["x"], np.float32)}


KINDS: dict[str, Callable[[], Any]] = {
    "tuple": lambda: tuple(ROWS),
    "map-style": lambda: Mapped(ROWS),
    "iterable": Streamed,
    "only iterates": OnlyIterates,
    "datasets": table,
    "datasets with torch format": lambda: table().with_format("torch"),
    "datasets with a transform": lambda: table().with_transform(
        lambda batch: {**batch, "x": np.asarray(batch["x"], np.float32)}
    ),
    "streaming": lambda: table().to_iterable_dataset(),
    "streaming, mapped": lambda: table().to_iterable_dataset().map(lambda row: {"x": [2 * v / 2 for v in row["x"]]}),
    "streaming from a generator": lambda: datasets.IterableDataset.from_generator(generated),
}


def trained(make_args: Make, dataset: Any, **kwargs: Any) -> dict[str, Tensor]:
    defaults = {"max_steps": 6, "learning_rate": 1e-2, "per_device_train_batch_size": 4}
    args = make_args(**{**defaults, "train_sampling_strategy": "sequential", **kwargs})
    trainer = Trainer(Plain().float(), args, train_dataset=dataset)
    trainer.train()
    return trainer.model.state_dict()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_dataset_trains_and_evaluates_alike(make_args: Make, kind: str) -> None:
    expected = trained(make_args, ROWS)
    for name, value in trained(make_args, KINDS[kind]()).items():
        torch.testing.assert_close(value, expected[name], msg=f"{kind} {name}")
    model = Plain().float()
    loss = Trainer(model, make_args()).evaluate(ROWS)["eval_loss"]
    assert Trainer(model, make_args()).evaluate(KINDS[kind]())["eval_loss"] == pytest.approx(loss, rel=1e-6)
    assert Trainer(model, make_args()).predict(KINDS[kind]()).predictions.shape == (16, 3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["map-style", "datasets", "iterable"])
def test_workers_do_not_change_the_run(make_args: Make, kind: str) -> None:
    workers = 1 if kind == "iterable" else 2
    expected = trained(make_args, KINDS[kind]())
    options: dict[str, Any] = {"dataloader_num_workers": workers, "dataloader_prefetch_factor": 3}
    for persistent in (False, True):
        found = trained(make_args, KINDS[kind](), dataloader_persistent_workers=persistent, **options)
        for name, value in found.items():
            assert torch.equal(value, expected[name]), name


@pytest.mark.slow
def test_no_worker_outlives_its_run(make_args: Make) -> None:
    args = make_args(max_steps=6, dataloader_num_workers=2, dataloader_persistent_workers=True)
    trainer = Trainer(Plain().float(), args, train_dataset=ROWS, eval_dataset=ROWS)
    for work in (trainer.train, trainer.evaluate):
        work()
        assert multiprocessing.active_children() == []


def test_loader_options_reach_the_loader(make_args: Make) -> None:
    args = make_args(
        dataloader_num_workers=1,
        dataloader_prefetch_factor=5,
        dataloader_persistent_workers=True,
        dataloader_pin_memory=False,
        per_device_train_batch_size=3,
    )
    loader = Trainer(Plain().float(), args, train_dataset=ROWS).get_train_dataloader()
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (1, 5, True)
    assert loader.pin_memory is False


@pytest.mark.parametrize(("drop", "steps", "sizes"), [(False, 4, [5, 5, 5, 1]), (True, 3, [5, 5, 5])])
def test_the_last_small_batch_is_dropped_when_asked(make_args: Make, drop: bool, steps: int, sizes: list[int]) -> None:
    seen: list[int] = []

    class Note(Plain):
        def forward(self, x: Tensor, labels: Tensor | None = None, **kwargs: Any) -> dict[str, Tensor]:
            seen.append(len(x))
            return super().forward(x, labels)

    args = make_args(num_train_epochs=1, per_device_train_batch_size=5, dataloader_drop_last=drop)
    assert Trainer(Note().float(), args, train_dataset=ROWS).train().global_step == steps
    assert seen == sizes


def test_unused_columns_are_dropped_and_named(make_args: Make, caplog: pytest.LogCaptureFixture) -> None:
    dataset = table().add_column("comment", ["text"] * 16).add_column("idx", list(range(16)))  # type: ignore[call-arg]
    with caplog.at_level(logging.INFO, logger="trainwright"):
        found = trained(make_args, dataset, log_level="info")
    assert "comment" in caplog.text
    assert "idx" in caplog.text
    for name, value in trained(make_args, ROWS).items():
        torch.testing.assert_close(found[name], value)


def test_a_transform_sees_columns_that_the_model_does_not_take(make_args: Make) -> None:
    dataset = (
        table().rename_column("x", "raw").with_transform(lambda batch: {"x": batch["raw"], "labels": batch["labels"]})
    )
    expected = trained(make_args, ROWS)
    for name, value in trained(make_args, dataset).items():
        torch.testing.assert_close(value, expected[name])


@pytest.mark.parametrize("kind", ["datasets", "list"])
def test_a_dataset_is_never_emptied(make_args: Make, kind: str) -> None:
    rows = [{"text": "a", "y": 1}] * 4
    dataset = datasets.Dataset.from_list(rows) if kind == "datasets" else rows
    trainer = Trainer(Plain().float(), make_args(max_steps=1), train_dataset=dataset)
    with pytest.raises(ValueError, match=r"text, y.*remove_unused_columns=False"):
        trainer.train()


def test_all_columns_stay_when_asked(make_args: Make) -> None:
    seen: set[str] = set()

    def collate(features: list[dict[str, Any]]) -> dict[str, Tensor]:
        seen.update(features[0])
        return {key: torch.tensor([row[key] for row in features]) for key in ("x", "labels")}

    dataset = table().add_column("comment", ["text"] * 16)  # type: ignore[call-arg]
    args = make_args(max_steps=1, remove_unused_columns=False)
    Trainer(Plain().float(), args, train_dataset=dataset, data_collator=collate).train()
    assert seen == {"x", "labels", "comment"}


# ---- lengths


def sentences(count: int = 40) -> list[dict[str, list[int]]]:
    rows = []
    for index in range(count):
        length = 3 + (index * 7) % 13
        ids = [1 + (index + j) % 30 for j in range(length)]
        rows.append({"input_ids": ids, "attention_mask": [1] * length, "labels": ids})
    return rows


def pad(features: list[dict[str, list[int]]]) -> dict[str, Tensor]:
    longest = max(len(row["input_ids"]) for row in features)
    fill = {"input_ids": 0, "attention_mask": 0, "labels": -100}
    return {
        key: torch.tensor([list(row[key]) + [value] * (longest - len(row[key])) for row in features])
        for key, value in fill.items()
    }


class Shapes(TrainerCallback):
    """Collects each padded batch's shape through the collator."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, int]] = []
        self.rows: list[list[int]] = []

    def __call__(self, features: list[dict[str, list[int]]]) -> dict[str, Tensor]:
        batch = pad(features)
        self.shapes.append(tuple(batch["input_ids"].shape))  # type: ignore[arg-type]
        self.rows += [list(row["input_ids"]) for row in features]
        return batch


def test_token_budgets_are_kept_and_every_sample_is_seen_once_an_epoch(make_args: Make) -> None:
    shapes = Shapes()
    args = make_args(num_train_epochs=2, max_tokens_per_batch=48)
    trainer = Trainer(tiny_gpt2(), args, train_dataset=sentences(), data_collator=shapes)
    trainer.train()
    assert all(rows * width <= 48 for rows, width in shapes.shapes)
    assert len({rows for rows, _ in shapes.shapes}) > 2
    assert trainer.state.global_step == len(shapes.shapes)
    assert sorted(shapes.rows) == sorted([row["input_ids"] for row in sentences()] * 2)
    assert trainer.state.epoch == pytest.approx(2.0)


@pytest.mark.slow
def test_token_budgets_resume_exactly(make_args: Make, tmp_path: Path) -> None:
    class StopAt(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop = state.global_step == 15

    def run(folder: str, resume: bool = False, callbacks: list[Any] | None = None) -> Trainer:
        args = make_args(
            num_train_epochs=2, max_tokens_per_batch=48, save_strategy="steps", save_steps=5, learning_rate=1e-2,
            output_dir=str(tmp_path / folder),
        )  # fmt: skip
        trainer = Trainer(tiny_gpt2(), args, train_dataset=sentences(), data_collator=pad, callbacks=callbacks)
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    whole = run("whole")
    assert run("cut", callbacks=[StopAt()]).state.global_step == 15 < whole.state.global_step
    resumed = run("cut", resume=True)
    assert resumed.state.global_step == whole.state.global_step
    for name, value in resumed.model.state_dict().items():
        assert torch.equal(value, whole.model.state_dict()[name]), name


def test_token_budgets_weigh_targets_alike(make_args: Make) -> None:
    """One step over all samples gives the same gradient, however the budget cuts them."""

    def norm(**kwargs: Any) -> float:
        args = make_args(max_steps=1, logging_steps=1, learning_rate=0.0, **kwargs)
        trainer = Trainer(tiny_gpt2(), args, train_dataset=sentences(), data_collator=pad)
        trainer.train()
        return trainer.state.log_history[0]["grad_norm"]

    whole = norm(per_device_train_batch_size=40)
    batches = len(
        Trainer(tiny_gpt2(), make_args(max_tokens_per_batch=64), train_dataset=sentences()).get_train_dataloader()
    )
    assert norm(max_tokens_per_batch=64, gradient_accumulation_steps=batches) == pytest.approx(whole, rel=1e-5)


@pytest.mark.slow
def test_grouping_by_a_length_column_reads_no_sample(make_args: Make) -> None:
    rows = sentences()
    columns = {key: [row[key] for row in rows] for key in rows[0]} | {"length": [len(row["input_ids"]) for row in rows]}
    calls: list[int] = []

    def transform(batch: dict[str, Any]) -> dict[str, Any]:
        calls.append(len(batch["input_ids"]))
        return batch

    dataset = datasets.Dataset.from_dict(columns).with_transform(transform)
    args = make_args(train_sampling_strategy="group_by_length", per_device_train_batch_size=4, num_train_epochs=1)
    shapes = Shapes()
    trainer = Trainer(tiny_gpt2(), args, train_dataset=dataset, data_collator=shapes)
    trainer.get_train_dataloader()
    assert calls == []
    trainer.train()
    assert sum(calls) == 40
    mixed = Shapes()
    args = make_args(per_device_train_batch_size=4, num_train_epochs=1)
    Trainer(tiny_gpt2(), args, train_dataset=rows, data_collator=mixed).train()
    assert sum(n * width for n, width in shapes.shapes) < 0.9 * sum(n * width for n, width in mixed.shapes)


# ---- what cannot work is said early


def test_data_without_a_length_needs_max_steps(make_args: Make) -> None:
    for dataset in (Streamed(), table().to_iterable_dataset()):
        with pytest.raises(ValueError, match="max_steps"):
            Trainer(Plain().float(), make_args(num_train_epochs=1), train_dataset=dataset)


def test_a_stream_starts_again_until_max_steps(make_args: Make) -> None:
    trainer = Trainer(Plain().float(), make_args(max_steps=9, per_device_train_batch_size=8), train_dataset=Streamed())
    assert trainer.train().global_step == 9


@pytest.mark.parametrize("option", [{"max_tokens_per_batch": 64}, {"train_sampling_strategy": "group_by_length"}])
def test_streams_refuse_what_needs_lengths(make_args: Make, option: dict[str, Any]) -> None:
    trainer = Trainer(tiny_gpt2(), make_args(max_steps=1, **option), train_dataset=Streamed())
    with pytest.raises(ValueError, match="length"):
        trainer.train()


def test_empty_data_is_an_error_before_the_first_step(make_args: Make) -> None:
    with pytest.raises(ValueError, match="gives no batch"):
        Trainer(Plain().float(), make_args(), train_dataset=[]).train()
    args = make_args(per_device_train_batch_size=32, dataloader_drop_last=True)
    with pytest.raises(ValueError, match="dataloader_drop_last"):
        Trainer(Plain().float(), args, train_dataset=ROWS).train()


def test_a_trainer_without_data_is_built_and_refuses_only_to_work(make_args: Make) -> None:
    trainer = Trainer(Plain().float(), make_args(), compute_metrics=lambda prediction: {"n": len(prediction.label_ids)})
    with pytest.raises(ValueError, match="train_dataset="):
        trainer.train()
    with pytest.raises(ValueError, match="eval_dataset="):
        trainer.evaluate()
    assert trainer.evaluate(ROWS)["eval_n"] == 16


BASIC_TRAINING = """
from trainwright import Trainer, TrainingArguments

trainer = Trainer(
    model=model,
    args=training_args,
    train_dataset=train_dataset,
    eval_dataset=eval_dataset
)
trainer.train()
"""

CUSTOM_METRICS = """
def compute_metrics(eval_pred):
    predictions, labels = eval_pred
    # Custom metric computation
    return {"accuracy": accuracy}

trainer = Trainer(
    model=model,
    args=training_args,
    compute_metrics=compute_metrics
)
"""


def test_the_documented_examples_run_as_written(make_args: Make) -> None:
    names: dict[str, Any] = {
        "model": tiny_bert(),
        "training_args": make_args(num_train_epochs=1),
        "train_dataset": sentence_rows(16),
        "eval_dataset": sentence_rows(8),
        "accuracy": 0.75,
    }
    exec(BASIC_TRAINING, names)
    assert names["trainer"].state.global_step == 2
    exec(CUSTOM_METRICS, names)
    assert names["trainer"].evaluate(names["eval_dataset"])["eval_accuracy"] == 0.75
