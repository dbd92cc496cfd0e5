"""Small modules and data for the ACCMT door."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from trainwright.compat.accmt import AcceleratorModule, Callback, Metric, Trainer


def samples(count: int = 26, seed: int = 0) -> TensorDataset:
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x.sum(1) > 0).long())


def network(seed: int = 0) -> nn.Linear:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Linear(4, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model


class Shared(AcceleratorModule):
    """The first generation: one step for training and validation."""

    def __init__(self, seed: int = 0) -> None:
        self.model: nn.Module = network(seed)
        self.seen: list[Tensor] = []
        self.validated = 0

    def step(self, batch: Any) -> Any:
        x, y = batch
        if torch.is_grad_enabled():
            self.seen.append(x[:, 0].clone())
        else:
            self.validated += 1
        return F.cross_entropy(self.model(x), y)


class Latest(AcceleratorModule):
    """The last generation: steps of their own, a name for each validation set, metrics."""

    def __init__(self) -> None:
        self.model: nn.Module = network()
        self.keys: list[Any] = []

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        return F.cross_entropy(self.model(x), y)

    def validation_step(self, key: Any, batch: Any) -> Any:
        self.keys.append(key)
        x, y = batch
        logits = self.model(x)
        return {"loss": F.cross_entropy(logits, y), "accuracy": (logits.argmax(-1), y)}


class Accuracy(Metric):
    def compute(self, predictions: Tensor, references: Tensor) -> dict[str, Any]:  # type: ignore[override]
        return {"accuracy": (predictions == references).float().mean(), "count": len(predictions)}


class Told(Callback):
    """Remembers every moment."""

    def __init__(self) -> None:
        self.moments: list[str] = []

    def on_save_checkpoint(self) -> None:
        self.moments.append(f"save {self.state.global_step}")

    def on_evaluation_end(self) -> None:
        self.moments.append(f"eval {self.state.global_step}")


def hyper(epochs: int = 2, batch_size: Any = 4, lr: Any = 0.1, **more: Any) -> dict[str, Any]:
    return {"hps": {"epochs": epochs, "batch_size": batch_size, "optim": {"type": "SGD", "lr": lr}, **more}}


def make(folder: Path, hps: Any = None, **options: Any) -> Trainer:
    """A quiet Trainer below ``folder``."""
    given: dict[str, Any] = {"verbose": False, **options}
    return Trainer(hyper() if hps is None else hps, model_path=str(folder / "model"), **given)


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoint-model").glob("checkpoint-*"))
