"""Cut anywhere and resumed, a run ends bit for bit like one that was never cut; where it cannot, it refuses."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import random
import signal
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.faults.own_generators import OWN
from tests.faults.scenarios import SCENARIOS as PLAIN
from tests.faults.scenarios import Scenario, Unrepeatable, Words, streaming
from trainwright import Trainer, TrainerCallback, TrainingArguments
from trainwright.core.errors import Preempted
from trainwright.training.checkpoint_texts import callback_tensors

SCENARIOS = {**PLAIN, **OWN}
_TIMES = ("runtime", "per_second")


class Cut(TrainerCallback):
    """Sends the process the signal that schedulers send, when ``event`` comes after ``step`` steps."""

    def __init__(self, step: int, event: str = "on_step_end") -> None:
        self.step = step
        setattr(self, event, self._cut)

    def _cut(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            self.step = -1
            signal.raise_signal(signal.SIGTERM)


def build(scenario: Scenario, folder: Path, seed: int = 0, callbacks: list[Any] | None = None, **extra: Any) -> Trainer:
    """A Trainer with a model, data and callbacks of its own."""
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": 14,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "eval_strategy": "steps",
        "eval_steps": 4,
        "save_steps": 4,
        "logging_steps": 3,
        "learning_rate": 2e-2,
        "lr_scheduler_type": "cosine",
        "metric_for_best_model": "loss",
        "greater_is_better": False,
        "disable_tqdm": True,
        "use_cpu": True,
        "log_level": "error",
        "seed": seed,
        **scenario.settings,
        **extra,
    }
    return scenario.trainer(
        scenario.model(),
        TrainingArguments(**settings),
        train_dataset=scenario.data(),
        eval_dataset=scenario.held_out(),
        data_collator=scenario.collator,
        callbacks=[*scenario.callbacks(), *(callbacks or [])],
    )


def digest(tensors: dict[str, Any]) -> str:
    found = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        tensor = torch.as_tensor(value).detach().contiguous()
        found.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        found.update(tensor.view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def random_numbers() -> str:
    """What comes next from each generator."""
    drawn = [random.random(), float(np.random.rand()), float(torch.rand(()))]
    return json.dumps(drawn)


def traces(trainer: Trainer) -> dict[str, Any]:
    """All that a run leaves behind, by topic: large things as hashes."""
    state = trainer.state
    optimizer = trainer.optimizer.state_dict()
    scaler = trainer.engine.precision.scaler
    tensors, values = callback_tensors([c for c in trainer.callback_handler.callbacks if not isinstance(c, Cut)])
    history = [{k: v for k, v in entry.items() if not k.endswith(_TIMES)} for entry in state.log_history[:-1]]
    # Where the best is not saved for its own sake, the checkpoint of an interruption may happen to be of that step.
    best = state.best_model_checkpoint if trainer.args.load_best_model_at_end or trainer.args.save_best else None
    return {
        "weights": digest(dict(trainer.model.state_dict())),
        "optimizer": digest(
            {f"{n}.{k}": v for n, entries in optimizer["state"].items() for k, v in entries.items() if v is not None}
        ),
        # JSON knows no tuples.
        "groups": json.dumps(optimizer["param_groups"], sort_keys=True),
        "schedule": json.dumps(trainer.lr_scheduler.state_dict(), sort_keys=True),
        "scaler": None if scaler is None else scaler.state_dict(),
        "log": [sorted(entry.items()) for entry in history if "loss" in entry],
        "evaluations": [sorted(entry.items()) for entry in history if "loss" not in entry],
        "train_loss": state.log_history[-1]["train_loss"],
        "best": (state.best_metric, state.best_global_step, best and Path(best).name),
        "counts": (state.global_step, state.epoch, state.max_steps, state.num_input_tokens_seen, state.total_flos),
        "callbacks": [c.state() for c in trainer.callback_handler.callbacks if callable(getattr(c, "state", None))],
        "callbacks' tensors": (digest(tensors), values),
        "random numbers": random_numbers(),
    }


def checkpoints(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("checkpoint-*")}


@functools.cache
def straight(name: str, seed: int = 0) -> tuple[dict[str, Any], set[str]]:
    """What an uninterrupted run leaves behind."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = build(SCENARIOS[name], Path(folder), seed)
        trainer.train()
        return traces(trainer), checkpoints(Path(folder))


def interrupted(scenario: Scenario, folder: Path, step: int, seed: int = 0, event: str = "on_step_end") -> str:
    """Train until the signal; returns the name of the checkpoint that was saved then."""
    with pytest.raises(Preempted) as stop:
        build(scenario, folder, seed, [Cut(step, event)]).train()
    assert stop.value.checkpoint is not None
    return Path(stop.value.checkpoint).name


def assert_exact(name: str, step: int, folder: Path, seed: int = 0, event: str = "on_step_end") -> None:
    expected, kept = straight(name, seed)
    saved = interrupted(SCENARIOS[name], folder, step, seed, event)
    resumed = build(SCENARIOS[name], folder, seed)
    resumed.train(resume_from_checkpoint=True)
    found = traces(resumed)
    # As text: NaN is not equal to itself.
    different = [topic for topic in expected if repr(found[topic]) != repr(expected[topic])]
    assert different == [], {topic: (found[topic], expected[topic]) for topic in different}
    if "save_total_limit" not in SCENARIOS[name].settings:
        # The cut left one of its own.
        assert checkpoints(folder) == kept | {saved}


def _chosen_cuts() -> list[Any]:
    cases = []
    for name, scenario in SCENARIOS.items():
        for step in scenario.cuts:
            is_daily = scenario.daily and step in (scenario.cuts[1], scenario.cuts[2])
            is_sampled = "workers" not in name or step == scenario.cuts[-1]
            mark = pytest.mark.slow if is_sampled and not scenario.is_full else pytest.mark.full
            cases.append(pytest.param(name, step, marks=() if is_daily else mark, id=f"{name}, {step}"))
    return cases


@pytest.mark.slow
@pytest.mark.parametrize(("name", "step"), _chosen_cuts())
def test_a_run_that_was_cut_ends_like_one_that_was_not(name: str, step: int, tmp_path: Path) -> None:
    assert_exact(name, step, tmp_path / "run")


#: Events at which the signal comes, after how many steps; a step under way is finished first.
EVENTS = [
    ("on_train_begin", 0),
    ("on_epoch_begin", 6),
    ("on_step_begin", 0),
    ("on_step_begin", 6),
    ("on_step_begin", 7),
    ("on_substep_end", 6),
    ("on_pre_optimizer_step", 7),
    ("on_optimizer_step", 7),
    ("on_log", 3),
    ("on_prediction_step", 4),
    ("on_evaluate", 4),
    ("on_save", 4),
    ("on_epoch_end", 6),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "event", "step"),
    [("accumulation", *case) for case in EVENTS]
    + [("early stopping", event, 10) for event in ("on_prediction_step", "on_evaluate", "on_epoch_end")]
    + [("optimizer schedule_free_adamw", event, 14) for event in ("on_step_end", "on_evaluate", "on_epoch_end")]
    + [("by epochs", event, 15) for event in ("on_evaluate", "on_save", "on_epoch_end")],
)
def test_a_signal_may_come_at_any_event(name: str, event: str, step: int, tmp_path: Path) -> None:
    assert_exact(name, step, tmp_path / "run", event=event)


@pytest.mark.slow
@pytest.mark.parametrize("topic", ["augmentation", "masking"])
def test_workers_do_not_change_a_run(topic: str) -> None:
    found = [straight(name)[0] for name in SCENARIOS if name.startswith(topic)]
    assert len(found) > 1
    assert all(repr(traces) == repr(found[0]) for traces in found)


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SCENARIOS)
def test_any_run_may_be_cut_at_every_step(name: str, seed: int, tmp_path: Path) -> None:
    steps = straight(name, seed)[0]["counts"][0]
    for step in range(1, steps + 1):
        assert_exact(name, step, tmp_path / f"run-{step}", seed)


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SCENARIOS)
def test_any_run_may_be_cut_again_and_again(name: str, tmp_path: Path) -> None:
    expected, _ = straight(name)
    trainer = build(SCENARIOS[name], tmp_path, callbacks=[Cut(1)], resume="auto")
    for step in range(2, expected["counts"][0] + 2):
        with pytest.raises(Preempted):
            trainer.train()
        trainer = build(SCENARIOS[name], tmp_path, callbacks=[Cut(step)], resume="auto")
    trainer.train()
    found = traces(trainer)
    assert [topic for topic in expected if repr(found[topic]) != repr(expected[topic])] == []


#: The order of the shards is drawn when such a stream is made: of eleven, never the same twice.
UNREPEATABLE = {"own generator": Unrepeatable, "streaming": lambda: streaming(shuffle=True, seed=None, shards=11)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", UNREPEATABLE)
def test_a_stream_that_does_not_repeat_itself_is_refused(kind: str, tmp_path: Path) -> None:
    scenario = Scenario(data=UNREPEATABLE[kind])
    interrupted(scenario, tmp_path, 3)
    with pytest.raises(
        ValueError, match=r"did not repeat itself.*batch number 3 is not what it was.*Give the stream a"
    ):
        build(scenario, tmp_path).train(resume_from_checkpoint=True)
    going_on = build(scenario, tmp_path, ignore_data_skip=True)
    going_on.train(resume_from_checkpoint=True)
    assert going_on.state.global_step == 14


def test_a_stream_with_a_state_is_read_only_from_there_on(tmp_path: Path) -> None:
    scenario = SCENARIOS["stream with a state"]
    interrupted(scenario, tmp_path, 4)
    resumed = build(scenario, tmp_path, max_steps=5)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.train_dataset.reads == 4


@pytest.mark.slow
def test_an_unfinished_step_is_not_counted(tmp_path: Path) -> None:
    """Its tokens and operations are counted when it is done again."""

    class Failing(Words):
        calls = 0

        def forward(self, input_ids: Tensor) -> Tensor:
            self.calls += self.training
            if self.calls == 6:
                raise RuntimeError("in the second half of step 3")
            return super().forward(input_ids)

    scenario = SCENARIOS["everything counted"]
    with pytest.raises(RuntimeError, match="second half"):
        build(dataclasses.replace(scenario, model=Failing), tmp_path).train()
    resumed = build(scenario, tmp_path)
    resumed.train(resume_from_checkpoint=True)
    assert repr(traces(resumed)) == repr(straight("everything counted")[0])
