"""Callbacks of a Trainer as scripts for transformers look at, remove and resume them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers

from tests.models import Plain, classification_rows
from trainwright import ExportableState, Trainer, TrainerCallback, TrainingArguments

Make = Callable[..., TrainingArguments]
ROWS: Any = classification_rows(16)


class Counts(TrainerCallback, ExportableState):
    """Counts steps, and keeps the count in checkpoints."""

    def __init__(self) -> None:
        self.count = 0

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.count += 1

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"count": self.count}}


def names(trainer: Any) -> list[str]:
    return sorted(type(callback).__name__ for callback in trainer.callback_handler.callbacks)


def test_the_list_of_callbacks_is_that_of_transformers(make_args: Make, tmp_path: Path) -> None:
    during: list[list[str]] = []

    class Looks(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            during.append(names(ours))

    theirs_args = transformers.TrainingArguments(str(tmp_path), report_to="none", disable_tqdm=True)
    theirs = transformers.Trainer(Plain().float(), theirs_args, callbacks=[Looks()])  # type: ignore[list-item]
    ours = Trainer(Plain().float(), make_args(max_steps=1), train_dataset=ROWS, callbacks=[Looks()])
    assert names(ours) == names(theirs)
    ours.train()
    assert during == [names(theirs)]
    assert (tmp_path / "run" / "metrics.jsonl").is_file()


def test_callbacks_are_removed_as_transformers_removes_them(make_args: Make, tmp_path: Path) -> None:
    theirs_args = transformers.TrainingArguments(str(tmp_path), report_to="none")
    for trainer in (
        Trainer(Plain().float(), make_args()),
        transformers.Trainer(Plain().float(), theirs_args),
    ):
        first, second = Counts(), Counts()
        trainer.add_callback(first)  # type: ignore[arg-type]
        trainer.add_callback(second)  # type: ignore[arg-type]
        assert trainer.pop_callback(TrainerCallback if isinstance(trainer, Trainer) else object) is not None  # type: ignore[arg-type]
        assert trainer.pop_callback(Counts) is first  # type: ignore[arg-type]
        trainer.remove_callback(second)  # type: ignore[arg-type]
        assert trainer.pop_callback(second) is None  # type: ignore[arg-type]
        assert trainer.pop_callback(Counts) is None  # type: ignore[arg-type]
        trainer.remove_callback(Counts)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="not in"):
            trainer.remove_callback(second)  # type: ignore[arg-type]


def test_two_callbacks_of_a_class_are_pointed_out(make_args: Make, caplog: pytest.LogCaptureFixture) -> None:
    trainer = Trainer(Plain().float(), make_args(), callbacks=[Counts()])
    trainer.add_callback(Counts)
    assert "There are now two callbacks of class Counts" in caplog.text


def test_a_resume_names_callbacks_that_are_missing_and_those_without_a_state(
    make_args: Make, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    Trainer(Plain().float(), make_args(**settings), train_dataset=ROWS, callbacks=[Counts()]).train()
    checkpoint = str(tmp_path / "run" / "checkpoint-1")
    Trainer(Plain().float(), make_args(**settings), train_dataset=ROWS).train(checkpoint)
    assert "The checkpoint holds the state of Counts, which this run does not have" in caplog.text
    caplog.clear()
    both = [Counts(), Counts()]
    Trainer(Plain().float(), make_args(**settings), train_dataset=ROWS, callbacks=both).train(checkpoint)
    assert [callback.count for callback in both] == [2, 1]
    assert "The checkpoint holds the state of 1 Counts, and this run has 2" in caplog.text


def test_a_subclass_loads_the_state_of_callbacks_in_its_own_way(make_args: Make, tmp_path: Path) -> None:
    class Own(Trainer):
        def _load_callback_state(self) -> None:
            super()._load_callback_state()
            counts.count += 100

    settings: dict[str, Any] = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    Trainer(Plain().float(), make_args(**settings), train_dataset=ROWS, callbacks=[Counts()]).train()
    counts = Counts()
    trainer = Own(Plain().float(), make_args(**settings), train_dataset=ROWS, callbacks=[counts])
    trainer.train(str(tmp_path / "run" / "checkpoint-1"))
    assert counts.count == 102


@pytest.mark.parametrize(("level", "shown"), [("info", True), ("warning", False), ("passive", False)])
def test_the_training_is_announced_at_the_level_that_asks_for_it(
    make_args: Make, caplog: pytest.LogCaptureFixture, level: str, shown: bool
) -> None:
    caplog.set_level(logging.INFO, "trainwright")
    args = make_args(max_steps=3, per_device_train_batch_size=4, gradient_accumulation_steps=2, log_level=level)
    Trainer(Plain().float(), args, train_dataset=ROWS).train()
    said = [record.message for record in caplog.records]
    assert ("***** Running training *****" in said) == shown
    if shown:
        expected = [
            "  Num examples = 16", "  Num Epochs = 2", "  Num update steps per epoch = 2",
            "  Instantaneous batch size per device = 4",
            "  Total train batch size (w. parallel, distributed & accumulation) = 8",
            "  Gradient Accumulation steps = 2", "  Total optimization steps = 3",
            "  Number of trainable parameters = 83",
        ]  # fmt: skip
        assert [line for line in said if line.startswith("  ")] == expected
