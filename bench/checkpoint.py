"""How long a checkpoint keeps training waiting, and how long until it is on disk.

    python bench/checkpoint.py [--rounds 7] [--width 1024] [--layers 95] [--folder DIR] [--device cpu|cuda]

A model of 100 million parameters with Adam's state, about 1.2 GB. Every round each contender saves once, in turn, in
one process. "stall" is the time in which training stands still: the call that saves and, for those that write in the
background, what the next update of the weights waits for, a forward and a backward pass later. (On a GPU: by how much a
save prolongs that pass, device included.) "on disk" is the time until everything is written, with nothing else going
on; safetensors' own ``save_file`` and an fsync are the yardstick. Medians over the rounds, without the first.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 16


class Tower(nn.Module):
    """Linear layers; 95 of width 1024 make 99.7 million parameters."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return {"loss": F.mse_loss(x, torch.zeros_like(x))}


@dataclass(frozen=True)
class Size:
    """What is saved, and where it lives."""

    width: int
    layers: int
    device: str

    def model(self) -> nn.Module:
        return Tower(self.width, self.layers).to(self.device)

    def batch(self) -> dict[str, Tensor]:
        return {"x": torch.randn(BATCH, self.width, device=self.device), "labels": torch.zeros(BATCH)}

    @property
    def on_cpu(self) -> bool:
        return self.device == "cpu"


def adam(model: nn.Module, size: Size) -> torch.optim.Optimizer:
    """An optimizer whose state is filled."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    model(**size.batch())["loss"].backward()
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


class Contender:
    """``save`` returns the seconds that training was kept waiting."""

    def __init__(self, save: Callable[[Path], float], settle: Callable[[], None] = lambda: None) -> None:
        self.save, self.settle = save, settle


def timed(work: Callable[[], Any]) -> float:
    wait_for_device()
    start = time.perf_counter()
    work()
    wait_for_device()
    return time.perf_counter() - start


def wait_for_device() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def stall(size: Size, model: nn.Module, save: Callable[[], Any], before_update: Callable[[], None]) -> float:
    """What a save in the background costs the step that follows it."""

    def following_pass() -> None:
        model(**size.batch())["loss"].backward()
        model.zero_grad()

    if size.on_cpu:
        seconds = timed(save)
        following_pass()
        return seconds + timed(before_update)
    alone = timed(following_pass)
    return timed(lambda: (save(), following_pass(), before_update())) - alone


def torch_save(size: Size) -> Contender:
    model = size.model()
    optimizer = adam(model, size)

    def save(folder: Path) -> float:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        return timed(lambda: torch.save(state, folder / "checkpoint.pt"))

    return Contender(save)


def dcp(size: Size) -> Contender:
    import torch.distributed as dist
    import torch.distributed.checkpoint as checkpoint

    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    model = size.model()
    optimizer = adam(model, size)
    pending: list[Any] = []

    def save(folder: Path) -> float:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

        def start() -> None:
            pending.append(checkpoint.async_save(state, checkpoint_id=str(folder / "dcp")))

        return stall(size, model, start, lambda: None)

    def settle() -> None:
        while pending:
            pending.pop().result()

    return Contender(save, settle)


def transformers_trainer(size: Size) -> Contender:
    import transformers

    folder = tempfile.mkdtemp(prefix="hf-")
    args = transformers.TrainingArguments(
        folder, max_steps=1, report_to=[], disable_tqdm=True, use_cpu=size.on_cpu, save_strategy="no"
    )
    data: Any = [{"x": torch.randn(size.width), "labels": torch.zeros(())} for _ in range(8)]
    model = size.model()
    trainer = transformers.Trainer(model, args, train_dataset=data)
    trainer.train()

    def save(target: Path) -> float:
        args.output_dir = str(target)
        return timed(lambda: trainer._save_checkpoint(model, trial=None))

    return Contender(save)


def lightning_trainer(size: Size) -> Contender:
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = size.model()

        def training_step(self, rows: Any, index: int) -> Tensor:
            return self.model(rows)["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-4, fused=True)

    rows: Any = torch.randn(8, size.width)
    loader = torch.utils.data.DataLoader(rows, batch_size=8)
    trainer = pl.Trainer(
        max_steps=1,
        accelerator="cpu" if size.on_cpu else "gpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tempfile.gettempdir(),
    )
    trainer.fit(Module(), loader)
    return Contender(lambda folder: timed(lambda: trainer.save_checkpoint(folder / "checkpoint.ckpt")))


def our_trainer(size: Size) -> tuple[Contender, Contender]:
    """In the background as by default, and waited for."""
    from trainwright import Trainer, TrainingArguments

    folder = tempfile.mkdtemp(prefix="ours-")
    args = TrainingArguments(folder, max_steps=1, disable_tqdm=True, use_cpu=size.on_cpu, save_strategy="no")
    data = [{"x": torch.randn(size.width), "labels": torch.zeros(())} for _ in range(8)]
    trainer = Trainer(size.model(), args, train_dataset=data)
    trainer.train()

    def save(target: Path) -> float:
        args.output_dir = str(target)
        return stall(size, trainer.model, lambda: trainer._save_checkpoint(trainer.model), trainer.engine.wait_for_copy)

    def save_and_wait(target: Path) -> float:
        args.output_dir = str(target)
        args.save_in_background = False
        try:
            return timed(lambda: trainer._save_checkpoint(trainer.model))
        finally:
            args.save_in_background = True

    return Contender(save, trainer._present_run().saver.wait), Contender(save_and_wait)


def yardstick(size: Size) -> Contender:
    model = size.model()
    optimizer = adam(model, size)
    tensors = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    for number, entries in optimizer.state_dict()["state"].items():
        tensors |= {f"state.{number}.{key}": value for key, value in entries.items()}

    def save(folder: Path) -> float:
        def work() -> None:
            save_file({name: tensor.cpu() for name, tensor in tensors.items()}, folder / "all.safetensors")
            descriptor = os.open(folder / "all.safetensors", os.O_RDWR)
            os.fsync(descriptor)
            os.close(descriptor)

        return timed(work)

    return Contender(save)


def measure(contenders: dict[str, Contender], rounds: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, contender in contenders.items():
            folder = Path(tempfile.mkdtemp(prefix="save-"))
            # What others left in the caches must not be this one's burden.
            os.sync()
            took = contender.save(folder)
            contender.settle()
            shutil.rmtree(folder)
            if number:
                seconds[name].append(took)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=95)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-checkpoint-", dir=options.folder.absolute()) as room:
        tempfile.tempdir = room
        report(options)


def report(options: argparse.Namespace) -> None:
    size = Size(options.width, options.layers, options.device)
    ours, ours_waiting = our_trainer(size)
    contenders = {
        "torch.save": torch_save(size),
        "transformers' Trainer": transformers_trainer(size),
        "Lightning Trainer": lightning_trainer(size),
        "dcp.async_save": dcp(size),
        "trainwright": ours,
        "save_file + fsync": yardstick(size),
        "trainwright, until on disk": ours_waiting,
    }
    seconds = {name: statistics.median(values) for name, values in measure(contenders, options.rounds).items()}
    synchronous = ("torch.save", "transformers' Trainer", "Lightning Trainer")
    fastest = min(seconds[name] for name in synchronous)
    print("| stall | seconds | share of the fastest synchronous peer |\n|---|---|---|")
    for name in (*synchronous, "dcp.async_save", "trainwright"):
        print(f"| {name} | {seconds[name]:.3f} | {seconds[name] / fastest:.1%} |")
    whole = seconds["save_file + fsync"]
    print("\n| on disk | seconds | ratio |\n|---|---|---|")
    for name in ("save_file + fsync", "trainwright, until on disk"):
        print(f"| {name} | {seconds[name]:.3f} | {seconds[name] / whole:.2f} |")


if __name__ == "__main__":
    main()
