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
from trainwright import Module, Trainer, TrainingArguments
from trainwright.checkpoint.interchange.to_transformers import export_checkpoint

ROWS = classification_rows(16)


class Net(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(ROWS[0]["x"].shape[-1], 5), nn.Tanh(), nn.Linear(5, 3)).to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.to(next(self.parameters()).dtype)).float()


def arguments(folder: Path, **extra: Any) -> TrainingArguments:
    settings: dict[str, Any] = {
        "max_steps": 6,
        "save_steps": 3,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-2,
        "disable_tqdm": True,
        "use_cpu": True,
        "report_to": "none",
        **extra,
    }
    return TrainingArguments(str(folder), **settings)


Make = Callable[[nn.Module], Any]


def build(folder: Path, make: Make | None, dtype: torch.dtype = torch.float32, **extra: Any) -> Trainer:
    model = Net(dtype)
    optimizers = (None, None) if make is None else (make(model), None)
    return Trainer(model, arguments(folder, **extra), train_dataset=ROWS, optimizers=optimizers)


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

    def step(self, closure: Any = None) -> Any:
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


# ---- forms


class Nested(Simple):
    """Dicts with numbers as keys, tuples, lists in lists, a key with a dot, a number as a key, and None."""

    def one(self, parameter: Any, state: dict[Any, Any], group: dict[str, Any]) -> None:
        if not state:
            state["none"] = None
            state["ema.fast"], state[0] = torch.zeros_like(parameter), torch.zeros_like(parameter)
            state["deep"] = {1: (torch.zeros_like(parameter), 0), "list": [[torch.zeros_like(parameter)]]}
            state["complex"] = torch.zeros(parameter.shape, dtype=torch.complex128)
        assert state["none"] is None
        state["complex"] = state["complex"] * 0.9 + parameter.grad * (1 + 0.1j)
        mean, count = state["deep"][1]
        state["deep"][1] = (mean, count + 1)
        for kept in (state["ema.fast"], state[0], mean, state["deep"]["list"][0][0]):
            kept.mul_(0.9).add_(parameter.grad)
            parameter.add_(kept, alpha=-group["lr"] / (count + 1))
        parameter.add_(state["complex"].imag.to(parameter.dtype), alpha=-group["lr"])


class Shared(Simple):
    """All parameters add to one and the same norm."""

    def one(self, parameter: Any, state: dict[Any, Any], group: dict[str, Any]) -> None:
        if "norm" not in state:
            first = next(iter(self.state.values()))
            state["norm"] = first.get("norm", torch.zeros(1))
        state["norm"].add_(parameter.grad.norm())
        parameter.add_(parameter.grad, alpha=-group["lr"] / (1 + float(state["norm"])))


class OfNoParameter(Simple):
    """Counts as MADGRAD does, and in a dict of its own."""

    def step(self, closure: Any = None) -> Any:
        state: dict[Any, Any] = self.state
        count = state.setdefault("k", torch.tensor([0]))
        count += 1
        seen = state["global"]
        seen["n"] = seen.get("n", 0) + 1
        for group in self.param_groups:
            group["rate"] = 1 / (int(count) + seen["n"])
        super().step()

    def one(self, parameter: Any, state: dict[Any, Any], group: dict[str, Any]) -> None:
        parameter.add_(parameter.grad, alpha=-group["rate"])


class GroupTensors(Simple):
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group.setdefault("scale", torch.tensor(1.0)).mul_(0.9)
            group.setdefault("scales", torch.ones(2)).mul_(0.9)
            group["pair"] = (*group.get("pair", ())[:1], 2)
            assert type(group["pair"]) is tuple
        super().step()

    def one(self, parameter: Any, state: dict[Any, Any], group: dict[str, Any]) -> None:
        parameter.add_(parameter.grad * group["scale"] * group["scales"][0], alpha=-group["lr"])


class Lookahead(Simple):
    """Keeps slow weights beside torch's state."""

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self.slow: dict[int, Tensor] = {}
        self.count = 0

    def step(self, closure: Any = None) -> Any:
        super().step()
        self.count += 1
        with torch.no_grad():
            for number, parameter in enumerate(p for group in self.param_groups for p in group["params"]):
                slow = self.slow.setdefault(number, parameter.clone())
                if self.count % 5 == 0:
                    slow.add_(parameter - slow, alpha=0.5)
                    parameter.copy_(slow)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "slow": self.slow, "count": self.count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.slow, self.count = state_dict["slow"], state_dict["count"]
        super().load_state_dict(state_dict)


FORMS = [Nested, Shared, OfNoParameter, GroupTensors, Lookahead]


@pytest.mark.parametrize("kind", FORMS)
def test_whatever_an_optimizer_keeps_comes_back_as_it_was(
    tmp_path: Path, kind: type[Simple], caplog: pytest.LogCaptureFixture
) -> None:
    straight, resumed = straight_and_resumed(tmp_path, lambda model: kind(model.parameters()))
    assert_same_weights(straight, resumed)
    assert "without" not in caplog.text


class TwoOptimizers(Module):
    """One for each layer, with a schedule of its own."""

    def __init__(self, kind: type[Simple]) -> None:
        super().__init__()
        self.net, self.kind = Net(), kind

    def training_step(self, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch["x"]), batch["labels"])

    def configure_optimizers(self, plan: Any) -> Any:
        return [self.kind(self.net.layers[0].parameters()), self.kind(self.net.layers[2].parameters())]


@pytest.mark.parametrize("kind", FORMS)
def test_optimizers_that_are_driven_as_one_keep_all_that_each_had(tmp_path: Path, kind: type[Simple]) -> None:
    straight, resumed = (Trainer(TwoOptimizers(kind), arguments(tmp_path), train_dataset=ROWS) for _ in range(2))
    straight.train()
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert_same_weights(straight, resumed)


def test_a_rate_that_is_a_tensor_stays_one(tmp_path: Path) -> None:
    straight, resumed = straight_and_resumed(
        tmp_path, lambda model: torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-2))
    )
    assert_same_weights(straight, resumed)
    group = resumed.optimizer.param_groups[0]
    assert isinstance(group["lr"], Tensor)
    assert group["betas"] == (0.9, 0.999)


# torch says so once in a process, when it casts a complex state to the type of its parameter.
@pytest.mark.filterwarnings("ignore:Casting complex values")
def test_transformers_reads_an_optimizer_of_any_form(tmp_path: Path) -> None:
    trainer = build(tmp_path, lambda model: Nested(model.parameters()), max_steps=3)
    trainer.train()
    exported = export_checkpoint(tmp_path / "checkpoint-3").folder
    read = torch.load(exported / "optimizer.pt", weights_only=True)
    again = Nested(Net().parameters())
    again.load_state_dict(read)
    for one, other in zip(trainer.optimizer.state.values(), again.state.values(), strict=True):
        assert torch.equal(one["deep"][1][0], other["deep"][1][0])
        assert torch.equal(one["ema.fast"], other["ema.fast"])


# ---- what cannot be stored


class Unstorable(Simple):
    def one(self, parameter: Any, state: dict[Any, Any], group: dict[str, Any]) -> None:
        state["sparse"] = parameter.grad.to_sparse()
        state["thing"] = object()
        state["mean"] = state.get("mean", torch.zeros_like(parameter)).mul(0.9).add(parameter.grad)
        parameter.add_(state["mean"], alpha=-group["lr"])


def test_state_that_cannot_be_stored_is_named_and_costs_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    straight, resumed = straight_and_resumed(tmp_path, lambda model: Unstorable(model.parameters()))
    # What went missing is made anew in every step here.
    assert_same_weights(straight, resumed)
    (said,) = {r.getMessage() for r in caplog.records if "checkpoint-3 was saved without" in r.getMessage()}
    # Once, and not for every parameter.
    assert said.count("'sparse' of the optimizer") == said.count("'thing' of the optimizer") == 1


@pytest.mark.parametrize("setting", [torch.eye(2).to_sparse(), object()])
def test_a_setting_that_cannot_be_stored_is_said_or_refused_when_the_run_starts(tmp_path: Path, setting: Any) -> None:
    def make(model: Any) -> Any:
        return torch.optim.SGD([{"params": list(model.parameters()), "odd": setting}], lr=0.1)

    with pytest.raises(ValueError, match=r"exact='require'.*'odd' of the optimizer"):
        build(tmp_path / "refused", make, exact="require").train()
    build(tmp_path / "warned", make).train()
    assert "'odd' of the optimizer" in (tmp_path / "warned/events.jsonl").read_text()
    assert (tmp_path / "warned/checkpoint-6").is_dir()
