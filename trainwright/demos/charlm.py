"""A character language model: a small GRU learns to write like Python's own documentation."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainwright import EvalPrediction, Trainer, TrainingArguments
from trainwright.callbacks.wording import duration, plural
from trainwright.demos.common import DemoOptions, DemoRun, closing_block, settle, trackers
from trainwright.experiment.builtin_data import ALPHABET, documentation, encode

DEFAULTS = DemoRun(demo="lm", epochs=4, batch_size=32, seed=42)
_LENGTH = 64
_CHARACTERS = 220_000
_PROMPT = "The "


def load_data() -> tuple[list[dict[str, Tensor]], list[dict[str, Tensor]]]:
    """Training and held-out rows: ``_LENGTH`` characters and, as labels, the character that follows each."""
    numbers = encode(documentation()[:_CHARACTERS])
    starts = range(0, len(numbers) - _LENGTH - 1, _LENGTH)
    rows = [{"text": numbers[i : i + _LENGTH], "labels": numbers[i + 1 : i + 1 + _LENGTH]} for i in starts]
    # Every tenth row is held out: topics differ too much for the tail to be a fair sample.
    return [row for i, row in enumerate(rows) if i % 10], rows[::10]


class CharacterModel(nn.Module):
    """Characters to logits of the next one. It has no loss: the Trainer takes cross-entropy with ``labels``."""

    def __init__(self) -> None:
        super().__init__()
        width = 160
        self.embedding = nn.Embedding(len(ALPHABET), 64)
        self.memory = nn.GRU(64, width, batch_first=True)
        self.head = nn.Linear(width, len(ALPHABET))

    def forward(self, text: Tensor) -> Tensor:
        return self.head(self.memory(self.embedding(text))[0])

    @torch.no_grad()
    def write(self, prompt: str, length: int, seed: int, temperature: float = 0.5) -> str:
        """Continue ``prompt`` by ``length`` characters, the same ones for the same seed."""
        device = self.head.weight.device
        # On the CPU and with its own generator: the sample must not disturb training.
        generator = torch.Generator().manual_seed(seed)
        state: Tensor | None = None
        given = encode(prompt).unsqueeze(0).to(device)
        written = prompt
        for _ in range(length):
            hidden, state = self.memory(self.embedding(given), state)
            chances = torch.softmax(self.head(hidden[0, -1]).float().cpu() / temperature, dim=-1)
            chosen = torch.multinomial(chances, 1, generator=generator)
            written += ALPHABET[int(chosen)]
            given = chosen.unsqueeze(0).to(device)
        return written


def surprise(logits: Tensor, labels: Tensor) -> Tensor:
    """Loss of each character: one number to keep in place of a row of logits."""
    return F.cross_entropy(logits.transpose(1, 2), labels, reduction="none")


def perplexity(prediction: EvalPrediction) -> dict[str, float]:
    """Between how many characters the model is in doubt, on average."""
    return {"perplexity": math.exp(float(np.mean(prediction.predictions)))}


def run_lm(options: DemoOptions) -> dict[str, float]:
    """Train, evaluate, save and show a sample before and after; returns the metrics on held-out text."""
    started = time.perf_counter()
    # Threads that wait for each other on a busy machine cost more than they bring to a network this small.
    torch.set_num_threads(1)
    run = settle(options, DEFAULTS)
    train_rows, held_out = load_data()
    args = TrainingArguments(
        output_dir=str(options.output),
        num_train_epochs=run.epochs,
        per_device_train_batch_size=run.batch_size,
        per_device_eval_batch_size=64,
        learning_rate=6e-3,
        warmup_steps=20,
        lr_scheduler_type="cosine",
        seed=run.seed,
        logging_steps=0.1,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model="perplexity",
        greater_is_better=False,
        report_to=trackers(),
    )
    trainer = Trainer(
        model_init=CharacterModel,
        args=args,
        train_dataset=train_rows,
        eval_dataset=held_out,
        compute_metrics=perplexity,
        preprocess_logits_for_metrics=surprise,
    )
    if not options.resume:
        print(f"Before training it writes:\n{_sample(trainer.model, run.seed, 80)}\n", flush=True)
    report = trainer.train(resume_from_checkpoint=options.resume).report
    # Not evaluate(): that would log the best model's numbers under the last step.
    metrics = trainer.predict(held_out, metric_key_prefix="eval").metrics or {}
    trainer.save_model()
    print(f"\nAfter training it writes:\n{_sample(trainer.model, run.seed, 320)}\n", flush=True)
    _conclude(options, run, metrics, time.perf_counter() - started, report)
    return metrics


def _sample(model: Any, seed: int, length: int) -> str:
    lines = model.write(_PROMPT, length, seed).splitlines()
    return "\n".join(f"    {line}" for line in lines if line.strip())


def _conclude(options: DemoOptions, run: DemoRun, metrics: dict[str, float], took: float, report: str | None) -> None:
    closing_block(
        "Character language model",
        [
            ("perplexity", f"{metrics['eval_perplexity']:.2f} on held-out text (guessing: {len(ALPHABET)})"),
            ("loss", f"{metrics['eval_loss']:.4f}"),
            ("time", duration(took)),
            ("model", f"{options.output / 'model.safetensors'} (the best of {plural(run.epochs, 'epoch')})"),
            ("resume", f"{options.resume_command} --epochs {run.epochs * 2}  # trains on from the last checkpoint"),
            ("numbers", f"{options.output / 'metrics.jsonl'}, one JSON object a line"),
            ("try next", f"{options.program} demo lm --epochs 12  # writes better"),
            *([("report", f"{report}  # open it in a browser")] if report else []),
        ],
    )
