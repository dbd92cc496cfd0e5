"""A training task as one class: network, steps, optimizer, data.

python examples/module_spirals.py
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

from trainwright import Module, StepPlan, Trainer, TrainingArguments


def spirals(count: int, seed: int) -> TensorDataset:
    """Two interleaved spirals."""
    generator = torch.Generator().manual_seed(seed)
    angle = torch.rand(count, generator=generator) * 3 * torch.pi
    side = torch.randint(0, 2, (count,), generator=generator)
    radius = angle * torch.where(side == 0, 1.0, -1.0)
    points = torch.stack([radius * torch.cos(angle), radius * torch.sin(angle)], dim=1) / 5
    return TensorDataset(points + torch.randn(points.shape, generator=generator) * 0.03, side)


class Spirals(Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))

    def training_step(self, batch: Any) -> Tensor:
        return self._loss_and_accuracy(batch)

    def validation_step(self, batch: Any) -> Tensor:
        return self._loss_and_accuracy(batch)

    def _loss_and_accuracy(self, batch: Any) -> Tensor:
        points, side = batch
        logits = self.model(points)
        self.log("accuracy", (logits.argmax(-1) == side).float().mean())
        return F.cross_entropy(logits, side)

    def configure_optimizers(self, plan: StepPlan) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=5e-3)
        return optimizer, OneCycleLR(optimizer, max_lr=1e-2, total_steps=plan.max_steps)

    def train_dataloader(self) -> Any:
        return DataLoader(spirals(2000, 0), batch_size=32, shuffle=True)

    def val_dataloader(self) -> Any:
        return DataLoader(spirals(500, 1), batch_size=250)


def main() -> None:
    args = TrainingArguments(
        "runs/module-spirals",
        num_train_epochs=30,
        eval_strategy="epoch",
        logging_strategy="epoch",
        save_strategy="best",
        metric_for_best_model="accuracy",
        load_best_model_at_end=True,
        save_total_limit=2,
    )
    trainer = Trainer(Spirals(), args)
    trainer.fit()
    print(f"accuracy on held-out points: {trainer.evaluate()['eval_accuracy']:.3f}")


if __name__ == "__main__":
    main()
