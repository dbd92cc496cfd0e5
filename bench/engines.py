"""Cost of a training step on every engine that is installed, for the same small BERT and the same small CNN.

    OMP_NUM_THREADS=1 python bench/engines.py [--steps 30] [--rounds 3] [--op-by-op-steps 6]

The BERT: two layers, 128 wide, 4 heads, 1000 words, batches of 16 x 32 tokens, without and with dropout. The CNN: three
convolutions with BatchNorm (16, 32 and 64 channels), batches of 16 images of 3 x 32 x 32. AdamW, clipping and a linear
schedule, through the Trainer. Engines take turns, one run of so many steps each in every round, in one process; a step
is what lies between two calls of the collator (a callback would make other engines show it the weights after every
step). Printed are medians over the steps of all rounds, and the longest step of a run, which is its first: it captures
and compiles. Op by op (``engine_jit=False``) runs in the last round only: it is slow.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import itertools
import logging
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")

import torch
from torch import Tensor, nn

BATCH, TOKENS, WORDS = 16, 32, 1000


class SmallCNN(nn.Module):
    """Three convolutions with BatchNorm, then the mean over the picture."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in ((3, 16), (16, 32), (32, 64)):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(64, 10)

    def forward(self, pixels: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.layers(pixels).mean((2, 3)))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Contender(NamedTuple):
    name: str
    engine: str
    jit: bool


class Times(NamedTuple):
    """Milliseconds from batch to batch of a run."""

    cpu: list[float]
    wall: list[float]


def contenders() -> list[Contender]:
    found = [Contender("torch", "torch", True)]
    for engine, package in (("mindspore", "mindspore"), ("jax", "torchax")):
        if importlib.util.find_spec(package) is not None:
            found += [Contender(f"{engine}, compiled", engine, True), Contender(f"{engine}, op by op", engine, False)]
    return found


def images(steps: int) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(steps * BATCH, 3, 32, 32, generator=generator)
    return [{"pixels": each, "labels": torch.tensor(at % 10)} for at, each in enumerate(pixels)]


def texts(steps: int) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(0, WORDS, (steps * BATCH, TOKENS), generator=generator)
    mask = torch.ones(TOKENS, dtype=torch.long)
    return [{"input_ids": row, "attention_mask": mask, "labels": (row[0] > WORDS // 2).long()} for row in words]


def small_bert(dropout: float) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(
        BertConfig(
            vocab_size=WORDS,
            hidden_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=512,
            max_position_embeddings=64,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )
    )


class Work(NamedTuple):
    """What is trained."""

    name: str
    model: Callable[[], nn.Module]
    data: Callable[[int], list[dict[str, Any]]]


WORKS = (
    Work("BERT", lambda: small_bert(0.0), texts),
    Work("BERT, dropout 0.1", lambda: small_bert(0.1), texts),
    Work("CNN with BatchNorm", SmallCNN, images),
)


def run(contender: Contender, steps: int, work: Work) -> Times:
    """Train, and time each step."""
    from trainwright import Trainer, TrainingArguments

    stamps: list[tuple[float, float]] = []

    def collate(batch: list[dict[str, Any]]) -> dict[str, Any]:
        stamps.append((time.process_time(), time.perf_counter()))
        return {name: torch.stack([row[name] for row in batch]) for name in batch[0]}

    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        args = TrainingArguments(
            folder,
            engine=contender.engine,
            engine_jit=contender.jit,
            max_steps=steps,
            per_device_train_batch_size=BATCH,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        Trainer(work.model(), args, train_dataset=work.data(steps), data_collator=collate).train()
    between = [[(b - a) * 1000 for a, b in itertools.pairwise(clock)] for clock in zip(*stamps, strict=True)]
    return Times(*between)


def measure(work: Work, steps: int, rounds: int, op_by_op_steps: int) -> None:
    measured: dict[str, list[Times]] = {}
    for number in range(rounds):
        for contender in contenders():
            if contender.jit or (op_by_op_steps and number == rounds - 1):
                times = run(contender, steps if contender.jit else op_by_op_steps, work)
                measured.setdefault(contender.name, []).append(times)
    print(f"{work.name}\n\n| | CPU ms a step | of torch | wall ms a step | of torch | first step, s |")
    print("|---|---|---|---|---|---|")
    base: tuple[float, float] | None = None
    for name, runs in measured.items():
        cpu = statistics.median(value for times in runs for value in times.cpu)
        wall = statistics.median(value for times in runs for value in times.wall)
        first = statistics.median(max(times.wall) for times in runs) / 1000
        base = base or (cpu, wall)
        print(
            f"| {name} | {cpu:.1f} | {cpu / base[0]:.2f} | {wall:.1f} | {wall / base[1]:.2f} | {first:.1f} |",
            flush=True,
        )
    print()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--op-by-op-steps", type=int, default=6, help="0 leaves it out")
    parser.add_argument("--only", default="", help="only models whose name contains this")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("trainwright").setLevel(logging.ERROR)
    for work in WORKS:
        if options.only.lower() in work.name.lower():
            measure(work, options.steps, options.rounds, options.op_by_op_steps)


if __name__ == "__main__":
    main()
