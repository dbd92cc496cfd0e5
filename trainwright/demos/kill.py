"""Kill a training in the middle of a save, run the same command again, and compare the weights bit for bit.

Three processes, each ``python -m trainwright.demos.kill FOLDER [K]``: an uninterrupted run; one that sends itself
SIGKILL, which no program can catch, at its K-th wait for the disk, in the middle of writing a checkpoint; and the same
command once more, which finds the newest good checkpoint and goes on.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from trainwright import Trainer, TrainingArguments, get_last_checkpoint
from trainwright.checkpoint.directory import PREFIX
from trainwright.demos.common import DemoError, closing_block
from trainwright.demos.digits import DigitNet, load_data

EPOCHS = 3
#: Waits for the disk before the process dies: in the second of three saves, after the optimizer was written.
KILL_AT = 13


def run_kill_demo(output: Path) -> bool:
    """Show it; True if both runs ended with the same weights."""
    straight, killed = output / "uninterrupted", output / "killed"
    for folder in (straight, killed):
        shutil.rmtree(folder, ignore_errors=True)
    print("1. Training without interruption ...", flush=True)
    _start(straight, expect=0)
    print("2. The same training, which kills itself with SIGKILL in the middle of a save ...", flush=True)
    _start(killed, KILL_AT, expect=-signal.SIGKILL)
    left = sorted(path.name for path in killed.iterdir() if PREFIX in path.name)
    found = get_last_checkpoint(killed)
    print(f"   It is dead. It left {', '.join(left)}.", flush=True)
    print("3. The same command again ...", flush=True)
    _start(killed, expect=0)
    ends = [weights_hash(folder) for folder in (straight, killed)]
    same = ends[0] == ends[1]
    closing_block(
        "Killed in the middle of a save",
        [
            ("resumed from", Path(found).name if found else "nothing"),
            ("uninterrupted", f"sha256 {ends[0]}"),
            ("killed", f"sha256 {ends[1]}"),
            ("result", "the final weights are the same, bit for bit" if same else "THE WEIGHTS DIFFER"),
        ],
    )
    return same


def weights_hash(folder: Path) -> str:
    """SHA-256 of the final weights."""
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def _start(folder: Path, kill_at: int | None = None, *, expect: int) -> None:
    words = [sys.executable, "-P", "-m", "trainwright.demos.kill", str(folder)]
    if kill_at is not None:
        words.append(str(kill_at))
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != expect:
        raise DemoError(f"A training ended with {done.returncode} instead of {expect}:\n{done.stderr[-2000:]}")


def train(folder: Path) -> None:
    """What each of the three processes does: note that nothing here knows of the kill."""
    torch.set_num_threads(1)
    rows, _ = load_data(seed=0)
    args = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=EPOCHS,
        save_strategy="epoch",
        per_device_train_batch_size=32,
        learning_rate=3e-3,
        resume="auto",
        disable_tqdm=True,
    )
    trainer = Trainer(model_init=DigitNet, args=args, train_dataset=rows)
    trainer.train()
    trainer.save_model()


def _die_at(count: int) -> None:
    """Make the ``count``-th wait for the disk the last thing this process does."""
    real, left = os.fsync, count

    def fsync(fd: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        real(fd)

    os.fsync = fsync


if __name__ == "__main__":
    if len(sys.argv) > 2:
        _die_at(int(sys.argv[2]))
    train(Path(sys.argv[1]))
