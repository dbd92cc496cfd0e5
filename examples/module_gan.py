"""Two networks against each other: a Module that steps its optimizers itself, and can be stopped and resumed.

python examples/module_gan.py
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from trainwright import Module, StepPlan, Trainer, TrainingArguments


def ring(count: int) -> TensorDataset:
    """Points on a circle."""
    angle = torch.rand(count, generator=torch.Generator().manual_seed(0)) * 2 * torch.pi
    return TensorDataset(torch.stack([torch.cos(angle), torch.sin(angle)], dim=1))


class Gan(Module):
    automatic_optimization = False

    def __init__(self) -> None:
        super().__init__()
        self.maker = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
        self.judge = nn.Sequential(
            nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)
        )

    def configure_optimizers(self, plan: StepPlan) -> Any:
        judge = torch.optim.Adam(self.judge.parameters(), lr=1e-3, betas=(0.0, 0.9))
        maker = torch.optim.Adam(self.maker.parameters(), lr=1e-3, betas=(0.0, 0.9))
        return [judge, maker]

    def training_step(self, batch: Any) -> Tensor:
        (real,) = batch
        judge, maker = self.optimizers()
        made = self.make(len(real))

        judge.zero_grad()
        judge_loss = F.softplus(-self.judge(real)).mean() + F.softplus(self.judge(made.detach())).mean()
        self.backward(judge_loss)
        judge.step()

        maker.zero_grad()
        maker_loss = F.softplus(-self.judge(made)).mean()
        self.backward(maker_loss)
        maker.step()

        self.log("judge_loss", judge_loss)
        self.log("maker_loss", maker_loss)
        return judge_loss + maker_loss

    def make(self, count: int) -> Tensor:
        return self.maker(torch.randn(count, 4, device=self.device))


def main() -> None:
    module = Gan()
    args = TrainingArguments(
        "runs/module-gan", max_steps=1500, per_device_train_batch_size=128, logging_steps=300, save_steps=500
    )
    # Stopped at any moment and started again, it goes on as if nothing had happened.
    Trainer(args=args).fit(module, ring(4096), resume_from_checkpoint="auto")
    with torch.no_grad():
        radius = module.make(1000).norm(dim=1)
    near = ((radius - 1).abs() < 0.2).float().mean()
    print(f"accuracy: {near:.0%} of the points made lie near the circle")


if __name__ == "__main__":
    main()
