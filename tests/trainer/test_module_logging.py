"""What a Module logs, hears and keeps."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models import classification_rows
from tests.modules import Classifier, StopAt
from trainwright import Trainer, TrainingArguments
from trainwright.engines.torch.logged import LoggedValues, Means

MakeArgs = Callable[..., TrainingArguments]


class Logging(Classifier):
    """Logs the mean of a column."""

    def training_step(self, batch: Any) -> Any:
        self.log("mean_x", batch["x"][:, 0].mean())
        self.log("by_weight", batch["x"][:, 0].mean(), weight=2)
        return super().training_step(batch)

    def validation_step(self, batch: Any) -> Any:
        self.log("mean_x", batch["x"][:, 0].double().mean())
        return super().validation_step(batch)


def ragged_rows(count: int) -> list[dict[str, Tensor]]:
    """Rows some of which are no target: batches weigh unequally."""
    rows = classification_rows(count)
    return [{**row, "labels": row["labels"] if index % 3 else torch.tensor(-100)} for index, row in enumerate(rows)]


def logged(trainer: Trainer, name: str) -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def test_means_between_two_logs_are_weighted_by_targets(make_args: MakeArgs) -> None:
    rows = ragged_rows(24)
    options: dict[str, Any] = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    args = make_args(num_train_epochs=1, logging_steps=2, train_sampling_strategy="sequential", **options)
    trainer = Trainer(Logging(), args, train_dataset=rows)
    trainer.train()
    assert len(logged(trainer, "mean_x")) == 1
    total = weights = plain = 0.0
    for start in range(0, 16, 4):
        batch = rows[start : start + 4]
        targets = sum(int(row["labels"]) != -100 for row in batch)
        mean = float(torch.stack([row["x"][0] for row in batch]).mean())
        total, weights, plain = total + targets * mean, weights + targets, plain + mean / 4
    assert logged(trainer, "mean_x") == [pytest.approx(total / weights, rel=1e-12)]
    assert logged(trainer, "by_weight") == [pytest.approx(plain, rel=1e-12)]


@pytest.mark.parametrize("size", [1, 4, 7])
def test_means_of_an_evaluation_do_not_depend_on_the_batches(make_args: MakeArgs, size: int) -> None:
    rows = classification_rows(10)
    trainer = Trainer(Logging(), make_args(per_device_eval_batch_size=size))
    expected = float(torch.stack([row["x"][0].double() for row in rows]).mean())
    assert trainer.evaluate(rows)["eval_mean_x"] == pytest.approx(expected, rel=1e-12)
    assert trainer.evaluate({"a": rows})["eval_a_mean_x"] == pytest.approx(expected, rel=1e-12)
    assert trainer.test(rows)["test_mean_x"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.slow
def test_a_resumed_run_logs_the_same_means(make_args: MakeArgs, tmp_path: Path) -> None:
    def trainer(name: str, callbacks: list[Any]) -> Trainer:
        args = make_args(
            output_dir=str(tmp_path / name), max_steps=8, logging_steps=4, save_strategy="steps", save_steps=3
        )
        return Trainer(Logging(), args, train_dataset=ragged_rows(40), callbacks=callbacks)

    whole = trainer("whole", [])
    whole.train()
    trainer("cut", [StopAt(3)]).train()
    resumed = trainer("cut", [])
    resumed.train(resume_from_checkpoint=True)
    for name in ("mean_x", "by_weight", "loss"):
        assert logged(resumed, name) == logged(whole, name)
        assert len(logged(whole, name)) == 2


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("loss", 1.0, "hide the log's own 'loss'"),
        ("x", torch.zeros(2), r"one number, not a tensor of shape \(2,\)"),
        ("x", "text", "a number, not a str"),
    ],
)
def test_names_and_values_that_are_refused(make_args: MakeArgs, name: str, value: Any, message: str) -> None:
    class Wrong(Classifier):
        def training_step(self, batch: Any) -> Any:
            self.log(name, value)
            return super().training_step(batch)

    with pytest.raises(ValueError, match=message):
        Trainer(Wrong(), make_args(max_steps=1), train_dataset=classification_rows(8)).train()


def test_a_log_outside_a_step_is_refused(make_args: MakeArgs) -> None:
    module = Classifier()
    with pytest.raises(ValueError, match="works while a Trainer runs"):
        module.log("x", 1.0)
    Trainer(module, make_args()).evaluate(classification_rows(8))
    with pytest.raises(ValueError, match="outside a step"):
        module.log("x", 1.0)


def test_a_name_cannot_be_logged_and_computed(make_args: MakeArgs) -> None:
    trainer = Trainer(Logging(), make_args(), compute_metrics=lambda prediction: {"mean_x": 0.0})
    with pytest.raises(ValueError, match="rename one"):
        trainer.evaluate(classification_rows(4))


def test_means_leave_out_what_has_no_weight_or_is_not_finite() -> None:
    values = LoggedValues(skip_nonfinite=True)
    for weight, value in [(2, 1.0), (0, math.nan), (1, math.inf), (2, 2.0)]:
        with values.training(weight):
            values.log("v", value)
            values.log("on_device", torch.tensor(value), torch.tensor(weight))
    values.commit()
    assert values.read() == {"v": 1.5, "on_device": 1.5}
    assert values.read() == {}


def test_means_are_those_of_all_processes() -> None:
    others = {"a": [4.0, 2.0], "c": [3.0, 1.0]}
    means, values = Means(), LoggedValues(gather=lambda own: [own, others])
    with values.evaluating(means, lambda: 2):
        values.log("a", 1.0)
        values.log("b", 2.0)
    assert means.read(values.gather) == {"a": 1.5, "b": 2.0, "c": 3.0}
    assert Means().read(values.gather) == {"a": 2.0, "c": 3.0}


def test_a_step_that_is_undone_logs_nothing() -> None:
    values = LoggedValues()
    with values.training(1):
        values.log("v", 5.0)
    values.drop()
    with contextlib.suppress(RuntimeError), values.evaluating(values.means, lambda: 1):
        values.log("v", 7.0)
        raise RuntimeError
    assert values.read() == {}


# ---- hooks


def test_hooks_are_heard_in_order(make_args: MakeArgs) -> None:
    class Hearing(Classifier):
        def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            heard.append("init")

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            heard.append("begin")

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            assert kwargs["model"] is self
            heard.append(f"step {state.global_step}")

        def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            heard.append("epoch")

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            logs["added"] = 1

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            heard.append("end")

    heard: list[str] = []
    options: dict[str, Any] = {"num_train_epochs": 1, "per_device_train_batch_size": 8}
    Trainer(Hearing(), make_args(**options), train_dataset=classification_rows(16)).train()
    expected = ["init", "begin", "step 1", "step 2", "epoch", "end"]
    assert heard == expected
    heard.clear()
    Trainer(args=make_args(**options)).fit(Hearing(), classification_rows(16))
    assert heard == expected


def test_another_module_takes_the_place_of_the_first(make_args: MakeArgs) -> None:
    class Hearing(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.steps = 0

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.steps += 1

    first, second = Hearing(), Hearing()
    trainer = Trainer(args=make_args(max_steps=2))
    trainer.fit(first, classification_rows(8))
    trainer.fit(second)
    assert (first.steps, second.steps) == (2, 2)


def test_on_save_sees_a_finished_folder(make_args: MakeArgs, tmp_path: Path) -> None:
    class Saving(Classifier):
        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            found.append((tmp_path / f"run/checkpoint-{state.global_step}/model.safetensors").is_file())

    found: list[bool] = []
    args = make_args(max_steps=2, save_strategy="steps", save_steps=1)
    Trainer(Saving(), args, train_dataset=classification_rows(8)).train()
    assert found == [True, True]


# ---- state


class Remembering(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.state: dict[str, Any] = {"seen": [0], "by_step": {}, "mean": torch.zeros(6), "pair": (1, None)}

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.state["seen"][0] += 1
        self.state["by_step"][state.global_step] = 0.5
        self.state["mean"] = self.state["mean"] + 1

    def get_state(self) -> dict[str, Any]:
        return self.state

    def update_state(self, state: dict[str, Any]) -> None:
        self.state = state


def test_state_comes_back_as_it_was(make_args: MakeArgs) -> None:
    args = make_args(max_steps=4, save_strategy="steps", save_steps=2)
    rows = classification_rows(16)
    Trainer(Remembering(), args, train_dataset=rows, callbacks=[StopAt(2)]).train()
    module = Remembering()
    Trainer(module, args, train_dataset=rows).train(resume_from_checkpoint=True)
    assert module.state["seen"] == [4]
    assert module.state["by_step"] == dict.fromkeys((1, 2, 3, 4), 0.5)
    assert module.state["pair"] == (1, None)
    assert torch.equal(module.state["mean"], torch.full((6,), 4.0))


def test_state_that_cannot_be_stored_is_found_before_the_first_step(make_args: MakeArgs) -> None:
    class Unstorable(Classifier):
        def training_step(self, batch: Any) -> Any:
            raise AssertionError("no step is taken")

        def get_state(self) -> dict[str, Any]:
            return {"fine": 1, "nested": {"set": {1, 2}}}

    args = make_args(max_steps=1, save_strategy="steps", save_steps=1)
    with pytest.raises(ValueError, match=r"Unstorable\.get_state\(\)\['nested'\]\['set'\] is a set"):
        Trainer(Unstorable(), args, train_dataset=classification_rows(8)).train()
