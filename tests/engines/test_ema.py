"""The moving average of the weights, against one written by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.models import Plain, classification_rows
from trainwright import Trainer, TrainerCallback, TrainingArguments
from trainwright.core.state import TrainerControl, TrainerState
from trainwright.engines.torch.ema import EMACallback

MakeArgs = Callable[..., TrainingArguments]


class ByHand(TrainerCallback):
    """The definition, in float64."""

    def __init__(self, decay: float, start_step: int = 0) -> None:
        self.decay, self.start_step = decay, start_step
        self.average: dict[str, Tensor] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.average = {name: p.detach().double() for name, p in kwargs["model"].named_parameters()}

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        decay = self.decay if state.global_step >= self.start_step else 0.0
        for name, p in kwargs["model"].named_parameters():
            self.average[name] = decay * self.average[name] + (1 - decay) * p.detach().double()


class Normalised(Plain):
    """With batch norm, whose statistics are buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def logits(self, x: Tensor) -> Tensor:
        return super().logits(self.norm(x))


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


def train(make_args: MakeArgs, model: nn.Module, *callbacks: Any, **settings: Any) -> Trainer:
    args = make_args(**{"max_steps": 8, "learning_rate": 0.05, **settings})
    trainer = Trainer(model, args, train_dataset=classification_rows(32), callbacks=list(callbacks))
    trainer.train()
    return trainer


@pytest.mark.parametrize(("decay", "start_step"), [(0.9, 0), (0.5, 3), (0.0, 0), (0.999, 100)])
def test_it_is_the_average_it_says(make_args: MakeArgs, decay: float, start_step: int) -> None:
    ema, by_hand = EMACallback(decay, start_step), ByHand(decay, start_step)
    train(make_args, Plain(), ema, by_hand)
    averages = ema.state_dict()["tensors"]
    assert averages.keys() == by_hand.average.keys()
    for name, expected in by_hand.average.items():
        torch.testing.assert_close(averages[name].double(), expected, rtol=1e-5, atol=1e-6)
    assert ema.updates == max(0, 8 - start_step)


def test_training_is_not_disturbed(make_args: MakeArgs) -> None:
    plain, averaged = Plain(), Plain()
    train(make_args, plain)
    train(make_args, averaged, EMACallback(0.9))
    assert_same(weights(plain), weights(averaged))


def test_applied_swaps_and_swaps_back_exactly(make_args: MakeArgs) -> None:
    model, ema = Normalised(), EMACallback(0.9)
    train(make_args, model, ema)
    before, averages = weights(model), ema.state_dict()["tensors"]
    addresses = [p.data_ptr() for p in model.parameters()]
    with ema.applied(model):
        inside = weights(model)
        for name, average in averages.items():
            assert torch.equal(inside[name], average), name
        assert not torch.equal(inside["first.weight"], before["first.weight"])
    assert_same(weights(model), before)
    with pytest.raises(RuntimeError, match="oh"), ema.applied(model):
        raise RuntimeError("oh")
    assert_same(weights(model), before)
    assert [p.data_ptr() for p in model.parameters()] == addresses


def test_buffers_are_copied(make_args: MakeArgs) -> None:
    model, ema = Normalised(), EMACallback(0.9)
    train(make_args, model, ema)
    averages = ema.state_dict()["tensors"]
    assert torch.equal(averages["norm.running_mean"], model.state_dict()["norm.running_mean"])
    assert "norm.num_batches_tracked" not in averages


def test_use_at_end_leaves_the_averages_in_the_model(make_args: MakeArgs) -> None:
    model, ema = Plain(), EMACallback(0.9, use_at_end=True)
    train(make_args, model, ema)
    assert_same(weights(model), ema.state_dict()["tensors"])


def test_use_at_end_and_the_best_model_exclude_each_other(make_args: MakeArgs) -> None:
    args = make_args(max_steps=1, eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True)
    rows = classification_rows(16)
    trainer = Trainer(Plain(), args, None, rows, rows, callbacks=[EMACallback(use_at_end=True)])
    with pytest.raises(ValueError, match="keep one"):
        trainer.train()


def steps(ema: EMACallback, model: nn.Module, first: int, count: int) -> None:
    """Optimizer steps that add one to every weight."""
    state, control = TrainerState(), TrainerControl()
    for step in range(first, first + count):
        with torch.no_grad():
            for p in model.parameters():
                p.add_(1)
        state.global_step = step
        ema.on_optimizer_step(TrainingArguments("out"), state, control, model=model)


def begin(ema: EMACallback, model: nn.Module) -> None:
    ema.on_train_begin(TrainingArguments("x"), TrainerState(), TrainerControl(), model=model)


def test_state_goes_on_where_it_was() -> None:
    whole, model = EMACallback(0.8), Plain()
    begin(whole, model)
    steps(whole, model, 0, 3)
    stored, second = copy.deepcopy(whole.state_dict()), copy.deepcopy(model)
    steps(whole, model, 3, 4)
    again = EMACallback(0.8)
    again.load_state_dict(stored)
    begin(again, second)
    steps(again, second, 3, 4)
    assert_same(whole.state_dict()["tensors"], again.state_dict()["tensors"])
    assert whole.state_dict()["values"] == again.state_dict()["values"] == {"updates": 7}


def test_a_second_training_starts_anew() -> None:
    ema, model = EMACallback(0.8), Plain()
    begin(ema, model)
    steps(ema, model, 0, 3)
    begin(ema, model)
    assert_same(ema.state_dict()["tensors"], weights(model))
    assert ema.updates == 0


def test_half_precision_weights_have_a_precise_average() -> None:
    ema, model = EMACallback(0.999), Plain().bfloat16()
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(256.0)
    begin(ema, model)
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(258.0)
    ema.on_optimizer_step(TrainingArguments("out"), TrainerState(), TrainerControl(), model=model)
    for average in ema.state_dict()["tensors"].values():
        # In bfloat16 256.002 is 256: the average would never move.
        torch.testing.assert_close(average, torch.full_like(average, 256.002, dtype=torch.float32))
    with ema.applied(model):
        assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


def test_averages_of_another_model_are_refused() -> None:
    ema = EMACallback()
    with pytest.raises(ValueError, match="train first"), ema.applied(Plain()):
        pass
    begin(ema, Plain())
    with pytest.raises(ValueError, match="another model"), ema.applied(Plain(width=4)):
        pass
    other = EMACallback()
    other.load_state_dict(ema.state_dict())
    with pytest.raises(ValueError, match="another model"):
        begin(other, Normalised())


@pytest.mark.parametrize(("settings", "fix"), [({"decay": 1.0}, r"\[0, 1\)"), ({"start_step": -1}, "negative")])
def test_refused(settings: dict[str, Any], fix: str) -> None:
    with pytest.raises(ValueError, match=fix):
        EMACallback(**settings)
