"""The events fire in the order that ``core/callback.py`` and docs/architecture.md show."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trainwright.core.callback as callback_module
from tests.models import Plain, classification_rows
from trainwright import Trainer, TrainerCallback, TrainingArguments
from trainwright.core.callback import EVENTS


def recording_callback(seen: list[str]) -> Any:
    """A callback that overrides every event and writes its name down."""

    def record(event: str) -> Callable[..., None]:
        def hear(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seen.append(event)

        return hear

    return type("Recorder", (TrainerCallback,), {event: record(event) for event in EVENTS})()


def test_the_order_of_all_training_events(make_args: Callable[..., TrainingArguments]) -> None:
    seen: list[str] = []
    args = make_args(
        num_train_epochs=2,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        per_device_eval_batch_size=2,
        logging_steps=2,
        eval_strategy="epoch",
        save_strategy="epoch",
        eval_on_start=True,
    )
    trainer = Trainer(
        Plain().float(),
        args,
        train_dataset=classification_rows(8),
        eval_dataset=classification_rows(4),
        callbacks=[recording_callback(seen)],
    )
    trainer.train()
    evaluation = ["on_prediction_step", "on_prediction_step", "on_log", "on_evaluate"]
    step = ["on_step_begin", "on_substep_end", "on_pre_optimizer_step", "on_optimizer_step", "on_step_end"]
    epoch = ["on_epoch_begin", *step, *step, "on_log", "on_epoch_end", *evaluation, "on_save"]
    assert seen == ["on_init_end", "on_train_begin", *evaluation, *epoch, *epoch, "on_log", "on_train_end"]
    seen.clear()
    trainer.predict(classification_rows(4))
    assert seen == ["on_prediction_step", "on_prediction_step", "on_predict"]


def test_every_event_is_in_the_pseudocode() -> None:
    architecture = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()
    for event in EVENTS:
        assert event in (callback_module.__doc__ or "")
        assert event in architecture


@pytest.mark.parametrize("switch", ["should_epoch_stop", "should_training_stop"])
def test_a_callback_stops_an_epoch_or_the_run(make_args: Callable[..., TrainingArguments], switch: str) -> None:
    class Stop(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            setattr(control, switch, True)
            return control

    args = make_args(num_train_epochs=3, per_device_train_batch_size=2)
    trainer = Trainer(Plain().float(), args, train_dataset=classification_rows(8), callbacks=[Stop()])
    assert trainer.train().global_step == (3 if switch == "should_epoch_stop" else 1)


def test_a_callback_may_return_another_control(make_args: Callable[..., TrainingArguments]) -> None:
    from trainwright import TrainerControl

    class Replace(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            return TrainerControl(should_training_stop=state.global_step == 2)

    trainer = Trainer(
        Plain().float(), make_args(max_steps=9), train_dataset=classification_rows(8), callbacks=[Replace()]
    )
    assert trainer.train().global_step == 2


def test_switches_are_off_again_at_each_step(make_args: Callable[..., TrainingArguments]) -> None:
    found: list[tuple[bool, bool, bool]] = []

    class Look(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            found.append((control.should_log, control.should_evaluate, control.should_save))

        def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_log = True

    args = make_args(max_steps=3, per_device_train_batch_size=2, gradient_accumulation_steps=2, logging_strategy="no")
    trainer = Trainer(Plain().float(), args, train_dataset=classification_rows(8), callbacks=[Look()])
    trainer.train()
    assert found == [(False, False, False)] * 3
    assert [e["step"] for e in trainer.state.log_history if "loss" in e] == [1, 2, 3]


def test_callbacks_are_added_popped_and_removed_by_class_or_instance(
    make_args: Callable[..., TrainingArguments],
) -> None:
    class Mine(TrainerCallback):
        pass

    trainer = Trainer(Plain().float(), make_args(), train_dataset=classification_rows(4))
    trainer.add_callback(Mine)
    popped = trainer.pop_callback(Mine)
    assert isinstance(popped, Mine)
    assert trainer.pop_callback(Mine) is None
    trainer.add_callback(popped)
    trainer.remove_callback(popped)
    assert popped not in trainer.callback_handler.callbacks
