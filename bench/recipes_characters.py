"""Does a teacher help a small student? A language model of characters learns from a tenth of the text, alone or taught.

The teacher has read all of the training text (Python's own documentation); the student, a sixth of its size, sees a
tenth of it. Bits per character on held-out text, over several seeds.

    python bench/recipes_characters.py [--seeds 5]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import math
import multiprocessing
import statistics
import tempfile
import warnings
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

from trainwright import Trainer, TrainingArguments
from trainwright.demos.charlm import load_data, perplexity, surprise
from trainwright.experiment.builtin_data import ALPHABET


class Reader(nn.Module):
    """Characters to logits of the next one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(ALPHABET), width // 2)
        self.memory = nn.GRU(width // 2, width, batch_first=True)
        self.head = nn.Linear(width, len(ALPHABET))

    def forward(self, text: Tensor) -> Tensor:
        return self.head(self.memory(self.embedding(text))[0])


def train(model: nn.Module, rows: Any, held_out: Any, *, seed: int, epochs: int, **options: Any) -> float:
    """Train, and say how many bits a character of the held-out text takes."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        args = TrainingArguments(
            folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=32,
            per_device_eval_batch_size=64,
            learning_rate=6e-3,
            warmup_steps=20,
            lr_scheduler_type="cosine",
            seed=seed,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(
            model,
            args,
            train_dataset=rows,
            compute_metrics=perplexity,
            preprocess_logits_for_metrics=surprise,
            **options,
        )
        trainer.train()
        return math.log2((trainer.predict(held_out).metrics or {})["test_perplexity"])


def recipe(epochs: int) -> str:
    return f"""
training_modifiers:
  - !EpochRangeModifier {{start_epoch: 0.0, end_epoch: {epochs}.0}}
distillation_modifiers:
  - !DistillationModifier {{hardness: 0.8, temperature: 1.0}}
"""


def one_seed(seed: int) -> dict[str, float]:
    rows, held_out = load_data()
    few = rows[seed::10]
    torch.manual_seed(seed)
    teacher = Reader(256)
    found = {"the teacher, 256 wide, all of the text": train(teacher, rows, held_out, seed=seed, epochs=5)}
    for name, options in (("alone", {}), ("taught", {"recipe": recipe(80), "teacher": teacher})):
        torch.manual_seed(100 + seed)
        student = Reader(96)
        found[f"the student, 96 wide, a tenth of the text, {name}"] = train(
            student, few, held_out, seed=seed, epochs=80, **options
        )
    alone, taught = list(found.values())[1:]
    found["bits saved by teaching"] = alone - taught
    return found


def quiet_seed(seed: int) -> dict[str, float]:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("trainwright").setLevel(logging.ERROR)
    return one_seed(seed)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="seeds at a time, a process and a thread each")
    wanted = parser.parse_args()
    results = []
    with ProcessPoolExecutor(wanted.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for seed, found in enumerate(pool.map(quiet_seed, range(wanted.seeds))):
            results.append(found)
            print(json.dumps({"seed": seed, **{k: round(v, 3) for k, v in found.items()}}), flush=True)
    print("\n| bits per character | mean | lowest | highest |\n|---|---|---|---|")
    for name in results[0]:
        values = [result[name] for result in results]
        print(f"| {name} | {statistics.mean(values):.3f} | {min(values):.3f} | {max(values):.3f} |")


if __name__ == "__main__":
    main()
