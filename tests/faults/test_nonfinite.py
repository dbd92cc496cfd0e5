"""A loss or gradient that is NaN or infinite never reaches the weights."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.models import classification_rows
from trainwright import Trainer, TrainerCallback, TrainingArguments
from trainwright.core.errors import NonFiniteError

MakeArgs = Callable[..., TrainingArguments]


class Net(nn.Module):
    """Normalizes with running statistics, which a NaN in the data would spoil for good."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.second = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": F.cross_entropy(self.second(self.norm(self.first(x))), labels)}


def poisoned_rows(*bad: int, value: float = math.nan, count: int = 32) -> list[dict[str, Tensor]]:
    rows = classification_rows(count)
    for index in bad:
        rows[index]["x"] = torch.full((6,), value)
    return rows


class Watch(TrainerCallback):
    """State before and after each step."""

    def __init__(self) -> None:
        self.states: list[dict[str, Tensor]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.states.append({name: tensor.clone() for name, tensor in model.state_dict().items()})


def train(make_args: MakeArgs, rows: Any, watch: Watch | None = None, **extra: Any) -> Trainer:
    settings: dict[str, Any] = {
        "max_steps": 8,
        "per_device_train_batch_size": 4,
        "train_sampling_strategy": "sequential",
        "logging_steps": 1,
        "learning_rate": 1e-2,
        "weight_decay": 0.1,
        **extra,
    }
    trainer = Trainer(Net(), make_args(**settings), train_dataset=rows, callbacks=[watch] if watch else None)
    trainer.train()
    return trainer


def events(trainer: Trainer, kind: str) -> list[dict[str, Any]]:
    lines = (Path(str(trainer.args.output_dir)) / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["kind"] == kind]


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"optim": "adamw_torch"},
        {"optim": "sgd", "optim_args": "momentum=0.9"},
        {"optim": "adafactor"},
        {"max_grad_norm": 0.0},
        {"gradient_accumulation_steps": 2},
    ],
    ids=str,
)
def test_a_bad_step_changes_neither_weights_nor_statistics(
    make_args: MakeArgs, value: float, extra: dict[str, Any]
) -> None:
    accumulation = extra.get("gradient_accumulation_steps", 1)
    rows = poisoned_rows(9, value=value, count=64)
    watch = Watch()
    trainer = train(make_args, rows, watch, **extra)
    bad = 9 // (4 * accumulation)
    assert equal(watch.states[bad], watch.states[bad - 1])
    assert all(torch.isfinite(tensor).all() for tensor in watch.states[-1].values())
    assert not any(equal(watch.states[n], watch.states[n - 1]) for n in range(1, 8) if n != bad)
    (event,) = events(trainer, "nonfinite_step")
    assert event["step"] == bad + 1
    assert 9 in event["data"]["samples"]
    assert len(event["data"]["samples"]) == 4 * accumulation


def test_the_other_steps_are_as_if_it_had_not_been_there(make_args: MakeArgs, tmp_path: Path) -> None:
    """The optimizer's state is not touched either: the run equals one in which the bad step did nothing."""
    with_bad = train(make_args, poisoned_rows(28), max_steps=8, lr_scheduler_type="constant")
    without = train(
        make_args, poisoned_rows()[:28], max_steps=7, lr_scheduler_type="constant", output_dir=str(tmp_path / "b")
    )
    # The last batch of the first run is the bad one; the second run ends before it.
    assert equal(with_bad.model.state_dict(), without.model.state_dict())


def test_no_fake_number_is_logged(make_args: MakeArgs) -> None:
    trainer = train(make_args, poisoned_rows(9))
    losses = {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}
    assert math.isnan(losses[3])
    assert all(math.isfinite(loss) and loss != 0 for step, loss in losses.items() if step != 3)


def test_training_stops_after_too_many_in_a_row(make_args: MakeArgs, tmp_path: Path) -> None:
    rows = poisoned_rows(*range(8, 32))
    with pytest.raises(NonFiniteError, match=r"3 steps in a row, the last of them step 5.*rewind_on_nonfinite"):
        train(make_args, rows, max_nonfinite_steps=3, save_strategy="steps", save_steps=100)
    assert (tmp_path / "run" / "checkpoint-5" / "manifest.json").is_file(), "what was trained is saved"


def test_single_bad_steps_do_not_add_up(make_args: MakeArgs) -> None:
    trainer = train(make_args, poisoned_rows(0, 8, 16, 24), max_nonfinite_steps=2)
    assert trainer.state.global_step == 8
    assert len(events(trainer, "nonfinite_step")) == 4


def test_rewind_goes_back_and_leaves_the_batches_out(make_args: MakeArgs, tmp_path: Path) -> None:
    """Steps 4 and 5 fail; the run goes back to step 3 and ends as one that never saw these batches."""
    rows = poisoned_rows(12, 16, count=40)
    settings: dict[str, Any] = {"save_strategy": "steps", "save_steps": 3, "lr_scheduler_type": "constant"}
    trainer = train(make_args, rows, max_nonfinite_steps=2, rewind_on_nonfinite=True, **settings)
    (event,) = events(trainer, "rewound")
    assert "checkpoint-3" in event["message"]
    clean = train(make_args, rows[:12] + rows[20:], **settings, output_dir=str(tmp_path / "clean"))
    assert trainer.state.global_step == clean.state.global_step == 8
    assert equal(trainer.model.state_dict(), clean.model.state_dict())
    steps = [entry["step"] for entry in trainer.state.log_history if "loss" in entry]
    assert steps == list(range(1, 9))
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    logged = [entry["step"] for entry in map(json.loads, lines) if "loss" in entry]
    assert logged == list(range(1, 9)), "the curve has each step once"


class Slowly(Watch):
    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        time.sleep(0.1)


@pytest.mark.slow
def test_the_watchdog_goes_back_too(make_args: MakeArgs, tmp_path: Path) -> None:
    """One that watched the run as it was before would take it for stuck, and end it if it is allowed to."""
    rows = poisoned_rows(12, 16, count=40)
    settings: dict[str, Any] = {"save_strategy": "steps", "save_steps": 3, "watchdog_seconds": 0.3}
    trainer = train(make_args, rows, Slowly(), max_nonfinite_steps=2, rewind_on_nonfinite=True, **settings)
    assert len(events(trainer, "rewound")) == 1
    assert events(trainer, "stuck") == []
    assert [thread.name for thread in threading.enumerate() if thread.name == "trainwright-watchdog"] == []


def test_rewind_without_a_checkpoint_stops(make_args: MakeArgs) -> None:
    with pytest.raises(NonFiniteError):
        train(
            make_args, poisoned_rows(*range(32)), max_nonfinite_steps=2, rewind_on_nonfinite=True, save_strategy="steps"
        )


@pytest.mark.parametrize("poison", [False, True])
def test_sparse_gradients_are_judged_too(make_args: MakeArgs, poison: bool) -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.words, self.out = nn.Embedding(10, 6, sparse=True), nn.Linear(6, 3)

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            vectors = self.words(x.nan_to_num().abs().long().clamp(max=9)).mean(1)
            return {"loss": F.cross_entropy(self.out(vectors) * x.sum(1, keepdim=True), labels)}

    watch = Watch()
    args = make_args(
        max_steps=4,
        per_device_train_batch_size=4,
        optim="sgd",
        max_grad_norm=0.0,
        learning_rate=0.1,
        train_sampling_strategy="sequential",
    )
    Trainer(Words(), args, train_dataset=poisoned_rows(*([5] if poison else [])), callbacks=[watch]).train()
    assert equal(watch.states[1], watch.states[0]) == poison
    assert all(torch.isfinite(tensor).all() for tensor in watch.states[-1].values())
