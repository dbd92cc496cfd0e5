"""Early stopping, and callbacks of transformers on our Trainer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.models import Plain, classification_rows
from trainwright import EarlyStoppingCallback, Trainer, TrainerControl, TrainerState, TrainingArguments

MakeArgs = Callable[..., TrainingArguments]


def scripted(make_args: MakeArgs, losses: Sequence[float], callback: Any, **kwargs: Any) -> Trainer:
    """A trainer that evaluates every step and gets ``losses`` for it."""
    coming = iter(losses)

    class Scripted(Trainer):
        def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
            metrics = {"eval_loss": next(coming)}
            self.callback_handler.call_event("on_evaluate", self.args, self.state, self.control, metrics=metrics)
            return metrics

    arguments = {
        "max_steps": len(losses),
        "eval_strategy": "steps",
        "eval_steps": 1,
        "metric_for_best_model": "loss",
        "greater_is_better": False,
        **kwargs,
    }
    rows = classification_rows(16)
    args = make_args(**arguments)
    return Scripted(Plain(), args, train_dataset=rows, eval_dataset=rows, callbacks=[callback])


def ours(**kwargs: Any) -> Any:
    return EarlyStoppingCallback(**kwargs)


def theirs(**kwargs: Any) -> Any:
    import transformers

    return transformers.EarlyStoppingCallback(**kwargs)


@pytest.mark.parametrize("make", [ours, theirs])
@pytest.mark.parametrize(
    ("losses", "patience", "threshold", "steps"),
    [
        ([5, 4, 3, 2, 1], 1, 0.0, 5),
        ([5, 4, 4, 3, 2], 1, 0.0, 3),
        ([5, 4, 4, 3, 3, 3, 1], 2, 0.0, 6),
        ([5, 4.9, 4.8, 4.7], 2, 0.5, 3),
        ([1, float("nan"), float("nan"), 0.5], 2, 0.0, 3),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_training_stops_after_patience_evaluations(
    make_args: MakeArgs, make: Callable[..., Any], losses: list[float], patience: int, threshold: float, steps: int
) -> None:
    callback = make(early_stopping_patience=patience, early_stopping_threshold=threshold)
    trainer = scripted(make_args, losses, callback)
    assert trainer.train().global_step == steps


def test_it_refuses_a_run_it_could_never_stop(make_args: MakeArgs) -> None:
    rows = classification_rows(8)
    without_metric = Trainer(
        Plain(),
        make_args(max_steps=1, eval_strategy="steps", eval_steps=1),
        train_dataset=rows,
        eval_dataset=rows,
        callbacks=[EarlyStoppingCallback()],
    )
    with pytest.raises(ValueError, match="metric_for_best_model"):
        without_metric.train()
    without_evaluation = Trainer(
        Plain(),
        make_args(max_steps=1, metric_for_best_model="loss"),
        train_dataset=rows,
        callbacks=[EarlyStoppingCallback()],
    )
    with pytest.raises(ValueError, match="eval_strategy"):
        without_evaluation.train()


def test_several_evaluation_sets_count_once(make_args: MakeArgs) -> None:
    callback = EarlyStoppingCallback(early_stopping_patience=2)
    args = make_args(metric_for_best_model="eval_a_loss", eval_strategy="steps", eval_steps=1, greater_is_better=False)
    state, control = TrainerState(best_metric=1.0), TrainerControl()
    callback.on_evaluate(args, state, control, metrics={"eval_b_loss": 9.0})
    assert callback.early_stopping_patience_counter == 0
    callback.on_evaluate(args, state, control, metrics={"eval_a_loss": 9.0})
    assert callback.early_stopping_patience_counter == 1
    assert not control.should_training_stop


def test_a_resumed_run_keeps_counting(make_args: MakeArgs) -> None:
    callback = EarlyStoppingCallback(early_stopping_patience=3)
    trainer = scripted(make_args, [1.0, 2.0, 2.0], callback, save_strategy="steps", save_steps=1)
    trainer.train()
    assert callback.early_stopping_patience_counter == 2
    saved = json.loads((Path(str(trainer.args.output_dir)) / "checkpoint-3" / "trainer_state.json").read_text())
    assert saved["stateful_callbacks"]["EarlyStoppingCallback"]["attributes"] == {"early_stopping_patience_counter": 2}
    fresh = EarlyStoppingCallback(early_stopping_patience=3)
    resumed = scripted(make_args, [2.0, 2.0, 2.0, 2.0, 2.0], fresh)
    assert resumed.train(resume_from_checkpoint=True).global_step == 4


@pytest.mark.filterwarnings("ignore")
def test_transformers_printer_and_tensorboard_callbacks_run_unchanged(
    make_args: MakeArgs, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from transformers.integrations import TensorBoardCallback

    events = tmp_path / "events"
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(events))
    rows = classification_rows(16)
    args = make_args(max_steps=4, logging_steps=2, eval_strategy="epoch")
    callbacks = [transformers.PrinterCallback(), TensorBoardCallback()]
    trainer = Trainer(Plain(), args, train_dataset=rows, eval_dataset=rows, callbacks=callbacks)
    trainer.train()
    assert "'loss'" in capsys.readouterr().out
    stored = EventAccumulator(str(events))
    stored.Reload()
    assert [point.step for point in stored.Scalars("train/loss")] == [2, 4]
    assert [point.step for point in stored.Scalars("eval/loss")] == [2, 4]
