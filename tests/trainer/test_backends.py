"""Backends by name, and of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models import Plain, classification_rows
from trainwright import Trainer, TrainingArguments
from trainwright.engines.torch.backends import SingleProcess

Make = Callable[..., TrainingArguments]


class Halving(SingleProcess):
    """Halves every gradient, and counts how often."""

    name = "halving"

    def __init__(self) -> None:
        self.steps = 0
        self.heard: list[str] = []

    def start(self, args: Any) -> None:
        self.heard.append("start")

    def reduce_gradients(self, parameters: Iterable[Tensor]) -> None:
        self.steps += 1
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad *= 0.5

    def get_state(self) -> dict[str, Any]:
        return {"steps": self.steps, "last": torch.tensor([float(self.steps)])}

    def update_state(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        assert state["last"].tolist() == [float(self.steps)]


def options(**more: Any) -> dict[str, Any]:
    return {"per_device_train_batch_size": 4, "max_steps": 6, "optim": "sgd", "max_grad_norm": 0, "seed": 3, **more}


def weights(trainer: Trainer) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


def test_a_backend_of_ones_own_sees_every_step_and_keeps_its_state(make_args: Make) -> None:
    rows, backend = classification_rows(24), Halving()
    saving = {"save_strategy": "steps", "save_steps": 2}
    args = make_args(**options(learning_rate=0.2, lr_scheduler_type="constant", **saving))
    whole = Trainer(Plain(), args, train_dataset=rows, backend=backend)
    whole.train()
    assert backend.steps == 6
    assert backend.heard == ["start"]
    # Half the gradient at twice the rate.
    plain = Trainer(Plain(), make_args(**options(learning_rate=0.1, lr_scheduler_type="constant")), train_dataset=rows)
    plain.train()
    for name, value in weights(whole).items():
        torch.testing.assert_close(value, weights(plain)[name], rtol=0, atol=1e-6)
    resumed_backend = Halving()
    resumed = Trainer(Plain(), args, train_dataset=rows, backend=resumed_backend)
    resumed.train(resume_from_checkpoint=str(Path(str(args.output_dir)) / "checkpoint-4"))
    assert resumed_backend.steps == 6
    for name, value in weights(resumed).items():
        assert torch.equal(value, weights(whole)[name])


def test_names(make_args: Make, caplog: pytest.LogCaptureFixture) -> None:
    assert Trainer(Plain(), make_args(), backend="sp-bf16").args.bf16
    assert Trainer(Plain(), make_args(backend="sp-amp"), backend="sp-amp").args.bf16
    with pytest.raises(ValueError, match="keep one"):
        Trainer(Plain(), make_args(backend="sp"), backend="sp-amp")
    with pytest.raises(ValueError, match="there is no strategy"):
        Trainer(Plain(), make_args(), backend="sp-apex")
    Trainer(Plain(), make_args(), backend="ddp")
    assert "it trains alone" in caplog.text


def test_objects_that_are_no_backend_are_refused(make_args: Make) -> None:
    with pytest.raises(ValueError, match=r"nor an object with name, rank"):
        Trainer(Plain(), make_args(), backend=object())  # type: ignore[arg-type]

    class Dreaming(SingleProcess):
        world_size = 8

    with pytest.raises(ValueError, match=r"process 0 of 8, the launcher .* 0 of 1"):
        Trainer(Plain(), make_args(), backend=Dreaming())


def test_a_subclass_keeps_state_of_its_own(make_args: Make) -> None:
    class Counting(Trainer):
        seen = 0
        extra: Any = None

        def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
            self.seen += 1
            return super().training_step(*args, **kwargs)

        def get_state(self) -> dict[str, Any]:
            return {"seen": self.seen, "nested": {"numbers": [1, torch.tensor([2.0])]}}

        def update_state(self, state: dict[str, Any]) -> None:
            self.seen, self.extra = state["seen"], state["nested"]["numbers"][1]

    args = make_args(**options(save_strategy="steps", save_steps=3))
    Counting(Plain(), args, train_dataset=classification_rows(24)).train()
    resumed = Counting(Plain(), args, train_dataset=classification_rows(24))
    resumed.train(resume_from_checkpoint=str(Path(str(args.output_dir)) / "checkpoint-3"))
    assert resumed.seen == 6
    assert resumed.extra.tolist() == [2.0]
