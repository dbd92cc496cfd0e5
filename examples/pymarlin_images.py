"""A PyMarlin script, unchanged but for its import lines: a small CNN learns which half of an image is brighter.

python examples/pymarlin_images.py

Stop it with Ctrl-C and start it again: it goes on where it was.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainwright.compat.pymarlin.core import data_interface, module_interface, trainer
from trainwright.compat.pymarlin.utils.checkpointer.checkpoint_utils import DefaultCheckpointerArguments
from trainwright.compat.pymarlin.utils.stats import global_stats


class HalvesData(data_interface.DataInterface):
    """Random images; the label says whether the left half is brighter."""

    def __init__(self) -> None:
        super().__init__()
        self.train_data, self.val_data = self.make(512, seed=0), self.make(128, seed=1)

    def make(self, count: int, seed: int) -> TensorDataset:
        images = torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed))
        images[: count // 2, :, :, :8] += 0.3
        left, right = images[..., :8].mean((1, 2, 3)), images[..., 8:].mean((1, 2, 3))
        return TensorDataset(images, (left > right).long())

    def get_train_dataset(self, *args: Any, **kwargs: Any) -> TensorDataset:
        return self.train_data

    def get_val_dataset(self, *args: Any, **kwargs: Any) -> TensorDataset:
        return self.val_data


class HalvesModule(module_interface.ModuleInterface):
    """The recipe: data, steps, optimizers."""

    def __init__(self, data: HalvesData) -> None:
        super().__init__()
        self.data = data
        self.net = nn.Sequential(
            nn.Conv2d(3, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 2)
        )
        self.criterion = nn.CrossEntropyLoss()

    def get_optimizers_schedulers(self, estimated_global_steps_per_epoch: int, epochs: int) -> Any:
        optimizer = torch.optim.AdamW(self.net.parameters(), lr=3e-3)
        total = estimated_global_steps_per_epoch * epochs
        return [optimizer], [torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=total)]

    def get_train_dataloader(self, sampler: Any, batch_size: int) -> DataLoader[Any]:
        dataset = self.data.get_train_dataset()
        return DataLoader(dataset, batch_size=batch_size, sampler=sampler(dataset))

    def get_val_dataloaders(self, sampler: Any, batch_size: int) -> DataLoader[Any]:
        dataset = self.data.get_val_dataset()
        return DataLoader(dataset, batch_size=batch_size, sampler=sampler(dataset))

    def train_step(self, global_step: int, batch: Any, device: Any) -> torch.Tensor:
        images, labels = batch
        return self.criterion(self.net(images.to(device)), labels.to(device))

    def val_step(self, global_step: int, batch: Any, device: Any) -> Any:
        images, labels = batch
        return self.net(images.to(device)).argmax(1), labels

    def on_end_val_epoch(self, global_step: int, *val_step_collated_outputs: Any, key: str = "default") -> None:
        predicted, labels = val_step_collated_outputs
        accuracy = (predicted == labels).float().mean().item()
        global_stats.update("accuracy", accuracy)


def main() -> None:
    torch.manual_seed(0)
    args = trainer.TrainerArguments(
        epochs=4,
        train_batch_size=64,
        gpu_batch_size_limit=32,
        val_batch_size=64,
        writers=["stdout"],
        disable_tqdm=True,
        log_level="WARNING",
        checkpointer_args=DefaultCheckpointerArguments(load_dir="checkpoints"),
    )
    trainer.Trainer(module=HalvesModule(HalvesData()), args=args).train()


if __name__ == "__main__":
    main()
