"""Two PyMarlin scripts' modules, as its documentation describes them: images, and text. Also a run to be killed.

python -m tests.compat.marlin_modules KIND FOLDER [--slow]
"""

from __future__ import annotations

import hashlib
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from trainwright.compat.pymarlin import ModuleInterface
from trainwright.compat.pymarlin.core import data_interface, trainer
from trainwright.compat.pymarlin.utils.checkpointer.checkpoint_utils import DefaultCheckpointerArguments
from trainwright.compat.pymarlin.utils.stats import global_stats
from trainwright.compat.pymarlin.utils.writer.base import WriterInitArguments


class RandomImages(data_interface.DataInterface):
    """Like CIFAR, but small and made up."""

    def __init__(self, count: int = 42) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        images = torch.randn(count, 3, 8, 8, generator=generator)
        self.data = TensorDataset(images, (images.mean((1, 2, 3)) > 0).long())

    def get_train_dataset(self) -> TensorDataset:
        return self.data

    def get_val_dataset(self) -> TensorDataset:
        return self.data


class Images(ModuleInterface):
    """A small CNN; two validation loaders, one of them short."""

    def __init__(self, data: RandomImages | None = None, slow: bool = False) -> None:
        super().__init__()
        self.data, self.slow = data or RandomImages(), slow
        torch.manual_seed(0)
        self.net = nn.Sequential(
            nn.Conv2d(3, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(36, 2),
        )
        self.criterion = nn.CrossEntropyLoss()
        self.calls: list[tuple[Any, ...]] = []
        self.seen: list[int] = []

    def get_optimizers_schedulers(self, estimated_global_steps_per_epoch: int, epochs: int) -> Any:
        self.calls.append(("optimizers", estimated_global_steps_per_epoch, epochs))
        optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-2)
        steps = estimated_global_steps_per_epoch * epochs
        return [optimizer], [torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps)]

    def get_train_dataloader(self, sampler: Any, batch_size: int) -> DataLoader[Any]:
        dataset = self.data.get_train_dataset()
        return DataLoader(dataset, batch_size=batch_size, sampler=sampler(dataset))

    def get_val_dataloaders(self, sampler: Any, batch_size: int) -> Any:
        dataset = self.data.get_val_dataset()
        few = torch.utils.data.Subset(dataset, range(5))
        return {
            "all": DataLoader(dataset, batch_size=batch_size, sampler=sampler(dataset)),
            "few": DataLoader(few, batch_size=batch_size, sampler=sampler(few)),
        }

    def train_step(self, global_step: int, batch: Any, device: Any) -> Any:
        if self.slow:
            print("step", global_step, flush=True)
            time.sleep(0.1)
        images, labels = batch
        self.calls.append(("train_step", global_step))
        self.seen += [int(image.sum() * 1e4) for image in images]
        logits = self.net(images.to(device))
        return self.criterion(logits, labels.to(device)), logits.argmax(1), labels

    def val_step(self, global_step: int, batch: Any, device: Any) -> Any:
        images, labels = batch
        return self.net(images.to(device)).argmax(1), labels

    def on_begin_train_epoch(self, global_step: int, epoch: int) -> None:
        self.calls.append(("begin epoch", global_step, epoch))

    def on_end_backward(self, global_step: int, loss_tensor: torch.Tensor) -> None:
        self.calls.append(("backward", global_step))

    def on_end_train_step(self, global_step: int, *outputs: Any) -> None:
        self.calls.append(("step", global_step, *(len(output) for output in outputs)))

    def on_end_val_epoch(self, global_step: int, *outputs: Any, key: str = "default") -> None:
        predicted, labels = outputs
        global_stats.update(f"accuracy/{key}", (predicted == labels).float().mean().item())
        self.calls.append(("val", global_step, key, len(labels)))

    def on_end_train_epoch(self, global_step: int, *outputs: Any) -> None:
        digest = [round(output.double().sum().item(), 9) for output in outputs]
        self.calls.append(("end epoch", global_step, *digest))

    def on_end_train(self, global_step: int) -> None:
        self.calls.append(("end", global_step))


class Texts(ModuleInterface):
    """A bag of words over padded tokens; one validation loader, batches as dicts, a state of its own."""

    def __init__(self, slow: bool = False) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(2)
        self.rows = [
            {"ids": torch.randint(1, 40, (length,), generator=generator), "labels": torch.tensor(length % 3)}
            for length in torch.randint(2, 9, (38,), generator=generator).tolist()
        ]
        torch.manual_seed(0)
        self.embedding = nn.EmbeddingBag(40, 8)
        self.out = nn.Linear(8, 3)
        self.slow, self.words_seen, self.accuracy = slow, 0, 0.0
        self.epochs_ended: list[int] = []

    def get_optimizers_schedulers(self, estimated_global_steps_per_epoch: int, epochs: int) -> Any:
        return [
            torch.optim.Adam(self.embedding.parameters(), lr=1e-2),
            torch.optim.SGD(self.out.parameters(), lr=1e-1, momentum=0.9),
        ], []

    def collate(self, rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        ids = nn.utils.rnn.pad_sequence([row["ids"] for row in rows], batch_first=True)
        return {"ids": ids, "labels": torch.stack([row["labels"] for row in rows])}

    def get_train_dataloader(self, sampler: Any, batch_size: int) -> DataLoader[Any]:
        return DataLoader(self.rows, batch_size, sampler=sampler(self.rows), collate_fn=self.collate)  # type: ignore

    def get_val_dataloaders(self, sampler: Any, batch_size: int) -> DataLoader[Any]:
        return self.get_train_dataloader(sampler, batch_size)

    def train_step(self, global_step: int, batch: Any, device: Any) -> torch.Tensor:
        if self.slow:
            print("step", global_step, flush=True)
            time.sleep(0.1)
        self.words_seen += int((batch["ids"] > 0).sum())
        return F.cross_entropy(self.out(self.embedding(batch["ids"].to(device))), batch["labels"].to(device))

    def val_step(self, global_step: int, batch: Any, device: Any) -> Any:
        return self.out(self.embedding(batch["ids"])).argmax(1), batch["labels"]

    def on_end_val_epoch(self, global_step: int, *outputs: Any, key: str = "default") -> None:
        self.accuracy = (outputs[0] == outputs[1]).float().mean().item()

    def on_end_train_epoch(self, global_step: int, *outputs: Any) -> None:
        self.epochs_ended.append(global_step)

    def get_state(self) -> dict[str, Any]:
        return {"weights": self.state_dict(), "words_seen": self.words_seen, "epochs_ended": tuple(self.epochs_ended)}

    def update_state(self, state: Any) -> None:
        if state:
            self.load_state_dict(state["weights"])
            self.words_seen, self.epochs_ended = state["words_seen"], list(state["epochs_ended"])


KINDS: dict[str, Any] = {"images": Images, "texts": Texts}


def build(module: Any, folder: Path, checkpointer: Any = None, **more: Any) -> Any:
    """A quiet trainer whose files are all in ``folder``."""
    kept = str(folder / "checkpoints")
    settings: dict[str, Any] = {
        "epochs": 3,
        "train_batch_size": 12,
        "gpu_batch_size_limit": 4,
        "val_batch_size": 10,
        "use_gpu": False,
        "writers": [],
        "disable_tqdm": True,
        "log_level": "WARNING",
        "checkpointer_args": DefaultCheckpointerArguments(save_dir=kept, model_state_save_dir=kept, load_dir=kept),
        "writer_args": WriterInitArguments(tb_log_dir=str(folder / "logs")),
        **more,
    }
    return trainer.Trainer(module, trainer.TrainerArguments(**settings), checkpointer=checkpointer)


def fingerprint(run: Any) -> str:
    """Weights, optimizers and counts."""
    digest = hashlib.sha256(repr((run.global_steps_finished, run.total_steps_finished, run.last_epoch)).encode())
    for name, tensor in sorted(run.module.state_dict().items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    for optimizer in run.optimizers:
        for _, entries in sorted(optimizer.state_dict()["state"].items()):
            for key, value in sorted(entries.items()):
                digest.update(key.encode() + torch.as_tensor(value).numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    torch.set_num_threads(1)
    kind, folder, *rest = sys.argv[1:]
    run = build(KINDS[kind](slow="--slow" in rest), Path(folder))
    print("started", flush=True)
    run.train()
    print(fingerprint(run), flush=True)


if __name__ == "__main__":
    main()
