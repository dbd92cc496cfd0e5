"""ACCMT's last generation: metrics, callbacks, patience, two validation sets, and data sets one after the other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from trainwright.compat.accmt import AcceleratorModule, Callback, HyperParameters, Metric, RatioCurriculum, Trainer


def points(count: int, noise: float, seed: int) -> TensorDataset:
    """Two rings, more or less blurred."""
    generator = torch.Generator().manual_seed(seed)
    rings = torch.randint(0, 2, (count,), generator=generator)
    angles = torch.rand(count, generator=generator) * 6.283
    radii = 1.0 + rings + noise * torch.randn(count, generator=generator)
    return TensorDataset(torch.stack([radii * angles.cos(), radii * angles.sin()], 1), rings)


class Rings(AcceleratorModule):
    def __init__(self) -> None:
        self.model: nn.Module = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))

    def training_step(self, batch: Any) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.model(x), y)

    def validation_step(self, key: str, batch: Any) -> dict[str, Any]:
        x, y = batch
        logits = self.model(x)
        return {"loss": nn.functional.cross_entropy(logits, y), "accuracy": (logits.argmax(1), y)}


class Accuracy(Metric):
    def compute(self, *args: Tensor) -> dict[str, Any]:
        predictions, references = args
        return {"accuracy": (predictions == references).float().mean()}


class Counting(Callback):
    evaluations = 0

    def on_evaluation_end(self) -> None:
        self.evaluations += 1


def main() -> None:
    torch.manual_seed(0)
    lessons = RatioCurriculum()
    lessons.add(points(400, 0.05, seed=1), ratio=0.3)
    lessons.add(points(800, 0.25, seed=2), ratio=-1)
    counting = Counting()
    trainer = Trainer(
        HyperParameters(max_steps=600, batch_size=(32, 200), optim="AdamW", optim_kwargs={"lr": 1e-2}),
        model_path="models/rings",
        model_saving=["best_valid_loss", "best_accuracy@hard"],
        evaluate_every_n_steps=100,
        metrics=Accuracy("accuracy"),
        callbacks=counting,
        patience=4,
        clip_grad=1,
        verbose=False,
    )
    trainer.fit(Rings(), lessons, {"easy": points(200, 0.05, seed=3), "hard": points(200, 0.25, seed=4)})
    found = {name: values["accuracy"] for name, values in trainer.status_dict["additional_metrics"].items()}
    print(f"{counting.evaluations} evaluations, accuracy {found['easy']:.3f} and {found['hard']:.3f}")
    assert found["easy"] > 0.9


if __name__ == "__main__":
    main()
