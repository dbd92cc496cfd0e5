"""Optimizers and schedules of a Module: several as one, by step, by epoch, by metric, and by hand."""

from __future__ import annotations

import copy
import itertools
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import (
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
    StepLR,
)

from tests.models import classification_rows
from tests.modules import Classifier, StopAt, equal, weights
from trainwright import Module, StepPlan, Trainer, TrainingArguments
from trainwright.engines.torch.joint import JointOptimizer, JointSchedule, join_optimizers

MakeArgs = Callable[..., TrainingArguments]
Configure = Callable[[Module, StepPlan], Any]


def configured(configure: Configure) -> Classifier:
    class Configured(Classifier):
        def configure_optimizers(self, plan: StepPlan) -> Any:
            return configure(self, plan)

    return Configured()


def rates(trainer: Trainer) -> list[float]:
    return [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]


def run_in_two(
    make_args: MakeArgs, tmp_path: Path, make: Callable[[], Module], stop_at: int, **options: Any
) -> Trainer:
    """Train until ``stop_at``, then go on in a second Trainer."""
    given = {"output_dir": str(tmp_path / "cut"), "save_strategy": "steps", "save_steps": stop_at, **options}
    rows = classification_rows(20)
    data = {"train_dataset": rows, "eval_dataset": rows[:8]}
    Trainer(make(), make_args(**given), callbacks=[StopAt(stop_at)], **data).train()
    second = Trainer(make(), make_args(**given), **data)
    second.train(resume_from_checkpoint=str(tmp_path / f"cut/checkpoint-{stop_at}"))
    return second


# ---- what may be returned


def test_without_an_answer_the_arguments_decide(make_args: MakeArgs) -> None:
    module, plain = configured(lambda module, plan: None), Classifier()
    for trained in (module, plain):
        Trainer(trained, make_args(max_steps=3), train_dataset=classification_rows(16)).train()
    assert equal(module, plain)


def test_the_plan_says_how_long_the_training_is(make_args: MakeArgs) -> None:
    plans: list[StepPlan] = []

    def train(**options: Any) -> None:
        module = configured(lambda module, plan: plans.append(plan))
        args = make_args(per_device_train_batch_size=4, gradient_accumulation_steps=2, **options)
        Trainer(module, args, train_dataset=classification_rows(20)).train()

    train(num_train_epochs=2)
    train(max_steps=4)
    assert plans == [StepPlan(6, 3, 2), StepPlan(4, 3, 2)]


def test_the_plan_may_be_left_out(make_args: MakeArgs) -> None:
    class Short(Classifier):
        def configure_optimizers(self) -> Any:  # type: ignore[override]
            return SGD(self.parameters(), lr=0.25)

    trainer = Trainer(Short(), make_args(max_steps=2, logging_steps=1), train_dataset=classification_rows(16))
    trainer.train()
    assert rates(trainer) == [0.25, 0.25]
    assert isinstance(trainer.optimizer, SGD)


def _single(module: Module, plan: StepPlan) -> tuple[Any, Any]:
    optimizer = SGD(module.parameters(), lr=1.0)
    return optimizer, LambdaLR(optimizer, lambda step: 1 / (1 + step))


FORMS: dict[str, Callable[[Any, Any], Any]] = {
    "tuple": lambda optimizer, schedule: (optimizer, schedule),
    "lists": lambda optimizer, schedule: ([optimizer], [schedule]),
    "dict": lambda optimizer, schedule: {"optimizer": optimizer, "lr_scheduler": schedule},
    "nested": lambda optimizer, schedule: {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule}},
    "by step": lambda optimizer, schedule: (optimizer, {"scheduler": schedule, "interval": "step"}),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_one_optimizer_with_a_schedule(make_args: MakeArgs, form: str) -> None:
    module = configured(lambda module, plan: FORMS[form](*_single(module, plan)))
    trainer = Trainer(module, make_args(max_steps=3, logging_steps=1), train_dataset=classification_rows(16))
    trainer.train()
    assert rates(trainer) == [1.0, 1 / 2, 1 / 3]
    assert isinstance(trainer.lr_scheduler, LambdaLR)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda m: "adam", r"returned \['str'\]"),
        (lambda m: [], "no optimizer"),
        (lambda m: {"optimiser": 1}, "'optimizer' and 'lr_scheduler'"),
        (lambda m: (SGD(m.parameters()), "cosine"), r"no step\(\)"),
        (lambda m: _with_keys(m, monitor="loss"), "metric_for_best_model"),
        (lambda m: _with_keys(m, interval="day"), "'step' or 'epoch'"),
    ],
)
def test_what_cannot_be_understood_is_refused(make_args: MakeArgs, answer: Any, message: str) -> None:
    module = configured(lambda module, plan: answer(module))
    with pytest.raises(ValueError, match=message):
        Trainer(module, make_args(max_steps=1), train_dataset=classification_rows(8)).train()


def _with_keys(module: Module, **keys: Any) -> Any:
    optimizer = SGD(module.parameters(), lr=0.1)
    return optimizer, {"scheduler": StepLR(optimizer, 1), **keys}


def test_two_makers_of_optimizers_are_refused(make_args: MakeArgs) -> None:
    module = configured(lambda module, plan: SGD(module.parameters(), lr=0.1))
    with pytest.raises(ValueError, match="which one should be used"):
        Trainer(module, make_args(), optimizers=(SGD(module.parameters(), lr=0.1), None))
    with pytest.raises(ValueError, match="which one should be used"):
        Trainer(module, make_args(), optimizer_cls_and_kwargs=(SGD, {"lr": 0.1}))


def test_arguments_that_do_not_act_are_said(make_args: MakeArgs, caplog: pytest.LogCaptureFixture) -> None:
    module = configured(lambda module, plan: SGD(module.parameters(), lr=0.1))
    args = make_args(max_steps=1, learning_rate=3.0, lr_scheduler_type="cosine")
    with caplog.at_level(logging.INFO, "trainwright"):
        Trainer(module, args, train_dataset=classification_rows(8)).train()
    assert "learning_rate, lr_scheduler_type of the arguments act only where" in caplog.text


def test_parameter_groups_for_the_optimizer_of_the_arguments(make_args: MakeArgs) -> None:
    class Grouped(Classifier):
        def parameter_groups(self, args: Any) -> list[dict[str, Any]]:
            first, second = self.model.first.parameters(), self.model.second.parameters()
            return [{"params": list(first)}, {"params": list(second), "lr": args.learning_rate * 10}]

    args = make_args(max_steps=1, learning_rate=0.5, lr_scheduler_type="constant")
    trainer = Trainer(Grouped(), args, train_dataset=classification_rows(8))
    trainer.train()
    assert trainer.get_learning_rates() == [0.5, 5.0]


# ---- schedules


def test_one_cycle_ends_exactly_at_the_last_step(make_args: MakeArgs) -> None:
    def configure(module: Module, plan: StepPlan) -> Any:
        optimizer = SGD(module.parameters(), lr=0.1)
        return optimizer, OneCycleLR(optimizer, max_lr=0.1, total_steps=plan.max_steps)

    args = make_args(num_train_epochs=2, per_device_train_batch_size=3, gradient_accumulation_steps=2, logging_steps=1)
    trainer = Trainer(configured(configure), args, train_dataset=classification_rows(17))
    trainer.train()
    assert len(rates(trainer)) == trainer.state.max_steps == 6
    assert rates(trainer)[-1] == pytest.approx(0.1 / 25 / 1e4)


def test_a_schedule_by_epoch(make_args: MakeArgs) -> None:
    def configure(module: Module, plan: StepPlan) -> Any:
        optimizer = SGD(module.parameters(), lr=1.0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": StepLR(optimizer, 1, 0.5), "interval": "epoch"}}

    options: dict[str, Any] = {"per_device_train_batch_size": 8, "logging_steps": 1}
    trainer = Trainer(configured(configure), make_args(max_steps=5, **options), train_dataset=classification_rows(16))
    trainer.train()
    assert rates(trainer) == [1.0, 1.0, 0.5, 0.5, 0.25]
    # The third epoch was broken off: it does not count.
    assert trainer.get_learning_rates() == [0.25]


def test_a_schedule_by_metric_among_others(make_args: MakeArgs) -> None:
    def configure(module: Any, plan: StepPlan) -> Any:
        first = SGD(module.model.first.parameters(), lr=1.0)
        second = SGD(module.model.second.parameters(), lr=1.0)
        plateau = ReduceLROnPlateau(first, factor=0.5, patience=0, mode="max")
        return [first, second], [plateau, StepLR(second, 2, 0.1)]

    class Worse(Classifier):
        def validation_step(self, batch: Any) -> Any:
            self.log("score", 1.0)

        configure_optimizers = configure

    options: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 1, "greater_is_better": True}
    rows = classification_rows(16)
    args = make_args(max_steps=3, metric_for_best_model="score", **options)
    trainer = Trainer(Worse(), args, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    assert isinstance(trainer.lr_scheduler, JointSchedule)
    assert trainer.get_learning_rates() == pytest.approx([0.25, 0.1])
    with pytest.raises(ValueError, match="name it in metric_for_best_model"):
        Trainer(Worse(), make_args(max_steps=3), train_dataset=rows).train()


SCHEDULES: dict[str, Callable[[Any, StepPlan], Any]] = {
    "milestones": lambda optimizer, plan: MultiStepLR(optimizer, [2, 5, 7], 0.5),
    "one cycle": lambda optimizer, plan: OneCycleLR(optimizer, 0.1, total_steps=plan.max_steps),
    "epochs": lambda optimizer, plan: {"scheduler": MultiStepLR(optimizer, [1, 2], 0.5), "interval": "epoch"},
    "both": lambda optimizer, plan: [
        {"scheduler": ExponentialLR(optimizer, 0.5), "interval": "epoch"},
        LinearLR(optimizer, total_iters=plan.max_steps),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("stop_at", [3, 5])
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_resume_where_they_were(make_args: MakeArgs, tmp_path: Path, name: str, stop_at: int) -> None:
    def make() -> Module:
        def configure(module: Module, plan: StepPlan) -> Any:
            optimizer = Adam(module.parameters(), lr=0.1)
            return optimizer, SCHEDULES[name](optimizer, plan)

        return configured(configure)

    options: dict[str, Any] = {"num_train_epochs": 3, "per_device_train_batch_size": 6, "logging_steps": 1}
    whole = Trainer(make(), make_args(**options), train_dataset=classification_rows(20))
    whole.train()
    resumed = run_in_two(make_args, tmp_path, make, stop_at, **options)
    assert rates(resumed) == rates(whole)
    assert len(set(rates(whole))) > 2
    assert equal(whole.model, resumed.model)


# ---- several optimizers


def _two(module: Any, plan: StepPlan) -> Any:
    first = AdamW(module.model.first.parameters(), lr=0.01)
    second = SGD(module.model.second.parameters(), lr=0.1, momentum=0.9)
    return [first, second], [LinearLR(first, total_iters=5), LinearLR(second, 0.5, total_iters=3)]


def test_several_optimizers_equal_a_raw_loop(make_args: MakeArgs) -> None:
    rows = classification_rows(16)
    options: dict[str, Any] = {"train_sampling_strategy": "sequential", "per_device_train_batch_size": 4}
    module, raw = configured(_two), Classifier()
    trainer = Trainer(module, make_args(num_train_epochs=2, **options), train_dataset=rows)
    trainer.train()
    optimizers, schedules = _two(raw, StepPlan(8, 4, 2))
    for start in [0, 4, 8, 12] * 2:
        batch = {name: torch.stack([row[name] for row in rows[start : start + 4]]) for name in rows[0]}
        raw.training_step(batch).backward()
        nn.utils.clip_grad_norm_(raw.parameters(), 1.0)
        for tool in (*optimizers, *schedules):
            tool.step()
        raw.zero_grad()
    assert equal(module, raw)
    assert isinstance(trainer.optimizer, JointOptimizer)


@pytest.mark.slow
def test_several_optimizers_resume_bit_for_bit(make_args: MakeArgs, tmp_path: Path) -> None:
    whole = Trainer(configured(_two), make_args(max_steps=6), train_dataset=classification_rows(20))
    whole.train()
    resumed = run_in_two(make_args, tmp_path, lambda: configured(_two), 3, max_steps=6)
    assert equal(whole.model, resumed.model)
    stored = json.loads((tmp_path / "cut/checkpoint-3/training_state.json").read_text())
    assert stored["tools"]["optimizer"] == "AdamW + SGD"
    swapped = configured(lambda module, plan: list(reversed(_two(module, plan)[0])))
    trainer = Trainer(swapped, make_args(output_dir=str(tmp_path / "cut"), max_steps=6))
    with pytest.raises(ValueError, match=r"was AdamW \+ SGD .* and is SGD \+ AdamW now"):
        trainer.fit(train=classification_rows(20), resume_from_checkpoint=True)


def test_a_joint_optimizer_works_with_the_scaler() -> None:
    def train(joined: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
        parts = [Adam(model[0].parameters(), fused=True), Adam(model[1].parameters(), fused=True)]
        optimizers = [join_optimizers(parts)] if joined else parts
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for factor in (1.0, float("inf"), 2.0):
            scaler.scale(model(torch.full((2, 3), factor)).sum()).backward()
            for optimizer in optimizers:
                scaler.unscale_(optimizer)
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
            model.zero_grad()
        return weights(model)

    assert all(torch.equal(a, b) for a, b in zip(train(True), train(False), strict=True))


def test_a_joint_optimizer_passes_its_state_on() -> None:
    def joint() -> tuple[list[nn.Parameter], Any]:
        parameters = [nn.Parameter(torch.ones(2)) for _ in range(3)]
        return parameters, join_optimizers([Adam(parameters[:2]), SGD(parameters[2:], lr=0.1, momentum=0.9)])

    parameters, first = joint()
    for _ in range(2):
        sum((p**2).sum() for p in parameters).backward()  # type: ignore[union-attr]
        first.step()
        first.zero_grad()
    others, second = joint()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    with torch.no_grad():
        for old, new in zip(parameters, others, strict=True):
            new.copy_(old)
    for group, optimizer in ((parameters, first), (others, second)):
        sum((p**2).sum() for p in group).backward()  # type: ignore[union-attr]
        optimizer.step()
    assert all(torch.equal(old, new) for old, new in zip(parameters, others, strict=True))
    with pytest.raises(ValueError, match="closure"):
        second.step(lambda: 0)


# ---- by hand


class Gan(Module):
    """Two networks against each other: everything is done in ``training_step``."""

    automatic_optimization = False

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.maker = nn.Linear(2, 6)
        self.judge = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))

    def configure_optimizers(self, plan: StepPlan) -> Any:
        judge = Adam(self.judge.parameters(), lr=0.01)
        maker = Adam(self.maker.parameters(), lr=0.02)
        return [judge, maker], [ExponentialLR(judge, 0.9), ExponentialLR(maker, 0.8)]

    def losses(self, batch: Any) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
        made = self.maker(torch.randn(len(batch["x"]), 2))
        return (
            lambda: F.softplus(self.judge(made.detach())).mean() + F.softplus(-self.judge(batch["x"])).mean(),
            lambda: F.softplus(-self.judge(made)).mean(),
        )

    def training_step(self, batch: Any) -> Any:
        for optimizer, schedule, loss in zip(self.optimizers(), self.schedulers(), self.losses(batch), strict=True):
            optimizer.zero_grad()
            value = loss()
            self.backward(value)
            optimizer.step()
            schedule.step()
        self.log("made", value.detach())
        return value


def test_a_gan_by_hand_equals_a_raw_loop(make_args: MakeArgs) -> None:
    rows = classification_rows(12)
    options: dict[str, Any] = {"train_sampling_strategy": "sequential", "per_device_train_batch_size": 4}
    module = Gan()
    trainer = Trainer(module, make_args(num_train_epochs=2, logging_steps=1, **options), train_dataset=rows)
    trainer.train()

    raw = Gan()
    torch.manual_seed(42)
    optimizers, schedules = raw.configure_optimizers(StepPlan(6, 3, 2))
    logged = []
    for start in [0, 4, 8] * 2:
        batch = {"x": torch.stack([row["x"] for row in rows[start : start + 4]])}
        for optimizer, schedule, loss in zip(optimizers, schedules, raw.losses(batch), strict=True):
            optimizer.zero_grad()
            value = loss()
            value.backward()
            optimizer.step()
            schedule.step()
        logged.append(value.item())
    assert equal(module, raw)
    entries = [entry for entry in trainer.state.log_history if "made" in entry]
    assert [entry["made"] for entry in entries] == [entry["loss"] for entry in entries] == logged


@pytest.mark.slow
@pytest.mark.parametrize("background", [True, False])
def test_a_gan_resumes_bit_for_bit(make_args: MakeArgs, tmp_path: Path, background: bool) -> None:
    options: dict[str, Any] = {"max_steps": 7, "save_in_background": background}
    whole = Trainer(Gan(), make_args(**options), train_dataset=classification_rows(20))
    whole.train()
    resumed = run_in_two(make_args, tmp_path, Gan, 4, **options)
    assert equal(whole.model, resumed.model)
    assert all(torch.equal(a, b) for a, b in zip(whole.model.buffers(), resumed.model.buffers(), strict=True))


def test_a_step_by_hand_that_fails_in_the_middle_is_not_saved(make_args: MakeArgs, tmp_path: Path) -> None:
    class Failing(Gan):
        calls = itertools.count(1)

        def training_step(self, batch: Any) -> Any:
            loss = super().training_step(batch)
            if next(self.calls) == 4:
                raise RuntimeError("half way")
            return loss

    args = make_args(max_steps=6, save_strategy="steps", save_steps=2)
    with pytest.raises(RuntimeError, match="half way"):
        Trainer(Failing(), args, train_dataset=classification_rows(20)).train()
    assert sorted(path.name for path in (tmp_path / "run").glob("checkpoint-*")) == ["checkpoint-2"]
    events = (tmp_path / "run/events.jsonl").read_text()
    assert "not_saved" in events


def test_without_a_loss_none_is_logged(make_args: MakeArgs) -> None:
    class Quiet(Gan):
        def training_step(self, batch: Any) -> Any:
            super().training_step(batch)

    trainer = Trainer(Quiet(), make_args(max_steps=2, logging_steps=1), train_dataset=classification_rows(8))
    trainer.train()
    assert [set(entry) for entry in trainer.state.log_history[:2]] == [{"made", "learning_rate", "epoch", "step"}] * 2


def test_optimizers_by_hand_look_like_optimizers(make_args: MakeArgs) -> None:
    class Looking(Gan):
        def training_step(self, batch: Any) -> Any:
            seen.extend(group["lr"] for optimizer in self.optimizers() for group in optimizer.param_groups)
            return super().training_step(batch)

    seen: list[float] = []
    Trainer(Looking(), make_args(max_steps=1), train_dataset=classification_rows(8)).train()
    assert seen == [0.01, 0.02]


@pytest.mark.parametrize(
    ("options", "name"),
    [({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps"), ({"micro_batch": "auto"}, "micro_batch")],
)
def test_what_cannot_act_by_hand_is_refused(make_args: MakeArgs, options: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} cannot act"):
        Trainer(Gan(), make_args(**options))


def test_more_that_cannot_act_by_hand(make_args: MakeArgs, caplog: pytest.LogCaptureFixture) -> None:
    class Overriding(Trainer):
        def training_step(self, *args: Any, **kwargs: Any) -> Any: ...

    class ByEpoch(Gan):
        def configure_optimizers(self, plan: StepPlan) -> Any:
            optimizer = SGD(self.parameters(), lr=0.1)
            return optimizer, {"scheduler": StepLR(optimizer, 1), "interval": "epoch"}

    with pytest.raises(ValueError, match="would never be called"):
        Overriding(Gan(), make_args())
    with pytest.raises(ValueError, match="steps its schedules itself"):
        Trainer(ByEpoch(), make_args(max_steps=1), train_dataset=classification_rows(8)).train()
    with caplog.at_level(logging.INFO, "trainwright"):
        Trainer(Gan(), make_args())
    assert "max_grad_norm" in caplog.text
