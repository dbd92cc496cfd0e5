"""What every engine does alike: callbacks, trackers, stopping early, the best model."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engines.contract.engines import Dense, arguments, close, feature, rows, same_weights, train
from trainwright import EarlyStoppingCallback, Trainer, TrainerCallback
from trainwright.core.callback import EVENTS


class Hears(TrainerCallback):
    """Every event but the one that is there to look at gradients."""

    def __init__(self) -> None:
        self.events: list[str] = []
        for event in EVENTS:
            if event != "on_pre_optimizer_step":
                setattr(self, event, self._hear(event))

    def _hear(self, event: str) -> Any:
        return lambda *args, **kwargs: self.events.append(event)


@feature("callbacks: the same events in the same order")
def test_events(engine: str, tmp_path: Path) -> None:
    heard = []
    options: dict[str, Any] = {"gradient_accumulation_steps": 2, "eval_strategy": "epoch", "save_strategy": "epoch"}
    for name in ("torch", engine):
        listener = Hears()
        train(tmp_path / name, name, Dense(), rows(16), eval_dataset=rows(8), callbacks=[listener], **options)
        heard.append(listener.events)
    assert heard[0] == heard[1]
    assert "on_substep_end" in heard[0]


class Looks(TrainerCallback):
    """Sees the weights at each step, and halves them after the third."""

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        weight = kwargs["model"].second.weight
        self.seen.append(weight.detach().clone())
        if state.global_step == 3:
            weight.data.mul_(0.5)


@feature("callbacks see the weights of the moment, and what they write into the model counts")
def test_callbacks_see_and_change_weights(engine: str, tmp_path: Path) -> None:
    looks = [Looks(), Looks()]
    for name, look in zip(("torch", engine), looks, strict=True):
        train(tmp_path / name, name, Dense(), callbacks=[look], max_steps=5)
    for expected, found in zip(looks[0].seen, looks[1].seen, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@feature("trackers and the run directory: TensorBoard through logging_dir, metrics.jsonl")
def test_trackers(engine: str, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    done = train(tmp_path / "run", engine, Dense(), logging_dir=str(tmp_path / "logs"), report_to="tensorboard")
    (place,) = {file.parent for file in (tmp_path / "logs").rglob("events.out.tfevents.*")}
    events: Any = EventAccumulator(str(place))
    events.Reload()
    assert close([point.value for point in events.Scalars("train/loss")], done.logged("loss"), 1e-6)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in lines if "loss" in line] == done.logged("loss")


@feature("early stopping, the best model at the end, save_total_limit")
def test_early_stopping_and_best_model(engine: str, tmp_path: Path) -> None:
    # A rate at which this model gets worse before long.
    options: dict[str, Any] = {
        "max_steps": 30, "learning_rate": 2.0, "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "optim": "sgd",
        "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1, "save_total_limit": 2,
        "load_best_model_at_end": True, "metric_for_best_model": "eval_loss",
    }  # fmt: skip
    results = []
    for name in ("torch", engine):
        stop = [EarlyStoppingCallback(early_stopping_patience=2)]
        done = train(tmp_path / name, name, Dense(), rows(8), eval_dataset=rows(16), callbacks=stop, **options)
        results.append(done)
    expected, found = results
    assert 2 < found.trainer.state.global_step == expected.trainer.state.global_step < 30
    assert (
        Path(str(found.trainer.state.best_model_checkpoint)).name
        == Path(str(expected.trainer.state.best_model_checkpoint)).name
    )
    assert found.trainer.state.best_metric == pytest.approx(expected.trainer.state.best_metric, rel=1e-4)
    same_weights(found.weights(), expected.weights(), 1e-3)
    assert close([found.trainer.evaluate()["eval_loss"]], [min(found.logged("eval_loss"))], 1e-5)


class Bent(Dense):
    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        return super().forward(x.abs() * 2, labels)


@feature("a second train() of the same Trainer, another model, and model_init")
def test_training_again(engine: str, tmp_path: Path) -> None:
    results = []
    for name in ("torch", engine):
        trainer = Trainer(Dense(), arguments(tmp_path / name, name), train_dataset=rows())
        trainer.train()
        trainer.train()
        made = Trainer(args=arguments(tmp_path / name, name), model_init=partial(Dense, 6, 3), train_dataset=rows())
        made.train()
        other = Trainer(Dense(), arguments(tmp_path / name, name), train_dataset=rows())
        other.train()
        # The next model has the same inputs and computes something else with them.
        other.fit(Bent())
        results.append([dict(each.model.state_dict()) for each in (trainer, made, other)])
    for expected, found in zip(*results, strict=True):
        same_weights(found, expected, 1e-4)
