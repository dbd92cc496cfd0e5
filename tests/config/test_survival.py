"""Arguments about saving, stopping, going on and getting stuck."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from trainwright import Trainer
from trainwright.config import TrainingArguments, help_for
from trainwright.config.cadence import Every
from trainwright.config.fields import AllFields, ours
from trainwright.config.fields.native import NativeFields
from trainwright.config.fields.survival import SurvivalFields
from trainwright.config.hf_fields import FIELDS
from trainwright.config.intervals import EVALUATE, LOG, SAVE, cadence, log_is_likely
from trainwright.core.state import TrainerState


def test_defaults() -> None:
    args = TrainingArguments("x")
    assert {name: getattr(args, name) for name in SurvivalFields.__dataclass_fields__} == {
        "checkpoint_every": None,
        "evaluate_every": None,
        "eval_on_end": True,
        "rescue_on": None,
        "log_every": None,
        "save_best": False,
        "keep_every": None,
        "resume": None,
        "take_over": False,
        "exact": "warn",
        "checkpoint_format": "trainwright",
        "save_in_background": True,
        "handle_signals": True,
        "preempted_exit_code": 75,
        "max_hours": None,
        "preemption_deadline": 20.0,
        "max_nonfinite_steps": 10,
        "rewind_on_nonfinite": False,
        "check_weights_every": None,
        "watchdog_seconds": 120.0,
        "watchdog_exit": False,
    }


def test_each_has_help_and_acts() -> None:
    for name in SurvivalFields.__dataclass_fields__:
        assert help_for(name), name
        assert FIELDS[name].status == "acts", name
    assert FIELDS["enable_jit_checkpoint"].status == "acts"
    TrainingArguments("x", enable_jit_checkpoint=True)


@pytest.mark.parametrize(
    ("values", "fix"),
    [
        ({"resume": "checkpoint-5"}, "resume_from_checkpoint"),
        ({"resume": True}, "auto"),
        ({"exact": "yes"}, "'require'"),
        ({"checkpoint_format": "pickle"}, "choose one of"),
        ({"keep_every": 0}, "at least 1"),
        ({"max_nonfinite_steps": 0}, "at least 1"),
        ({"max_hours": 0}, "positive"),
        ({"preemption_deadline": -1}, "at least 0"),
        ({"preempted_exit_code": 256}, "255"),
        ({"watchdog_seconds": -1}, "0 switches it off"),
        ({"watchdog_exit": True, "watchdog_seconds": None}, "watchdog_seconds"),
        ({"rewind_on_nonfinite": True, "max_nonfinite_steps": None}, "max_nonfinite_steps"),
        ({"resume": "auto", "save_only_model": True}, "save_only_model"),
        ({"rewind_on_nonfinite": True, "save_only_model": True}, "save_only_model"),
        ({"save_best": True}, "evaluate_every"),
        ({"checkpoint_every": "5"}, "checkpoint_every: .*500 steps"),
        ({"checkpoint_every": 500}, "checkpoint_every: .*500 steps"),
        ({"evaluate_every": "2 evals"}, "only checkpoint_every"),
        ({"log_every": "2 evals"}, "only checkpoint_every"),
        ({"checkpoint_every": "5 steps", "save_strategy": "epoch"}, "contradict"),
        ({"checkpoint_every": "5 steps", "save_strategy": "best"}, "save_best=True"),
        ({"checkpoint_every": "5 steps", "save_strategy": "no"}, "contradict"),
        ({"checkpoint_every": "5 steps", "save_steps": 10}, "save_steps=10"),
        ({"checkpoint_every": "5 minutes", "save_steps": 10}, "save_steps=10"),
        ({"evaluate_every": "5 steps", "eval_strategy": "epoch"}, "contradict"),
        ({"evaluate_every": "1 epoch", "eval_strategy": "steps"}, "contradict"),
        ({"evaluate_every": "5 minutes", "eval_steps": 10}, "eval_steps=10"),
        ({"log_every": "5 minutes", "logging_strategy": "epoch"}, "contradict"),
        ({"log_every": "5 minutes", "logging_steps": 10}, "logging_steps=10"),
    ],
)
def test_refused(values: dict[str, Any], fix: str) -> None:
    with pytest.raises(ValueError, match=fix):
        TrainingArguments("x", **values)


@pytest.mark.parametrize(
    "values",
    [
        {"resume": "auto", "checkpoint_format": "hf", "keep_every": 1000, "max_hours": 23.5},
        {"watchdog_seconds": 0, "max_nonfinite_steps": None},
        {"checkpoint_every": "5 steps", "save_strategy": "steps", "save_steps": 5},
        {"checkpoint_every": "1 epoch", "save_strategy": "epoch"},
        {"evaluate_every": "10%", "eval_strategy": "steps", "eval_steps": 0.1},
        {"evaluate_every": "5 minutes", "load_best_model_at_end": True, "save_strategy": "no"},
        {"evaluate_every": "5 minutes", "lr_scheduler_type": "reduce_lr_on_plateau"},
        {"evaluate_every": "5 minutes", "save_strategy": "best"},
        {"checkpoint_every": "never"},
    ],
)
def test_accepted(values: dict[str, Any]) -> None:
    TrainingArguments("x", **values)


def test_a_best_checkpoint_needs_a_metric() -> None:
    args = TrainingArguments("x", save_best=True, evaluate_every="100 steps")
    assert (args.metric_for_best_model, args.greater_is_better) == ("loss", False)
    assert TrainingArguments("x", save_best=True, eval_strategy="epoch", metric_for_best_model="f1").greater_is_better


def test_the_format_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINWRIGHT_CHECKPOINT_FORMAT", "hf")
    assert TrainingArguments("x").checkpoint_format == "hf"
    assert TrainingArguments("x", checkpoint_format="trainwright").checkpoint_format == "trainwright"
    monkeypatch.setenv("TRAINWRIGHT_CHECKPOINT_FORMAT", "")
    assert TrainingArguments("x").checkpoint_format == "trainwright"
    monkeypatch.setenv("TRAINWRIGHT_CHECKPOINT_FORMAT", "tar")
    with pytest.raises(ValueError, match="TRAINWRIGHT_CHECKPOINT_FORMAT"):
        TrainingArguments("x")


def test_hugging_face_arguments_follow() -> None:
    args = TrainingArguments("x", checkpoint_every="0.1 run", evaluate_every="40 steps", log_every="1 epoch")
    assert (args.save_strategy, args.save_steps) == ("steps", 0.1)
    assert (args.eval_strategy, args.eval_steps, args.do_eval) == ("steps", 40, True)
    assert args.logging_strategy == "epoch"
    timed = TrainingArguments("x", evaluate_every="5 min")
    assert (timed.evaluate_every, timed.eval_strategy, timed.eval_steps) == ("5 minutes", "steps", None)


def test_copies_keep_what_was_said() -> None:
    args = TrainingArguments("x", checkpoint_every="1 epoch", evaluate_every="5 minutes", resume="auto")
    for other in (
        copy.copy(args),
        copy.deepcopy(args),
        pickle.loads(pickle.dumps(args)),  # noqa: S301
        dataclasses.replace(args),
        TrainingArguments(**args.to_dict()),
    ):
        assert other.to_dict() == args.to_dict()
    moved = dataclasses.replace(args, checkpoint_every=None, evaluate_every="1 epoch")
    assert (moved.save_strategy, moved.eval_strategy) == ("steps", "epoch")
    assert dataclasses.replace(args, checkpoint_every=None, save_strategy="no").save_strategy == "no"


def test_an_object_may_be_given_for_its_text() -> None:
    every: Any = Every.parse("1k steps")
    assert TrainingArguments("x", checkpoint_every=every).to_dict()["checkpoint_every"] == "1000 steps"


def test_command_line() -> None:
    parser: Any = transformers.HfArgumentParser(TrainingArguments)  # type: ignore[arg-type]
    line = "--output_dir out --no_handle_signals --max_hours 2 --watchdog_seconds 0 --keep_every 100 --save_best"
    words = [*line.split(), "--eval_strategy", "epoch", "--checkpoint_every", "30 minutes"]
    (args,) = parser.parse_args_into_dataclasses(words)
    assert (args.checkpoint_every, args.handle_signals, args.max_hours) == ("30 minutes", False, 2.0)
    assert (args.keep_every, args.save_best, args.watchdog_seconds) == (100, True, 0)
    assert "10%" in parser.format_help()


@dataclass
class ArgsThatTakeOurNames(TrainingArguments):
    log_every: int = 10  # type: ignore[assignment]
    resume: bool = True  # type: ignore[assignment]
    max_hours: str = "many"  # type: ignore[assignment]


def test_names_a_subclass_uses_for_itself_are_left_alone() -> None:
    args = ArgsThatTakeOurNames("x")
    assert (args.log_every, args.resume, args.max_hours) == (10, True, "many")
    assert (ours(args).log_every, ours(args).resume, ours(args).watchdog_seconds) == (None, None, 120.0)
    assert cadence(args, LOG) == Every.parse("500 steps")
    assert args.set_logging("epoch").log_every == 10


def test_ours_gives_every_default() -> None:
    for name in SurvivalFields.__dataclass_fields__:
        assert getattr(ours(object()), name) == getattr(TrainingArguments("x"), name)
        assert name in AllFields.__dataclass_fields__


def test_setters_take_over() -> None:
    args = TrainingArguments("x", checkpoint_every="1 epoch", evaluate_every="1 epoch", log_every="1 epoch")
    args.set_save("steps", 7).set_evaluate("steps", 8).set_logging("steps", 9)
    assert [str(cadence(args, topic)) for topic in (SAVE, EVALUATE, LOG)] == ["7 steps", "8 steps", "9 steps"]


@pytest.mark.parametrize(
    ("values", "logged"),
    [
        ({"logging_steps": 4}, [4, 8]),
        ({"logging_steps": 4, "logging_first_step": True}, [1, 4, 8]),
        ({"logging_strategy": "no"}, []),
        ({"logging_strategy": "epoch"}, [5, 10]),
        ({"log_every": "4 steps"}, [4, 8]),
        ({"log_every": "50%"}, [5, 10]),
        ({"log_every": "1 epoch"}, [5, 10]),
        ({"log_every": "4 steps or 1 epoch"}, [4, 5, 8, 10]),
        ({"log_every": "2 epochs"}, [5, 10]),
        ({"log_every": "never"}, []),
        ({"log_every": "1 minute"}, list(range(1, 11))),
        ({"log_every": "0.5 epochs"}, list(range(1, 11))),
    ],
)
def test_steps_that_will_be_logged_are_known_before(values: dict[str, Any], logged: list[int]) -> None:
    args = TrainingArguments("x", **values)
    found = []
    for step in range(1, 11):
        state = TrainerState(global_step=step - 1, max_steps=10)
        state.compute_steps(args, 10)
        if log_is_likely(args, state, epoch_ends=step % 5 == 0):
            found.append(step)
    assert found == logged


NATIVE = sorted({*SurvivalFields.__dataclass_fields__, *NativeFields.__dataclass_fields__})


@pytest.mark.slow
@pytest.mark.parametrize("theirs", [TrainingArguments, transformers.TrainingArguments])
def test_a_subclass_may_use_every_name_of_ours_for_itself(theirs: type, tmp_path: Path) -> None:
    """And a Trainer takes it, ours or transformers' own; what is called so acts as if nobody had said anything."""
    fields = [(name, Any, dataclasses.field(default=f"my {name}")) for name in NATIVE]
    kind = dataclasses.make_dataclass("Theirs", fields, bases=(theirs,))
    args = kind(str(tmp_path), max_steps=2, report_to="none", disable_tqdm=True, save_strategy="no")
    trainer = Trainer(nn.Linear(2, 2), args, train_dataset=[(torch.randn(2), torch.tensor(0)) for _ in range(8)])
    for _ in range(2):
        assert trainer.train().global_step == 2
        assert [getattr(trainer.args, name) for name in NATIVE] == [f"my {name}" for name in NATIVE]
        trainer.args = dataclasses.replace(trainer.args, learning_rate=0.5)
    assert trainer.args.learning_rate == 0.5


def test_a_backend_by_name_has_no_place_where_the_name_is_taken() -> None:
    kind = dataclasses.make_dataclass("Theirs", [("backend", str, "postgres")], bases=(TrainingArguments,))
    with pytest.raises(ValueError, match="Theirs has a field `backend` of its own"):
        Trainer(nn.Linear(2, 2), kind("out"), backend="sp-bf16")
