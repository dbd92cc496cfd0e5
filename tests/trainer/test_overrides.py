"""What subclasses override is what runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.models import Plain, classification_rows
from trainwright import Trainer, TrainingArguments
from trainwright.config import TrainwrightWarning

ROWS = classification_rows(16)


def test_training_step_with_accelerate_style_backward(make_args: Callable[..., TrainingArguments]) -> None:
    class Own(Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            model.train()
            inputs = self._prepare_inputs(inputs)
            with self.compute_loss_context_manager():
                loss = self.compute_loss(model, inputs) / self.args.gradient_accumulation_steps
            self.accelerator.backward(loss)
            return loss.detach()

    settings = {
        "max_steps": 4,
        "learning_rate": 1e-2,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "logging_steps": 1,
    }
    own = Own(Plain().double(), make_args(**settings), train_dataset=classification_rows(16, dtype=torch.float64))
    own.train()
    plain = Trainer(Plain().double(), make_args(**settings), train_dataset=classification_rows(16, dtype=torch.float64))
    plain.train()
    for name, value in plain.model.state_dict().items():
        torch.testing.assert_close(own.model.state_dict()[name], value, rtol=1e-10, atol=1e-12)
    assert [e["loss"] for e in own.state.log_history if "loss" in e] == pytest.approx(
        [e["loss"] for e in plain.state.log_history if "loss" in e]
    )


def test_a_training_step_of_its_own_gets_the_steps_count(make_args: Callable[..., TrainingArguments]) -> None:
    counts: list[int] = []

    class Own(Trainer):
        def training_step(self, model, inputs, num_items_in_batch: Any = None):
            counts.append(int(num_items_in_batch))
            return super().training_step(model, inputs, num_items_in_batch)

    Own(
        Plain().float(),
        make_args(max_steps=1, per_device_train_batch_size=4, gradient_accumulation_steps=3),
        train_dataset=ROWS,
    ).train()
    assert counts == [12, 12, 12]


def test_two_argument_training_step_of_old(make_args: Callable[..., TrainingArguments]) -> None:
    class Own(Trainer):
        calls = 0

        def training_step(self, model, inputs):  # type: ignore[override]
            self.calls += 1
            return super().training_step(model, inputs)

    trainer = Own(Plain().float(), make_args(max_steps=3), train_dataset=ROWS)
    trainer.train()
    assert trainer.calls == 3


def test_loaders_and_samplers(make_args: Callable[..., TrainingArguments]) -> None:
    seen: list[float] = []

    class Reversed(Trainer):
        def _get_train_sampler(self) -> Any:  # type: ignore[override]
            return list(range(len(self.train_dataset)))[::-1]

        def compute_loss(self, model, inputs, **kwargs):  # type: ignore[override]
            seen.extend(inputs["x"][:, 0].tolist())
            return super().compute_loss(model, inputs, **kwargs)

    Reversed(Plain().float(), make_args(num_train_epochs=1, per_device_train_batch_size=4), train_dataset=ROWS).train()
    assert seen == [row["x"][0].item() for row in reversed(ROWS)]


def test_eval_loader_prediction_step_and_loop(make_args: Callable[..., TrainingArguments]) -> None:
    class Own(Trainer):
        def get_eval_dataloader(self, eval_dataset=None):
            rows: Any = ROWS[:6]
            return torch.utils.data.DataLoader(rows, batch_size=4, collate_fn=self.data_collator)

        def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
            loss, logits, labels = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
            return loss, None if logits is None else logits * 0 + 7, labels

        def evaluation_loop(self, *args, **kwargs):
            output = super().evaluation_loop(*args, **kwargs)
            output.metrics["eval_extra"] = 1.0
            return output

    def metric(prediction: Any) -> dict[str, float]:
        assert (prediction.predictions == 7).all()
        return {"rows": len(prediction.predictions)}

    metrics = Own(Plain().float(), make_args(eval_strategy="no"), compute_metrics=metric).evaluate()
    assert metrics["eval_rows"] == 6
    assert metrics["eval_extra"] == 1.0


def test_optimizer_scheduler_log_and_save(make_args: Callable[..., TrainingArguments]) -> None:
    calls: list[str] = []

    class Own(Trainer):
        def create_optimizer(self):  # type: ignore[override]
            calls.append("optimizer")
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)
            return self.optimizer

        def create_scheduler(self, num_training_steps, optimizer=None):
            calls.append("scheduler")
            self.lr_scheduler = torch.optim.lr_scheduler.StepLR(optimizer or self.optimizer, 2, gamma=0.1)
            return self.lr_scheduler

        def log(self, logs):  # type: ignore[override]
            calls.append("log")
            super().log(logs)

        def save_model(self, output_dir=None, _internal_call=False):
            calls.append("save")
            super().save_model(output_dir, _internal_call)

    trainer = Own(
        Plain().float(),
        make_args(max_steps=4, logging_steps=1, save_strategy="steps", save_steps=4),
        train_dataset=ROWS,
    )
    trainer.train()
    assert calls == ["optimizer", "scheduler", "log", "log", "log", "log", "save", "log"]
    rates = [e["learning_rate"] for e in trainer.state.log_history if "loss" in e]
    assert rates == pytest.approx([0.5, 0.5, 0.05, 0.05])


def test_optimizers_of_the_users(make_args: Callable[..., TrainingArguments]) -> None:
    model = Plain().float()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    class Halving:
        """Not a torch scheduler: only step and state_dict."""

        def __init__(self) -> None:
            self.steps = 0

        def step(self) -> None:
            self.steps += 1
            for group in optimizer.param_groups:
                group["lr"] *= 0.5

        def state_dict(self) -> dict[str, Any]:
            return {"steps": self.steps}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.steps = state["steps"]

    trainer = Trainer(
        model, make_args(max_steps=3, logging_steps=1), train_dataset=ROWS, optimizers=(optimizer, Halving())
    )
    trainer.train()
    assert trainer.optimizer is optimizer
    assert [e["learning_rate"] for e in trainer.state.log_history if "loss" in e] == pytest.approx([0.1, 0.05, 0.025])


def test_optimizer_class_and_arguments(make_args: Callable[..., TrainingArguments]) -> None:
    trainer = Trainer(
        Plain().float(),
        make_args(max_steps=1),
        train_dataset=ROWS,
        optimizer_cls_and_kwargs=(torch.optim.RMSprop, {"lr": 0.01, "momentum": 0.5}),
    )
    trainer.train()
    assert isinstance(trainer.optimizer, torch.optim.RMSprop)
    assert trainer.optimizer.param_groups[0]["momentum"] == 0.5


@pytest.mark.parametrize(
    ("schedule", "expected"), [("constant", [0.1, 0.7, 0.7, 0.7]), ("linear", [0.1, 0.7, 0.05, 0.025])]
)
def test_a_rate_set_by_a_callback_holds_until_the_schedules_next_value(
    make_args: Callable[..., TrainingArguments], schedule: str, expected: list[float]
) -> None:
    class SetRate:
        def on_step_end(self, args: Any, state: Any, control: Any, optimizer: Any, **kwargs: Any) -> None:
            if state.global_step == 1:
                for group in optimizer.param_groups:
                    group["lr"] = 0.7

    args = make_args(max_steps=4, logging_steps=1, learning_rate=0.1, lr_scheduler_type=schedule, optim="sgd")
    trainer = Trainer(Plain().float(), args, train_dataset=ROWS, callbacks=[SetRate()])
    trainer.train()
    assert [e["learning_rate"] for e in trainer.state.log_history if "loss" in e] == pytest.approx(expected)


@pytest.mark.parametrize("scale", [1.0, 0.001])
@pytest.mark.parametrize("kind", [float, lambda total: total], ids=["number", "tensor"])
def test_counting_targets_differently(kind: Any, scale: float, make_args: Callable[..., TrainingArguments]) -> None:
    """A model that averages over something of its own stays invariant if the trainer is told what.

    All weights of a batch may be less than one together.
    """

    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Plain(6, 3)

        def forward(self, x: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            losses = nn.functional.cross_entropy(self.layer.logits(x), labels, reduction="none")
            return {"loss": (losses * weight).sum() / weight.sum()}

    class Own(Trainer):
        def count_targets(self, inputs: Any) -> Any:
            return kind(inputs["weight"].sum())

    rows = [
        {**row, "weight": torch.tensor(scale * (i % 5), dtype=torch.float64)}
        for i, row in enumerate(classification_rows(16, dtype=torch.float64))
    ]
    weights = []
    for size, accumulation in ((16, 1), (4, 4), (2, 8)):
        model = Weighted().double()
        args = make_args(
            max_steps=3,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=accumulation,
            learning_rate=1e-2,
            train_sampling_strategy="sequential",
        )
        Own(model, args, train_dataset=rows).train()
        weights.append(model.state_dict())
    for other in weights[1:]:
        for name, value in weights[0].items():
            torch.testing.assert_close(other[name], value, rtol=1e-10, atol=1e-12)


def test_accelerator_view_names_what_it_offers(make_args: Callable[..., TrainingArguments]) -> None:
    accelerator = Trainer(Plain().float(), make_args()).accelerator
    assert accelerator.num_processes == 1
    assert accelerator.unwrap_model(nn.Linear(1, 1)) is not None
    with pytest.raises(AttributeError, match="gather_for_metrics"):
        accelerator.verify_device_map  # noqa: B018


def test_public_helpers(make_args: Callable[..., TrainingArguments], capsys: pytest.CaptureFixture[str]) -> None:
    trainer = Trainer(Plain().float(), make_args(max_steps=2), train_dataset=ROWS)
    output = trainer.train()
    trainer.log_metrics("train", output.metrics)
    trainer.save_metrics("train", output.metrics)
    trainer.save_state()
    trainer.create_model_card(model_name="demo")
    trainer.save_model()
    folder = Path(trainer.args.output_dir)
    expected = {
        "train_results.json",
        "all_results.json",
        "trainer_state.json",
        "README.md",
        "model.safetensors",
        "config.yaml",
        "env.json",
        "metrics.jsonl",
    }
    assert expected <= {path.name for path in folder.iterdir()}
    assert "train_loss" in capsys.readouterr().out
    assert trainer.get_num_trainable_parameters() == sum(p.numel() for p in trainer.model.parameters())
    assert len(trainer.get_learning_rates()) >= 1
    assert trainer.is_world_process_zero()
    assert trainer.is_local_process_zero()
    assert trainer.num_examples(trainer.get_train_dataloader()) == 16
    assert trainer.get_total_train_batch_size(trainer.args) == 8


def test_an_override_that_is_never_called_is_named(make_args: Callable[..., TrainingArguments]) -> None:
    class Reaches(Trainer):
        def _maybe_log_save_evaluate(self, *args: Any) -> None:
            raise AssertionError

        def _helper_of_its_own(self) -> None: ...

    with pytest.warns(TrainwrightWarning, match="Reaches defines _maybe_log_save_evaluate, which"):
        trainer = Reaches(Plain().float(), make_args(max_steps=1), train_dataset=ROWS)
    assert trainer.train().global_step == 1
