"""A module and a dataset of one's own, for own-module.yaml."""

import torch
from torch import nn

from trainwright import Module


class Spirals(Module):
    """Which of two spirals a point lies on."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.model = nn.Sequential(
            nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2)
        )

    def training_step(self, batch):
        return nn.functional.cross_entropy(self.model(batch["point"]), batch["labels"])

    def validation_step(self, batch):
        logits = self.model(batch["point"])
        self.log("accuracy", (logits.argmax(-1) == batch["labels"]).float().mean())
        return {"loss": nn.functional.cross_entropy(logits, batch["labels"]), "logits": logits}


def points(count: int = 400):
    """Points of two spirals, the same ones every time."""
    generator = torch.Generator().manual_seed(0)
    distance = torch.rand(count, generator=generator)
    side = torch.arange(count) % 2
    angle = 6 * distance + torch.pi * side
    place = torch.stack([distance * angle.cos(), distance * angle.sin()], dim=1)
    return [{"point": place[i], "labels": side[i]} for i in range(count)]
