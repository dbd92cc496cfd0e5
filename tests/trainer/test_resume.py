"""A resumed run is the uninterrupted one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset

from tests.models import Plain, classification_rows, tiny_gpt2, token_rows
from trainwright import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments, get_last_checkpoint


class Dropping(Plain):
    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(F.dropout(torch.tanh(self.first(x)), 0.3, self.training))


class StopAt(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            control.should_training_stop = control.should_save = True


Build = Callable[..., Trainer]


def assert_resumes_like_straight(build: Build, stop: int) -> tuple[Trainer, Trainer]:
    """An uninterrupted run and one cut after ``stop`` steps and resumed; their weights must be the same bits."""
    straight = build("straight")
    straight.train()
    build("cut", StopAt(stop)).train()
    resumed = build("cut")
    resumed.train(resume_from_checkpoint=True)
    for name, value in straight.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name
    return straight, resumed


def losses(trainer: Trainer) -> list[tuple[int, float, float]]:
    return [(e["step"], e["loss"], e["learning_rate"]) for e in trainer.state.log_history if "loss" in e]


@pytest.mark.slow
@pytest.mark.parametrize("stop", [3, 5, 10, 13])
@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"optim": "adafactor", "lr_scheduler_type": "cosine"},
        {"optim": "sgd", "optim_args": "momentum=0.9"},
        {"bf16": True},
        {"dataloader_num_workers": 2},
        {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps", "eval_steps": 2},
    ],
    ids=["default", "adafactor", "sgd", "bf16", "workers", "plateau"],
)
def test_resume_is_bit_equal(
    make_args: Callable[..., TrainingArguments], tmp_path: Path, stop: int, extra: dict[str, Any], seed: int
) -> None:
    rows = classification_rows(38, seed=seed)
    settings = {
        "max_steps": 16,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "learning_rate": 1e-2,
        "logging_steps": 4,
        "save_strategy": "steps",
        "save_steps": 100,
        "seed": seed,
        **extra,
    }

    def build(folder: str, *callbacks: TrainerCallback) -> Trainer:
        args = make_args(**{**settings, "output_dir": str(tmp_path / folder)})
        return Trainer(Dropping().float(), args, train_dataset=rows, eval_dataset=rows[:8], callbacks=list(callbacks))

    straight, resumed = assert_resumes_like_straight(build, stop)
    assert losses(resumed) == losses(straight)
    assert resumed.state.global_step == straight.state.global_step == 16


@pytest.mark.slow
def test_resume_of_a_language_model_with_tied_weights(make_args: Callable[..., TrainingArguments]) -> None:
    rows = token_rows(12)
    args = make_args(
        max_steps=6, per_device_train_batch_size=4, save_strategy="steps", save_steps=3, learning_rate=1e-2
    )
    straight = Trainer(tiny_gpt2(), args, train_dataset=rows)
    straight.train()
    resumed = Trainer(tiny_gpt2(seed=9), args, train_dataset=rows)
    resumed.train(resume_from_checkpoint=str(Path(str(args.output_dir)) / "checkpoint-3"))
    for name, value in straight.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name
    assert resumed.state.total_flos == straight.state.total_flos > 0


class Stream(IterableDataset[Any]):
    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __iter__(self) -> Any:
        return iter(self.rows)


@pytest.mark.slow
def test_resume_on_a_stream_past_its_first_epoch(make_args: Callable[..., TrainingArguments], tmp_path: Path) -> None:
    rows = classification_rows(20)

    def build(folder: str, *callbacks: TrainerCallback) -> Trainer:
        args = make_args(
            max_steps=12,
            per_device_train_batch_size=4,
            save_strategy="steps",
            learning_rate=1e-2,
            output_dir=str(tmp_path / folder),
        )
        return Trainer(Dropping().float(), args, train_dataset=Stream(rows), callbacks=list(callbacks))

    assert_resumes_like_straight(build, 7)


@pytest.mark.slow
def test_a_loader_of_ones_own_resumes_too(make_args: Callable[..., TrainingArguments], tmp_path: Path) -> None:
    rows = classification_rows(20)

    class OwnLoader(Trainer):
        def get_train_dataloader(self) -> Any:
            return DataLoader(self.train_dataset, batch_size=4, shuffle=True, collate_fn=self.data_collator)

    def build(folder: str, *callbacks: TrainerCallback) -> Trainer:
        args = make_args(max_steps=12, save_strategy="steps", learning_rate=1e-2, output_dir=str(tmp_path / folder))
        return OwnLoader(Dropping().float(), args, train_dataset=rows, callbacks=list(callbacks))

    assert_resumes_like_straight(build, 7)


def test_early_stopping_remembers_its_patience(make_args: Callable[..., TrainingArguments]) -> None:
    args = make_args(
        max_steps=8,
        per_device_train_batch_size=4,
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=2,
        learning_rate=0.0,
        metric_for_best_model="loss",
    )
    rows = classification_rows(8)
    first = Trainer(
        Plain().float(), args, train_dataset=rows, eval_dataset=rows, callbacks=[EarlyStoppingCallback(5), StopAt(4)]
    )
    first.train()
    stopper = EarlyStoppingCallback(5)
    second = Trainer(Plain().float(), args, train_dataset=rows, eval_dataset=rows, callbacks=[stopper])
    output = second.train(resume_from_checkpoint=True)
    assert output.global_step == 6
    assert stopper.early_stopping_patience_counter == 5


def test_no_pickle_is_written(make_args: Callable[..., TrainingArguments]) -> None:
    args = make_args(max_steps=2, save_strategy="steps", save_steps=1)
    Trainer(Plain().float(), args, train_dataset=classification_rows(8)).train()
    checkpoint = get_last_checkpoint(str(args.output_dir))
    assert checkpoint is not None
    names = sorted(path.name for path in Path(checkpoint).iterdir())
    assert names == [
        "config.yaml",
        "log.json",
        "manifest.json",
        "model.safetensors",
        "optimizer.safetensors",
        "random.safetensors",
        "trainer_state.json",
        "training_state.json",
    ]
    json.loads((Path(checkpoint) / "training_state.json").read_text())


def test_bad_resume_requests_say_what_to_do(make_args: Callable[..., TrainingArguments], tmp_path: Path) -> None:
    trainer = Trainer(Plain().float(), make_args(max_steps=1), train_dataset=classification_rows(8))
    with pytest.raises(ValueError, match="holds no checkpoint"):
        trainer.train(resume_from_checkpoint=True)
    with pytest.raises(ValueError, match="not a finished checkpoint"):
        trainer.train(resume_from_checkpoint=str(tmp_path))


def test_weights_only_checkpoints_do_not_pretend_to_resume(make_args: Callable[..., TrainingArguments]) -> None:
    args = make_args(max_steps=2, save_strategy="steps", save_steps=1, save_only_model=True)
    trainer = Trainer(Plain().float(), args, train_dataset=classification_rows(8))
    trainer.train()
    with pytest.raises(ValueError, match="save_only_model"):
        trainer.train(resume_from_checkpoint=True)


@pytest.mark.slow
@pytest.mark.parametrize("streaming", [False, True])
def test_the_end_of_an_epoch_is_neither_lost_nor_done_twice(
    make_args: Callable[..., TrainingArguments], tmp_path: Path, streaming: bool
) -> None:
    """Stopped after an epoch's last step, resumed: its evaluation still happens; stopped after that, it does not."""
    rows = classification_rows(16)

    def build(folder: str, *callbacks: TrainerCallback) -> Trainer:
        args = make_args(
            max_steps=12, per_device_train_batch_size=4, eval_strategy="epoch", logging_strategy="epoch",
            save_strategy="steps", save_steps=4,
            learning_rate=1e-2, output_dir=str(tmp_path / folder),
        )  # fmt: skip
        data = Stream(rows) if streaming else rows
        return Trainer(Dropping().float(), args, train_dataset=data, eval_dataset=rows[:4], callbacks=list(callbacks))

    def evaluations(trainer: Trainer) -> list[tuple[int, float]]:
        return [(e["step"], e["eval_loss"]) for e in trainer.state.log_history if "eval_loss" in e]

    straight = build("straight")
    straight.train()
    assert [step for step, _ in evaluations(straight)] == [4, 8, 12]
    resumed = build("straight")
    resumed.train(resume_from_checkpoint=str(tmp_path / "straight" / "checkpoint-8"))
    assert evaluations(resumed) == evaluations(straight)
    assert losses(resumed) == losses(straight)

    class SaveAtEpochEnd(TrainerCallback):
        def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_save = True
            if state.global_step == 8:
                control.should_training_stop = True

    build("cut", SaveAtEpochEnd()).train()
    after = build("cut")
    after.train(resume_from_checkpoint=True)
    assert evaluations(after) == evaluations(straight)
    for name, value in straight.model.state_dict().items():
        assert torch.equal(value, after.model.state_dict()[name]), name


class NoisyStream(Stream):
    """Draws from the global generator while it is read."""

    def __iter__(self) -> Any:
        return ({**row, "x": row["x"] + torch.randn(6) * 0.1} for row in self.rows)


@pytest.mark.slow
def test_resume_on_a_stream_that_draws_random_numbers(
    make_args: Callable[..., TrainingArguments], tmp_path: Path
) -> None:
    rows = classification_rows(40)

    def build(folder: str, *callbacks: TrainerCallback) -> Trainer:
        args = make_args(
            max_steps=8,
            per_device_train_batch_size=4,
            save_strategy="steps",
            learning_rate=1e-2,
            output_dir=str(tmp_path / folder),
        )
        return Trainer(Dropping().float(), args, train_dataset=NoisyStream(rows), callbacks=list(callbacks))

    assert_resumes_like_straight(build, 5)
