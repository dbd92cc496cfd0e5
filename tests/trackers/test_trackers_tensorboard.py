"""Event files, read back with TensorBoard's own reader."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.models import Plain, classification_rows
from trainwright import TrackedRun, Trainer, TrainerCallback, TrainingArguments
from trainwright.trackers.naming import tag_of
from trainwright.trackers.tensorboard import TensorBoardTracker

MakeArgs = Callable[..., TrainingArguments]


def read(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    stored = EventAccumulator(str(folder))
    stored.Reload()
    return stored


@pytest.mark.parametrize(
    ("name", "tag"),
    [
        ("loss", "train/loss"),
        ("learning_rate", "train/learning_rate"),
        ("train_runtime", "train/train_runtime"),
        ("eval_loss", "eval/loss"),
        ("eval_news_loss", "eval/news_loss"),
        ("test_accuracy", "test/accuracy"),
        ("evaluation", "train/evaluation"),
    ],
)
def test_tags_are_those_of_hugging_face(name: str, tag: str) -> None:
    assert tag_of(name) == tag


def test_scalars_and_text_come_back(tmp_path: Path) -> None:
    tracker = TensorBoardTracker(folder=tmp_path)
    tracker.start(TrackedRun(tmp_path, {"learning_rate": 0.1}, {"python": "3"}))
    tracker.log({"loss": 0.5, "note": "no number", "flag": True}, 10)  # type: ignore[dict-item]
    tracker.log({"loss": math.nan, "eval_loss": 0.25}, 20)
    tracker.finish("done")
    tracker.finish("done")
    stored = read(tmp_path)
    points = stored.Scalars("train/loss")
    assert (points[0].step, points[0].value) == (10, 0.5)
    assert math.isnan(points[1].value)
    assert [(point.step, point.value) for point in stored.Scalars("eval/loss")] == [(20, 0.25)]
    assert "train/note" not in stored.Tags()["scalars"]
    (text,) = stored.Tensors("args/text_summary" if "args/text_summary" in stored.Tags()["tensors"] else "args")
    assert b'"learning_rate": 0.1' in text.tensor_proto.string_val[0]


def test_a_run_writes_what_callbacks_made_of_the_logs(make_args: MakeArgs, tmp_path: Path) -> None:
    class Adds(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            kwargs["logs"]["mine"] = 7.0

    rows = classification_rows(16)
    args = make_args(
        max_steps=4, logging_steps=2, eval_strategy="epoch", report_to=["tensorboard"], logging_dir=str(tmp_path / "tb")
    )
    Trainer(Plain(), args, train_dataset=rows, eval_dataset=rows, callbacks=[Adds()]).train()
    stored = read(tmp_path / "tb")
    assert [(point.step, point.value) for point in stored.Scalars("train/mine")][:2] == [(2, 7.0), (2, 7.0)]
    assert [point.step for point in stored.Scalars("train/loss")] == [2, 4]
    assert [point.step for point in stored.Scalars("eval/loss")] == [2, 4]


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"logging_dir": "here"}, "here"),
        ({"report_to": "tensorboard"}, "run/runs"),
        ({"report_to": "tensorboard", "run_name": "mine"}, "run/runs/mine"),
        ({"report_to": "tensorboard", "tracker_options": {"tensorboard": {"folder": "there"}}}, "there"),
    ],
)
def test_where_it_writes(
    given: dict[str, Any], place: str, make_args: MakeArgs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Trainer(Plain(), make_args(max_steps=1, **given), train_dataset=classification_rows(4)).train()
    assert [file.parent for file in tmp_path.rglob("events.out.tfevents.*")] == [tmp_path / place]


def test_what_a_killed_process_wrote_is_not_shown_twice(tmp_path: Path) -> None:
    first, second = TensorBoardTracker(folder=tmp_path), TensorBoardTracker(folder=tmp_path)
    first.start(TrackedRun(tmp_path))
    for step in (1, 2, 3):
        first.log({"loss": step}, step)
    first.finish("failed")
    second.start(TrackedRun(tmp_path, step=1))
    second.log({"loss": 20.0}, 2)
    second.finish("done")
    assert [(point.step, point.value) for point in read(tmp_path).Scalars("train/loss")] == [(1, 1.0), (2, 20.0)]


def test_a_missing_package_is_named_before_the_first_step(make_args: MakeArgs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    args = make_args(max_steps=2, report_to=["tensorboard"])
    trainer = Trainer(Plain(), args, train_dataset=classification_rows(8))
    with pytest.raises(ValueError, match="pip install tensorboard"):
        trainer.train()
    assert trainer.state.global_step == 0


@pytest.mark.slow
def test_files_of_runs_that_follow_at_once_are_read_in_their_order(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        tracker = TensorBoardTracker(folder=tmp_path)
        tracker.start(TrackedRun(folder=tmp_path, step=step))
        tracker.log({"loss": float(step)}, step)
        tracker.finish("done")
    seconds = [file.name.split(".")[3] for file in tmp_path.glob("events.out.tfevents.*")]
    assert len(set(seconds)) == 3
    assert [point.step for point in read(tmp_path).Scalars("train/loss")] == [1, 2, 3]
