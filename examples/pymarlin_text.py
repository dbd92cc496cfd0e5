"""A PyMarlin script with a configuration file: a bag of words learns whether a text holds more even than odd tokens.

python examples/pymarlin_text.py [--config_path pymarlin_text.yaml] [--trainer.epochs 3]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from trainwright.compat.pymarlin import CustomArgParser, ModuleInterface, Trainer, TrainerArguments

CONFIG = """\
trainer: {backend: sp, epochs: 3, train_batch_size: 32, val_batch_size: 64, writers: [stdout], disable_tqdm: true}
optimizer: {lr: 5e-2}
"""


class EvenWords(ModuleInterface):
    """Texts of random length; two validation loaders, short texts and long ones."""

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr = lr
        self.rows = [self.text(seed) for seed in range(400)]
        self.words = nn.EmbeddingBag(50, 16)
        self.out = nn.Linear(16, 2)

    def text(self, seed: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(seed)
        length = int(torch.randint(3, 20, (), generator=generator))
        ids = torch.randint(0, 50, (length,), generator=generator)
        return ids, int((ids % 2 == 0).sum() * 2 > length)

    def collate(self, rows: list[tuple[torch.Tensor, int]]) -> dict[str, torch.Tensor]:
        lengths = torch.tensor([0] + [len(ids) for ids, _ in rows[:-1]])
        return {
            "ids": torch.cat([ids for ids, _ in rows]),
            "offsets": lengths.cumsum(0),
            "labels": torch.tensor([label for _, label in rows]),
        }

    def loader(self, rows: list[Any], sampler: Any, batch_size: int) -> DataLoader[Any]:
        return DataLoader(rows, batch_size=batch_size, sampler=sampler(rows), collate_fn=self.collate)  # type: ignore

    def get_train_dataloader(self, sampler: Any, batch_size: int) -> DataLoader[Any]:
        return self.loader(self.rows[:320], sampler, batch_size)

    def get_val_dataloaders(self, sampler: Any, batch_size: int) -> dict[str, DataLoader[Any]]:
        held_out = self.rows[320:]
        short = [row for row in held_out if len(row[0]) < 10]
        long = [row for row in held_out if len(row[0]) >= 10]
        return {"short": self.loader(short, sampler, batch_size), "long": self.loader(long, sampler, batch_size)}

    def get_optimizers_schedulers(self, estimated_global_steps_per_epoch: int, epochs: int) -> Any:
        return [torch.optim.Adam(self.parameters(), lr=self.lr)], []

    def logits(self, batch: Any, device: Any) -> torch.Tensor:
        return self.out(self.words(batch["ids"].to(device), batch["offsets"].to(device)))

    def count_targets(self, batch: Any) -> int:
        # The texts of a batch lie in one row: how many there are, only the labels tell.
        return len(batch["labels"])

    def train_step(self, global_step: int, batch: Any, device: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(self.logits(batch, device), batch["labels"].to(device))

    def val_step(self, global_step: int, batch: Any, device: Any) -> Any:
        return self.logits(batch, device).argmax(1), batch["labels"]

    def on_end_val_epoch(self, global_step: int, *val_step_collated_outputs: Any, key: str = "default") -> None:
        predicted, labels = val_step_collated_outputs
        print(f"step {global_step}: accuracy of {key} texts {(predicted == labels).float().mean():.2f}")


def main() -> None:
    if not Path("pymarlin_text.yaml").exists():
        Path("pymarlin_text.yaml").write_text(CONFIG)
    config = CustomArgParser(default_yamlfile="pymarlin_text.yaml", log_level="WARNING").parse()
    torch.manual_seed(0)
    args = TrainerArguments(**config["trainer"], log_level="WARNING")
    Trainer(EvenWords(config["optimizer"]["lr"]), args).train()


if __name__ == "__main__":
    main()
