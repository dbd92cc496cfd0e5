"""The engines that keep the contract, and models and runs to hold them to it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainwright import Trainer, TrainingArguments

#: "seam" is torch itself behind what other frameworks have to bring: it runs wherever torch is.
OTHERS = [
    "seam",
    pytest.param("mindspore", marks=pytest.mark.mindspore),
    pytest.param("jax", marks=pytest.mark.jax),
]
ENGINES = [pytest.param("torch", marks=pytest.mark.full), pytest.param("seam", marks=pytest.mark.full), *OTHERS[1:]]

Test = TypeVar("Test", bound=Callable[..., Any])


def feature(words: str) -> Callable[[Test], Test]:
    """Names what a test shows; docs/engines.md has a row for it."""

    def name(test: Test) -> Test:
        test.__dict__["feature"] = words
        return test

    return name


class Dense(nn.Module):
    """Two layers, without anything random."""

    def __init__(self, width: int = 6, classes: int = 3) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.first, self.second = nn.Linear(width, 8), nn.Linear(8, classes)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.second(torch.tanh(self.first(x)))
        return {"logits": logits} if labels is None else {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Lively(Dense):
    """Dropout, statistics of batches, a frozen weight and one that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        # A bias before a normalization has no gradient but rounding, of which Adam would make whole steps.
        weight = self.first.weight
        self.first = nn.Linear(6, 8, bias=False)
        self.first.weight = weight
        self.norm, self.drop = nn.BatchNorm1d(8), nn.Dropout(0.25)
        self.frozen = nn.Parameter(torch.full((8,), 0.5), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        hidden = self.drop(self.norm(self.first(x)) * self.frozen)
        logits = self.second(hidden)
        return {"logits": logits} if labels is None else {"loss": F.cross_entropy(logits, labels), "logits": logits}


def rows(count: int = 32, width: int = 6, classes: int = 3) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, width, generator=generator)
    y = torch.randint(0, classes, (count,), generator=generator)
    return [{"x": x[i], "labels": y[i]} for i in range(count)]


def arguments(folder: Path, engine: str, **options: Any) -> TrainingArguments:
    quiet: dict[str, Any] = {
        "max_steps": 4,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "learning_rate": 0.02,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return TrainingArguments(str(folder), engine=engine, **{**quiet, **options})


class Done:
    """A run that was trained: the trainer, its model and what it logged."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.model = trainer, trainer.model

    def logged(self, name: str) -> list[float]:
        return [entry[name] for entry in self.trainer.state.log_history if name in entry]

    def weights(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self.model.state_dict().items()}


def train(folder: Path, engine: str, model: nn.Module, data: Any = None, *, resume: Any = None, **options: Any) -> Done:
    """A copy of ``model``, trained."""
    given = {name: options.pop(name) for name in _OF_TRAINER if name in options}
    args = arguments(folder, engine, **options)
    trainer = Trainer(copy.deepcopy(model), args, train_dataset=rows() if data is None else data, **given)
    trainer.train(resume_from_checkpoint=resume)
    return Done(trainer)


_OF_TRAINER = ("eval_dataset", "compute_metrics", "callbacks", "optimizers", "data_collator", "compute_loss_func")


def close(one: list[float], other: list[float], relative: float = 1e-4) -> bool:
    """Whether two logs agree, number by number."""
    return len(one) == len(other) > 0 and one == pytest.approx(other, rel=relative, abs=1e-7)


def same_weights(one: dict[str, Tensor], other: dict[str, Tensor], tolerance: float = 0.0) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=tolerance, atol=tolerance, msg=_about(name))


def _about(name: str) -> Callable[[str], str]:
    return lambda text: f"{name}: {text}"
