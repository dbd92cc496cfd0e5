"""Losses in a training: cut however, weighed by the data, resumed, refused where they would differ."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.models import Bare, classification_rows, tiny_gpt2, token_rows
from trainwright import (
    BinaryCrossEntropyLoss,
    ContrastiveLoss,
    CrossEntropyLoss,
    FocalLoss,
    InfoNCELoss,
    Loss,
    OrdinalLoss,
    SupConLoss,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    TripletLoss,
    register,
)

MakeArguments = Callable[..., TrainingArguments]


def some_ignored(rows: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    """A few labels that do not count, not evenly spread over micro-batches."""
    return [{**row, "labels": torch.tensor(-100) if i in (0, 1, 2, 7) else row["labels"]} for i, row in enumerate(rows)]


def several(rows: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    marks = [F.one_hot(row["labels"], 3) for row in rows]
    hidden = [torch.where(torch.arange(3) < i % 3, -100, mark) for i, mark in enumerate(marks)]
    return [{**row, "labels": mark.double()} for row, mark in zip(rows, hidden, strict=True)]


class Pixels(nn.Module):
    """Scores of three classes for each of four pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Bare(classes=12).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).reshape(-1, 3, 2, 2)


class Embedding(nn.Module):
    """An embedding for each of several inputs of a sample."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.inner, self.count = Bare(classes=4).double(), count

    def forward(self, x: Tensor) -> Tensor:
        found = self.inner(x.reshape(-1, 6)).reshape(-1, self.count, 4)
        return found if self.count > 1 else found.squeeze(1)


def pixel_rows() -> list[dict[str, Tensor]]:
    rows = classification_rows(16, dtype=torch.float64)
    marks = torch.randint(0, 3, (16, 2, 2), generator=torch.Generator().manual_seed(3))
    marks[3], marks[5, 0] = -100, -100
    return [{"x": row["x"], "labels": mark} for row, mark in zip(rows, marks, strict=True)]


def sets(count: int, labels: bool) -> list[dict[str, Tensor]]:
    rows = classification_rows(16, width=6 * count, classes=2, dtype=torch.float64)
    return [{"x": row["x"].reshape(count, 6), **({"labels": row["labels"]} if labels else {})} for row in rows]


ROWS = classification_rows(16, dtype=torch.float64)
CASES: dict[str, tuple[Callable[[], nn.Module], list[dict[str, Tensor]], Callable[[], Any]]] = {
    "cross entropy": (
        lambda: Bare().double(),
        some_ignored(ROWS),
        lambda: CrossEntropyLoss(0.1, class_weights=[0.5, 1.0, 4.0]),
    ),
    "balanced": (lambda: Bare().double(), some_ignored(ROWS), lambda: CrossEntropyLoss(class_weights="balanced")),
    "focal": (lambda: Bare().double(), some_ignored(ROWS), lambda: FocalLoss(1.5)),
    "ordinal": (lambda: Bare().double(), some_ignored(ROWS), OrdinalLoss),
    "bce": (lambda: Bare().double(), several(ROWS), lambda: BinaryCrossEntropyLoss([2.0, 1.0, 0.5])),
    "dice": (Pixels, pixel_rows(), lambda: {"name": "dice_ce", "background": False}),
    "contrastive": (lambda: Embedding(2), sets(2, labels=True), lambda: ContrastiveLoss(margin=2.0)),
    "triplet": (lambda: Embedding(3), sets(3, labels=False), lambda: TripletLoss(margin=2.0)),
}


def trained(make_args: MakeArguments, name: str, size: int, accumulation: int, **more: Any) -> Trainer:
    model, rows, loss = CASES[name]
    args = make_args(
        per_device_train_batch_size=size,
        gradient_accumulation_steps=accumulation,
        max_steps=2,
        learning_rate=0.1,
        optim="sgd",
        max_grad_norm=0.0,
        train_sampling_strategy="sequential",
        logging_steps=1,
        **more,
    )
    trainer = Trainer(model(), args, train_dataset=rows, eval_dataset=rows, compute_loss_func=loss())
    trainer.train()
    return trainer


@pytest.mark.parametrize("name", CASES)
def test_an_update_does_not_depend_on_how_its_batch_was_cut(make_args: MakeArguments, name: str) -> None:
    whole = trained(make_args, name, 16, 1)
    first = whole.state.log_history[0]["loss"]
    assert first > 0
    for size, accumulation, more in ((4, 4, {}), (5, 4, {}), (16, 1, {"micro_batch": 3})):
        other = trained(make_args, name, size, accumulation, **more)
        assert other.state.log_history[0]["loss"] == pytest.approx(first, rel=1e-9)
        for one, same in zip(whole.model.parameters(), other.model.parameters(), strict=True):
            torch.testing.assert_close(same, one, rtol=1e-10, atol=1e-12)
    # An evaluation is the same mean, whatever its batches.
    whole.args.per_device_eval_batch_size = 16
    at_once = whole.evaluate()["eval_loss"]
    whole.args.per_device_eval_batch_size = 3
    assert whole.evaluate()["eval_loss"] == pytest.approx(at_once, rel=1e-9)


def test_one_large_batch_is_the_loss_itself(make_args: MakeArguments) -> None:
    """What the Trainer makes of a loss is its plain gradient: not scaled, not weighted twice."""
    model, rows, loss = CASES["bce"]
    by_hand = model()
    outputs = by_hand(torch.stack([row["x"] for row in rows]))
    loss()(outputs, torch.stack([row["labels"] for row in rows])).backward()
    ours = Trainer(
        model(),
        make_args(per_device_train_batch_size=4, gradient_accumulation_steps=4, max_steps=1, learning_rate=0.1, **SGD),
        train_dataset=rows,
        compute_loss_func=loss(),
    )
    ours.train()
    for one, other in zip(by_hand.parameters(), ours.model.parameters(), strict=True):
        assert one.grad is not None
        torch.testing.assert_close(other, one - 0.1 * one.grad, rtol=1e-10, atol=1e-12)


SGD: dict[str, Any] = {
    "optim": "sgd",
    "lr_scheduler_type": "constant",
    "max_grad_norm": 0.0,
    "train_sampling_strategy": "sequential",
}


def test_balanced_weights_are_those_of_the_training_data(make_args: MakeArguments) -> None:
    trainer = trained(make_args, "balanced", 16, 1)
    labels = [int(row["labels"]) for row in CASES["balanced"][1]]
    counted = [labels.count(one) for one in range(3)]
    loss = trainer.compute_loss_func
    assert isinstance(loss, CrossEntropyLoss)
    assert loss.found_weights == pytest.approx([12 / (3 * count) for count in counted])
    # Other data, other weights; an evaluation alone finds them too.
    trainer.fit(train=ROWS[:5])
    assert [int(row["labels"]) for row in ROWS[:5]] == [0, 2, 2, 0, 0]
    assert loss.found_weights == pytest.approx([5 / 6, 1.0, 5 / 4])
    alone = Trainer(
        Bare().double(),
        make_args(),
        train_dataset=ROWS,
        eval_dataset=ROWS,
        compute_loss_func=FocalLoss(class_weights="balanced"),
    )
    assert alone.evaluate()["eval_loss"] > 0
    assert isinstance(alone.compute_loss_func, FocalLoss)
    assert alone.compute_loss_func.found_weights is not None


def test_labels_that_cannot_be_counted_are_refused(make_args: MakeArguments) -> None:
    stream: Any = iter([])

    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return stream

    loss = CrossEntropyLoss(class_weights="balanced")
    for data, words in ((Stream(), "cannot be counted in a stream"), ([{"x": torch.zeros(6)}], "a sample holds x")):
        with pytest.raises(ValueError, match=words):
            Trainer(Bare(), make_args(max_steps=1), train_dataset=data, compute_loss_func=loss).train()


class Seen(TrainerCallback):
    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.losses += [kwargs["logs"]["loss"]] if "loss" in kwargs["logs"] else []


def test_a_language_model_learns_the_next_token(make_args: MakeArguments) -> None:
    """Without options, the loss by name is the model's own: labels are shifted for it."""
    found = []
    for loss in (None, "cross_entropy"):
        seen = Seen()
        args = make_args(per_device_train_batch_size=4, gradient_accumulation_steps=2, max_steps=2, logging_steps=1)
        Trainer(tiny_gpt2(), args, train_dataset=token_rows(), compute_loss_func=loss, callbacks=[seen]).train()
        found.append(seen.losses)
    assert found[1] == pytest.approx(found[0], rel=1e-6)
    trainer = Trainer(tiny_gpt2(), make_args(max_steps=1), train_dataset=token_rows(), compute_loss_func=loss)
    trainer.compute_loss_func = CrossEntropyLoss(class_weights="balanced")
    with pytest.raises(ValueError, match="this model learns the next token"):
        trainer.train()


class Dropping(Bare):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return F.dropout(super().forward(x), 0.3, self.training)


def test_a_resume_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    def trainer(folder: Path, **more: Any) -> Trainer:
        args = TrainingArguments(
            str(folder),
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            max_steps=6,
            learning_rate=1e-2,
            disable_tqdm=True,
            report_to="none",
            **more,
        )
        loss = CrossEntropyLoss(smoothing=0.1, class_weights="balanced")
        return Trainer(Dropping(), args, train_dataset=some_ignored(classification_rows(16)), compute_loss_func=loss)

    whole = trainer(tmp_path / "whole", save_strategy="no")
    whole.train()
    first = trainer(tmp_path / "cut", save_steps=3)
    first.add_callback(StopAt())
    first.train()
    assert first.state.global_step == 3
    second = trainer(tmp_path / "cut", save_steps=3)
    second.train(resume_from_checkpoint=True)
    assert second.state.global_step == 6
    for one, other in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)


class StopAt(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step >= 3


@pytest.mark.parametrize(
    "loss", [InfoNCELoss(), TripletLoss(mining="all"), SupConLoss()], ids=lambda one: type(one).__name__
)
def test_a_loss_of_the_whole_batch_says_what_a_cut_changes(
    make_args: MakeArguments, caplog: pytest.LogCaptureFixture, loss: Loss
) -> None:
    needs = loss.needs_labels
    model, rows = Embedding(1 if needs else 2), sets(1 if needs else 2, labels=needs)

    def train(**more: Any) -> dict[str, float]:
        caplog.clear()
        args = make_args(per_device_train_batch_size=4, max_steps=2, eval_strategy="steps", eval_steps=2, **more)
        trainer = Trainer(model, args, train_dataset=rows, eval_dataset=rows, compute_loss_func=loss)
        with caplog.at_level(logging.WARNING, "trainwright"):
            trainer.train()
        return next(entry for entry in trainer.state.log_history if "eval_loss" in entry)

    # Also without labels there is something to evaluate by.
    assert train()["eval_loss"] > 0
    assert "not that of one large batch" not in caplog.text
    train(gradient_accumulation_steps=2)
    assert caplog.text.count("with accumulation over 2 batches the gradient is the mean of those of batches of 4") == 1
    with pytest.raises(ValueError, match=r"micro_batch='auto' cuts batches, which changes what \w+ computes"):
        train(micro_batch="auto")


def test_what_would_have_no_effect_is_refused(make_args: MakeArguments) -> None:
    with pytest.raises(ValueError, match=r"take CrossEntropyLoss\(smoothing=...\)"):
        Trainer(
            Bare(), make_args(max_steps=1, label_smoothing_factor=0.1), train_dataset=ROWS, compute_loss_func="focal"
        ).train()
    with pytest.raises(ValueError, match=r"is a class: make one of it, FocalLoss\(\)"):
        Trainer(Bare(), make_args(), compute_loss_func=FocalLoss)
    with pytest.raises(ValueError, match=r"there is no option 'gama' \(did you mean 'gamma'\?\)"):
        Trainer(Bare(), make_args(), compute_loss_func={"name": "focal", "gama": 1})
    with pytest.raises(ValueError, match=r"no loss 'focl' \(did you mean 'focal'\?\)"):
        Trainer(Bare(), make_args(), compute_loss_func={"name": "focl"})
    with pytest.raises(ValueError, match="needs the name of a loss"):
        Trainer(Bare(), make_args(), compute_loss_func={"gamma": 1})
    with pytest.raises(ValueError, match=r"there is no option 'labels'; there are delta"):
        Trainer(Bare(), make_args(), compute_loss_func={"name": "huber", "labels": 1})


def test_one_of_ones_own_takes_options_too(make_args: MakeArguments) -> None:
    @register("loss", "power-of-losses-tests")
    def power(outputs: Tensor, labels: Tensor, exponent: float = 2.0) -> Tensor:
        return (outputs - labels).abs().pow(exponent).mean()

    trainer = Trainer(Bare(), make_args(), compute_loss_func={"name": "power-of-losses-tests", "exponent": 3.0})
    assert trainer.compute_loss_func is not None
    assert trainer.compute_loss_func(torch.tensor([2.0]), torch.tensor([0.0])).item() == 8.0
    huber = Trainer(Bare(), make_args(), compute_loss_func={"name": "huber", "delta": 0.5}).compute_loss_func
    assert huber is not None
    assert huber(torch.tensor([2.0]), torch.tensor([0.0])).item() == pytest.approx(0.5 * (2 - 0.25))
