"""``log_histograms``: files and trackers get them, and the training does not notice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models import Plain, classification_rows
from trainwright import Trainer, TrainingArguments
from trainwright.core.step_lines import StepLines

Make = Callable[..., TrainingArguments]


def trained(make_args: Make, **kwargs: Any) -> Trainer:
    args = make_args(**{"max_steps": 6, "logging_steps": 2, "report_to": "none", **kwargs})
    trainer = Trainer(Plain(), args, train_dataset=classification_rows(32))
    trainer.train()
    return trainer


def lines_in(tmp_path: Path, name: str = "histograms.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "run" / name).read_text().splitlines()]


def test_a_training_with_histograms_is_the_same_bit_by_bit(make_args: Make, tmp_path: Path) -> None:
    plain = trained(make_args, output_dir=str(tmp_path / "plain"))
    with_them = trained(make_args, log_histograms=1)
    for (name, one), other in zip(plain.model.state_dict().items(), with_them.model.state_dict().values(), strict=True):
        assert torch.equal(one, other), name
    histories = ([{**e, "train_runtime": 0} for e in t.state.log_history[:-1]] for t in (plain, with_them))
    assert next(histories) == next(histories)
    lines = lines_in(tmp_path)
    assert [(line["step"], line["gradients_of_step"]) for line in lines] == [(2, 2), (4, 4), (6, 6)]
    weight, last = lines[-1]["weights"]["first.weight"], with_them.model.state_dict()["first.weight"]
    assert weight["size"] == sum(weight["counts"]) == last.numel()
    assert (weight["low"], weight["high"]) == (float(last.min()), float(last.max()))
    assert weight["mean"] == pytest.approx(float(last.mean()))
    assert lines[0]["gradients"].keys() == dict(with_them.model.named_parameters()).keys()


def test_every_so_many_logs_into_trackers_too(make_args: Make, tmp_path: Path) -> None:
    trained(make_args, logging_steps=1, log_histograms=4, report_to=["jsonl", "tensorboard"])
    assert [line["step"] for line in lines_in(tmp_path)] == [1, 5]
    told = [line for line in lines_in(tmp_path, "tracker.jsonl") if line["event"] == "histogram"]
    assert {(line["step"], line["name"]) for line in told} >= {(1, "weights/first.bias"), (5, "gradients/second.bias")}
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(tmp_path / "run/runs"), size_guidance={"histograms": 0})
    found.Reload()
    assert [event.step for event in found.Histograms("weights/first.weight")] == [1, 5]
    assert found.Histograms("weights/first.weight")[0].histogram_value.num == 48


def test_by_epoch_the_gradients_are_those_of_its_first_step_or_of_the_last_of_all(
    make_args: Make, tmp_path: Path
) -> None:
    trained(make_args, logging_strategy="epoch", max_steps=8, log_histograms=1)
    # The last step of a training is known to be one.
    assert [(line["step"], line["gradients_of_step"]) for line in lines_in(tmp_path)] == [(4, 1), (8, 8)]


def test_what_cannot_be_meant_is_refused(make_args: Make) -> None:
    with pytest.raises(ValueError, match="log_histograms"):
        make_args(log_histograms=0)


def test_a_run_that_goes_back_takes_its_lines_along_and_a_full_file_takes_no_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = StepLines(tmp_path / "samples.jsonl", most=200)
    lines.add({"step": 1, "text": "a"}, {"step": 2, "loss": float("nan")})
    with lines.path.open("a") as file:
        file.write('{"step": 2, "te')
    lines.begin(2)
    assert [json.loads(line) for line in lines.path.read_text().splitlines()] == [
        {"step": 1, "text": "a"},
        {"step": 2, "loss": "nan"},
    ]
    for _ in range(2):
        lines.add({"step": 3, "text": "x" * 200})
    assert len(lines.path.read_text().splitlines()) == 2
    assert sum("nothing more is added" in record.message for record in caplog.records) == 1
    lines.begin(0)
    assert not lines.path.exists()
