"""A network and data of one's own: no transformers, no dict of tensors needed.

python examples/own_network.py
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset

from trainwright import EvalPrediction, Trainer, TrainingArguments


def spirals(count: int, seed: int) -> TensorDataset:
    """Two interleaved spirals."""
    generator = torch.Generator().manual_seed(seed)
    angle = torch.rand(count, generator=generator) * 3 * torch.pi
    side = torch.randint(0, 2, (count,), generator=generator)
    radius = angle * torch.where(side == 0, 1.0, -1.0)
    points = torch.stack([radius * torch.cos(angle), radius * torch.sin(angle)], dim=1) / 5
    return TensorDataset(points + torch.randn(points.shape, generator=generator) * 0.03, side)


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def main() -> None:
    network = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    args = TrainingArguments(
        "runs/spirals",
        num_train_epochs=40,
        per_device_train_batch_size=32,
        learning_rate=5e-3,
        lr_scheduler_type="cosine",
        eval_strategy="epoch",
        logging_strategy="epoch",
        save_strategy="best",
        metric_for_best_model="accuracy",
        load_best_model_at_end=True,
        save_total_limit=2,
    )
    trainer = Trainer(
        network, args, train_dataset=spirals(2000, 0), eval_dataset=spirals(500, 1), compute_metrics=accuracy
    )
    trainer.train()
    print(f"accuracy on held-out points: {trainer.evaluate()['eval_accuracy']:.3f}")


if __name__ == "__main__":
    main()
