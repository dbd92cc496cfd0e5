"""Whatever an optimizer keeps comes back as it was, or is named; it never costs the checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tests.models import classification_rows
from trainwright import Trainer, TrainingArguments

ROWS = classification_rows(16)


class Net(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(ROWS[0]["x"].shape[-1], 5), nn.Tanh(), nn.Linear(5, 3)).to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.to(self.layers[0].weight.dtype)).float()


Make = Callable[[nn.Module], Any]


def build(folder: Path, make: Make | None, dtype: torch.dtype = torch.float32, **extra: Any) -> Trainer:
    model = Net(dtype)
    args = TrainingArguments(
        str(folder),
        **{
            "max_steps": 6,
            "save_steps": 3,
            "per_device_train_batch_size": 4,
            "learning_rate": 1e-2,
            "disable_tqdm": True,
            "use_cpu": True,
            "report_to": "none",
            **extra,
        },
    )
    optimizers = (None, None) if make is None else (make(model), None)
    return Trainer(model, args, train_dataset=ROWS, optimizers=optimizers)


def straight_and_resumed(folder: Path, make: Make | None, **extra: Any) -> tuple[Trainer, Trainer]:
    straight = build(folder, make, **extra)
    straight.train()
    resumed = build(folder, make, **extra)
    resumed.train(resume_from_checkpoint=str(folder / "checkpoint-3"))
    return straight, resumed


def assert_same_weights(one: Trainer, other: Trainer) -> None:
    there = other.model.state_dict()
    assert all(torch.equal(tensor, there[name]) for name, tensor in one.model.state_dict().items())


class Simple(Optimizer):
    """Calls ``one`` for each parameter."""

    def __init__(self, params: Any, lr: float = 0.05) -> None:
        super().__init__(params, {"lr": lr})

    def step(self, closure: Any = None) -> None:
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    self.one(parameter, self.state[parameter], group)

    def one(self, parameter: Any, state: dict[Any, Any], group: dict[str, Any]) -> None:
        parameter.add_(parameter.grad, alpha=-group["lr"])


# ---- types


class Double(Simple):
    def one(self, parameter: Any, state: dict[Any, Any], group: dict[str, Any]) -> None:
        mean = state.setdefault("mean", torch.zeros(parameter.shape, dtype=torch.float64))
        mean.mul_(0.9).add_(parameter.grad)
        parameter.add_(mean.to(parameter.dtype), alpha=-group["lr"])


class Signs(Simple):
    def one(self, parameter: Any, state: dict[Any, Any], group: dict[str, Any]) -> None:
        seen = state.get("seen", torch.zeros_like(parameter, dtype=torch.bool))
        state["seen"] = (parameter.grad > 0) | seen
        parameter.add_(parameter.grad * state["seen"], alpha=-group["lr"])


class Texts(Simple):
    def one(self, parameter: Any, state: dict[Any, Any], group: dict[str, Any]) -> None:
        state["phase"] = {"": "even", "even": "odd", "odd": "even"}[state.get("phase", "")]
        parameter.add_(parameter.grad, alpha=-group["lr"] * (1 if state["phase"] == "odd" else 2))


@pytest.mark.parametrize("kind", [Double, Signs, Texts])
def test_state_of_another_type_than_the_parameter_comes_back_in_it(tmp_path: Path, kind: type[Simple]) -> None:
    straight, resumed = straight_and_resumed(tmp_path, lambda model: kind(model.parameters()))
    assert_same_weights(straight, resumed)
    for one, other in zip(straight.optimizer.state.values(), resumed.optimizer.state.values(), strict=True):
        assert {k: getattr(v, "dtype", v) for k, v in one.items()} == {
            k: getattr(v, "dtype", v) for k, v in other.items()
        }


def test_adafactor_goes_on_exactly_with_a_model_in_half_precision(tmp_path: Path) -> None:
    straight, resumed = straight_and_resumed(tmp_path, None, optim="adafactor", dtype=torch.bfloat16)
    assert_same_weights(straight, resumed)


def test_a_model_in_another_type_than_the_saved_one_takes_the_state_in_its_own(tmp_path: Path) -> None:
    """Adam's averages are in the type of the parameter: to put them back as they were saved would break its step."""
    build(tmp_path, None, max_steps=3).train()
    resumed = build(tmp_path, None, dtype=torch.bfloat16)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    kept = [entries["exp_avg"].dtype for entries in resumed.optimizer.state.values()]
    assert set(kept) == {torch.bfloat16}
