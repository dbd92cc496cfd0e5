"""What every engine does alike: gradients, updates, schedules."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engines.contract.engines import Dense, Lively, arguments, close, feature, rows, same_weights, train
from tests.engines.contract.zoo import MODELS
from trainwright import Trainer, TrainerCallback
from trainwright.config.enums import SchedulerType
from trainwright.engines.torch.optim_own import Adafactor, Lion


@feature("a torch model as it is: loss and gradient norm of 20 steps equal torch's to 1e-4")
def test_twenty_steps_are_those_of_torch(engine: str, tmp_path: Path) -> None:
    model, data = MODELS["bert"]()
    options: dict[str, Any] = {"max_steps": 20, "learning_rate": 1e-3, "warmup_steps": 4, "weight_decay": 0.01}
    expected = train(tmp_path / "torch", "torch", model, data, **options)
    found = train(tmp_path / "other", engine, model, data, **options)
    assert close(found.logged("loss"), expected.logged("loss"))
    assert close(found.logged("grad_norm"), expected.logged("grad_norm"), 2e-4)
    assert expected.logged("loss")[-1] < expected.logged("loss")[0]


@feature("BERT, GPT-2 (tied weights), Llama, ViT, Swin, a CNN with BatchNorm; dropout with torch's own masks")
@pytest.mark.parametrize("name", [name for name in MODELS if name != "bert"])
def test_models(name: str, engine: str, tmp_path: Path) -> None:
    model, data = MODELS[name]()
    expected = train(tmp_path / "torch", "torch", model, data, learning_rate=1e-3)
    found = train(tmp_path / "other", engine, model, data, learning_rate=1e-3)
    assert close(found.logged("loss"), expected.logged("loss"))
    assert close(found.logged("grad_norm"), expected.logged("grad_norm"), 5e-4)
    tied = {parameter.data_ptr() for parameter in found.model.parameters()}
    assert len(tied) == len(list(model.parameters()))


@feature("gradient accumulation and micro_batch: the update does not depend on how a batch was cut")
def test_cuts_do_not_matter(engine: str, tmp_path: Path) -> None:
    whole = train(tmp_path / "a", engine, Dense(), per_device_train_batch_size=8)
    cuts = [
        {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
        {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4},
        {"per_device_train_batch_size": 8, "micro_batch": 3},
    ]
    for number, cut in enumerate(cuts):
        found = train(tmp_path / str(number), engine, Dense(), **cut)
        assert close(found.logged("loss"), whole.logged("loss"), 1e-5)
        same_weights(found.weights(), whole.weights(), 1e-5)


@feature("uneven batches: targets are weighed, and rows without any are left out")
def test_targets_are_weighed(engine: str, tmp_path: Path) -> None:
    data = rows(12)
    data[3] = {**data[3], "labels": torch.tensor(-100)}
    data[8:] = [{**row, "labels": torch.tensor(-100)} for row in data[8:]]
    options: dict[str, Any] = {"max_steps": 3, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 3}
    expected = train(tmp_path / "torch", "torch", Dense(), data, **options)
    found = train(tmp_path / "other", engine, Dense(), data, **options)
    same_weights(found.weights(), expected.weights(), 1e-5)


@feature("clipping (max_grad_norm), on and off")
@pytest.mark.parametrize("most", [0.01, 0.0])
def test_clipping(most: float, engine: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_grad_norm": most, "optim": "sgd", "learning_rate": 1.0}
    expected = train(tmp_path / "torch", "torch", Dense(), **options)
    found = train(tmp_path / "other", engine, Dense(), **options)
    same_weights(found.weights(), expected.weights(), 1e-5)
    assert close(found.logged("grad_norm"), expected.logged("grad_norm"))


#: Optimizers beyond Adam and SGD: class, and settings other than its defaults.
OTHERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "rmsprop": (torch.optim.RMSprop, {"alpha": 0.9}),
    "rmsprop centered": (torch.optim.RMSprop, {"alpha": 0.9, "momentum": 0.5, "centered": True}),
    "adagrad": (torch.optim.Adagrad, {"lr_decay": 0.1, "initial_accumulator_value": 0.2}),
    "lion": (Lion, {"betas": (0.8, 0.95)}),
    "adafactor": (Adafactor, {}),
    "adafactor with mean": (Adafactor, {"beta1": 0.8, "scale_parameter": True, "clip_threshold": 0.5}),
}


@feature(
    "optimizers: AdamW, Adam, SGD with momentum and Nesterov, RMSprop, Adagrad, Lion, Adafactor; weight decay, rates "
    "by group"
)
@pytest.mark.parametrize("kind", ["adamw", "adam", "sgd", "momentum", "nesterov", *OTHERS])
def test_optimizers(kind: str, engine: str, tmp_path: Path) -> None:
    def optimizer(model: Dense) -> torch.optim.Optimizer:
        groups = [
            {"params": list(model.first.parameters()), "lr": 0.05},
            {"params": list(model.second.parameters()), "weight_decay": 0.1},
        ]
        if kind in ("adamw", "adam"):
            chosen = torch.optim.AdamW if kind == "adamw" else torch.optim.Adam
            return chosen(groups, lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.02)
        if kind in OTHERS:
            chosen, settings = OTHERS[kind]
            return chosen(groups, lr=0.01, weight_decay=0.02, **settings)
        momentum = {"sgd": 0.0, "momentum": 0.9, "nesterov": 0.9}[kind]
        dampening = 0.1 if kind == "momentum" else 0.0
        return torch.optim.SGD(groups, lr=0.1, momentum=momentum, nesterov=kind == "nesterov", dampening=dampening)

    results = []
    for name in ("torch", engine):
        model = Dense()
        args = arguments(tmp_path / name, name, max_steps=5)
        Trainer(model, args, train_dataset=rows(), optimizers=(optimizer(model), None)).train()
        results.append(model.state_dict())
    same_weights(results[1], results[0], 1e-5)


@feature("every learning-rate schedule")
@pytest.mark.parametrize("schedule", [kind.value for kind in SchedulerType])
def test_schedules(schedule: str, engine: str, tmp_path: Path) -> None:
    by_metric = schedule in ("reduce_lr_on_plateau", "greedy")
    kwargs = {"cosine_with_min_lr": {"min_lr": 1e-4}, "cosine_warmup_with_min_lr": {"min_lr": 1e-4}}
    kwargs["warmup_stable_decay"] = {"num_decay_steps": 2}
    options: dict[str, Any] = {
        "lr_scheduler_type": schedule,
        "lr_scheduler_kwargs": kwargs.get(schedule),
        "warmup_steps": 0 if by_metric else 2,
        "max_steps": 6,
    }
    if by_metric:
        options |= {"eval_dataset": rows(8), "eval_strategy": "steps", "eval_steps": 1}
    expected = train(tmp_path / "torch", "torch", Dense(), **options)
    found = train(tmp_path / "other", engine, Dense(), **options)
    assert close(found.logged("learning_rate"), expected.logged("learning_rate"), 1e-9)
    same_weights(found.weights(), expected.weights(), 1e-4)


@feature("frozen and unused weights stay; buffers of BatchNorm move; batches of another size at the end of an epoch")
def test_what_moves_and_what_stays(engine: str, tmp_path: Path) -> None:
    model = Lively()
    options: dict[str, Any] = {"max_steps": 6, "weight_decay": 0.1, "max_grad_norm": 0.0}
    expected = train(tmp_path / "torch", "torch", model, rows(10), **options)
    found = train(tmp_path / "other", engine, model, rows(10), **options)
    before, after = model.state_dict(), found.weights()
    assert torch.equal(after["frozen"], before["frozen"])
    assert torch.equal(after["unused"], before["unused"])
    assert not torch.equal(after["norm.running_mean"], before["norm.running_mean"])
    assert close(found.logged("loss"), expected.logged("loss"))
    same_weights(found.weights(), expected.weights(), 2e-4)


class Watches(TrainerCallback):
    """Keeps the weights after each step."""

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seen.append(kwargs["model"].second.weight.detach().clone())


@feature("a step that is not finite changes nothing")
def test_a_bad_step_is_left_out(engine: str, tmp_path: Path) -> None:
    data = rows(16)
    data[5] = {**data[5], "x": torch.full((6,), math.nan)}
    watch = Watches()
    options: dict[str, Any] = {"train_sampling_strategy": "sequential", "callbacks": [watch]}
    found = train(tmp_path, engine, Dense(), data, **options)
    assert torch.equal(watch.seen[0], watch.seen[1])
    assert not torch.equal(watch.seen[1], watch.seen[2])
    assert all(torch.isfinite(value).all() for value in found.weights().values())
