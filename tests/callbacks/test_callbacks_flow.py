"""The default flow by what it causes: how often a run logs, evaluates and saves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.models import Plain, classification_rows
from trainwright import Trainer, TrainerCallback, TrainingArguments

MakeArgs = Callable[..., TrainingArguments]


class Counter(TrainerCallback):
    """Steps at which something happened."""

    def __init__(self) -> None:
        self.logs: list[int] = []
        self.evaluations: list[int] = []
        self.saves: list[int] = []

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if "loss" in kwargs["logs"]:
            self.logs.append(state.global_step)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.evaluations.append(state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.saves.append(state.global_step)

    def all(self) -> tuple[list[int], list[int], list[int]]:
        return self.logs, self.evaluations, self.saves


def count(make_args: MakeArgs, **kwargs: Any) -> tuple[list[int], list[int], list[int]]:
    """A run of 10 steps in 2 epochs of 5."""
    counter = Counter()
    args = make_args(**{"num_train_epochs": 2, "logging_strategy": "no", **kwargs})
    rows = classification_rows(40)
    Trainer(Plain(), args, train_dataset=rows, eval_dataset=rows[:8], callbacks=[counter]).train()
    return counter.all()


#: Arguments, and the steps of logs, evaluations and saves that must follow.
CASES: dict[str, tuple[dict[str, Any], tuple[list[int], list[int], list[int]]]] = {
    "nothing": ({}, ([], [], [])),
    "log every 3": ({"logging_strategy": "steps", "logging_steps": 3}, ([3, 6, 9], [], [])),
    "log a quarter": ({"logging_strategy": "steps", "logging_steps": 0.25}, ([3, 6, 9], [], [])),
    "log epochs": ({"logging_strategy": "epoch"}, ([5, 10], [], [])),
    "log the first": (
        {"logging_strategy": "steps", "logging_steps": 4, "logging_first_step": True},
        ([1, 4, 8], [], []),
    ),
    "only the first": ({"logging_first_step": True}, ([1], [], [])),
    "evaluate every 4": ({"eval_strategy": "steps", "eval_steps": 4}, ([], [4, 8, 10], [])),
    "evaluate a fifth": ({"eval_strategy": "steps", "eval_steps": 0.2}, ([], [2, 4, 6, 8, 10], [])),
    "evaluate epochs": ({"eval_strategy": "epoch"}, ([], [5, 10], [])),
    "evaluate later": ({"eval_strategy": "steps", "eval_steps": 2, "eval_delay": 5}, ([], [6, 8, 10], [])),
    "evaluate the second epoch": ({"eval_strategy": "epoch", "eval_delay": 2}, ([], [10], [])),
    "evaluate at the start": ({"eval_strategy": "epoch", "eval_on_start": True}, ([], [0, 5, 10], [])),
    "save every 4": ({"save_strategy": "steps", "save_steps": 4}, ([], [], [4, 8, 10])),
    "save a half": ({"save_strategy": "steps", "save_steps": 0.5}, ([], [], [5, 10])),
    "save epochs": ({"save_strategy": "epoch"}, ([], [], [5, 10])),
    "all": (
        {
            "logging_strategy": "steps",
            "logging_steps": 5,
            "eval_strategy": "steps",
            "eval_steps": 5,
            "save_strategy": "steps",
            "save_steps": 5,
        },
        ([5, 10], [5, 10], [5, 10]),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_logs_evaluations_and_saves_happen_when_the_strategies_say(make_args: MakeArgs, name: str) -> None:
    arguments, expected = CASES[name]
    assert count(make_args, **arguments) == expected


def test_best_saves_only_improvements(make_args: MakeArgs) -> None:
    losses = iter([3.0, 2.0, 2.5, 1.0, 1.5])

    class Scripted(Trainer):
        def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
            return {"eval_loss": next(losses)}

    counter = Counter()
    args = make_args(
        num_train_epochs=2,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="best",
        metric_for_best_model="loss",
        greater_is_better=False,
    )
    rows = classification_rows(40)
    Scripted(Plain(), args, train_dataset=rows, eval_dataset=rows[:8], callbacks=[counter]).train()
    assert counter.saves == [2, 4, 8]
    assert {path.name for path in Path(str(args.output_dir)).glob("checkpoint-*")} == {
        "checkpoint-2",
        "checkpoint-4",
        "checkpoint-8",
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore")
def test_transformers_agrees(make_args: MakeArgs, tmp_path: Path, name: str) -> None:
    import transformers

    class HfCounter(Counter, transformers.TrainerCallback):
        pass

    arguments, _ = CASES[name]
    counter = HfCounter()
    settings: dict[str, Any] = {
        "output_dir": str(tmp_path / "hf"),
        "num_train_epochs": 2,
        "logging_strategy": "no",
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
        "report_to": [],
        **arguments,
    }
    rows: Any = classification_rows(40)
    args = transformers.TrainingArguments(**settings)
    transformers.Trainer(Plain(), args, train_dataset=rows, eval_dataset=rows[:8], callbacks=[counter]).train()
    assert counter.all() == count(make_args, **arguments)
