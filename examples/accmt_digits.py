"""Handwritten digits with a module of ACCMT's first generation: one step, hyperparameters in a file, a sampler list.

pip install . scikit-learn && python examples/accmt_digits.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import SubsetRandomSampler, TensorDataset

from trainwright.compat.accmt import AcceleratorModule, Handler, Trainer

HPS = """\
hps:
  epochs: 8
  batch_size: [32, 128]
  optim:
    type: AdamW
    lr: 1e-3
    weight_decay: 1e-2
  scheduler:
    type: OneCycleLR
    max_lr: 1e-2
"""


class Digits(AcceleratorModule):
    def __init__(self) -> None:
        self.model: nn.Module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        self.teacher: nn.Module | None = None

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images)

    def step(self, batch: Any, status_dict: dict[str, Any]) -> Tensor:
        images, digits = batch
        logits = self(images)
        self.log({"accuracy": (logits.argmax(1) == digits).float().mean()})
        return nn.functional.cross_entropy(logits, digits)


def main() -> None:
    torch.manual_seed(0)
    digits: Any = load_digits()
    data = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
    train, val = torch.utils.data.random_split(data, [1500, 297], torch.Generator().manual_seed(0))
    Path("hps.yaml").write_text(HPS)
    trainer = Trainer(
        "hps.yaml",
        model_path="models/digits",
        sampler=[SubsetRandomSampler(range(1500)), lambda indices: indices[:1400]],
        handlers=Handler.ALL,
        log_every=20,
        verbose=False,
    )
    module = Digits()
    trainer.fit(module, train, val)
    weights = torch.load("models/digits/pytorch_model.bin", weights_only=True)
    module.model.load_state_dict(weights)
    module.model.cpu()
    with torch.no_grad():
        right = sum(int(module(image[None]).argmax() == digit) for image, digit in val)
    print(f"accuracy {right / 297:.3f}, validation loss {trainer.status_dict['best_valid_loss']:.3f}")
    assert right / 297 > 0.9


if __name__ == "__main__":
    main()
