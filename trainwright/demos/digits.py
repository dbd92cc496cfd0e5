"""Handwritten digits: a small convolutional network learns 1,797 images that come along, in a few seconds."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from trainwright import EvalPrediction, Trainer, TrainingArguments
from trainwright.callbacks.wording import duration, plural
from trainwright.checkpoint.directory import list_checkpoints
from trainwright.demos.common import DemoOptions, DemoRun, closing_block, settle, trackers
from trainwright.demos.pruned import prune, report_both, show, side_by_side
from trainwright.experiment.builtin_data import digits

DEFAULTS = DemoRun(demo="digits", epochs=10, batch_size=32, seed=42)
_HELD_OUT = 360


class DigitNet(nn.Module):
    """8 x 8 grey values to ten logits. It has no loss: the Trainer takes cross-entropy with ``labels``."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 24, 3, padding=1),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            nn.Conv2d(24, 48, 3, padding=1),
            nn.BatchNorm2d(48),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.25),
            nn.Linear(48 * 4 * 4, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )

    def forward(self, pixels: Tensor) -> Tensor:
        return self.layers(pixels)


def load_data(seed: int) -> tuple[list[dict[str, Tensor]], list[dict[str, Tensor]]]:
    """Training and held-out rows, ``{"pixels": 1 x 8 x 8, "labels": digit}``."""
    pixels, labels = digits()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).tolist()
    rows = [{"pixels": pixels[i], "labels": labels[i]} for i in order]
    return rows[_HELD_OUT:], rows[:_HELD_OUT]


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    """Share of digits that were read right."""
    return {"accuracy": float(np.mean(prediction.predictions.argmax(-1) == prediction.label_ids))}


def run_digits(options: DemoOptions) -> dict[str, float]:
    """Train, evaluate, save and say how it went; returns the metrics on the held-out digits."""
    started = time.perf_counter()
    # Threads that wait for each other on a busy machine cost more than they bring to a network this small.
    torch.set_num_threads(1)
    run = settle(options, DEFAULTS)
    train_rows, held_out = load_data(run.seed)
    args = TrainingArguments(
        output_dir=str(options.output),
        num_train_epochs=run.epochs,
        per_device_train_batch_size=run.batch_size,
        per_device_eval_batch_size=_HELD_OUT,
        learning_rate=3e-3,
        warmup_steps=20,
        seed=run.seed,
        logging_strategy="epoch",
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        report_to=trackers(),
    )
    # model_init runs after the seed is set, so a seed gives the same network whatever came before.
    trainer = Trainer(
        model_init=DigitNet,
        args=args,
        train_dataset=train_rows,
        eval_dataset=held_out,
        compute_metrics=accuracy,
    )
    before = _last_step(options) if options.resume else None
    trainer.train(resume_from_checkpoint=options.resume)
    # Not evaluate(): that would log the best model's numbers under the last step.
    metrics = trainer.predict(held_out, metric_key_prefix="eval").metrics or {}
    trainer.save_model()
    # Where the dense network had nothing left to learn, the pruned one goes on from where it was.
    resume = before is not None and before == trainer.state.global_step
    sparse = prune(trainer.model, args, train_rows, held_out, accuracy, resume=resume)
    pixels = torch.stack([row["pixels"] for row in held_out])
    measured = side_by_side({"dense": trainer, "pruned": sparse}, held_out, pixels)
    show(measured)
    report = report_both(options.output, measured)
    _conclude(options, run, metrics, time.perf_counter() - started, report)
    return metrics


def _last_step(options: DemoOptions) -> int | None:
    found = list_checkpoints(options.output)
    return int(found[-1].name.split("-")[-1]) if found else None


def _conclude(options: DemoOptions, run: DemoRun, metrics: dict[str, float], took: float, report: Path) -> None:
    wrong = round((1 - metrics["eval_accuracy"]) * _HELD_OUT)
    closing_block(
        "Handwritten digits",
        [
            ("accuracy", f"{metrics['eval_accuracy']:.2%} of {_HELD_OUT} digits never trained on ({wrong} wrong)"),
            ("loss", f"{metrics['eval_loss']:.4f}"),
            ("time", duration(took)),
            ("model", f"{options.output / 'model.safetensors'} (the best of {plural(run.epochs, 'epoch')})"),
            ("pruned", f"{options.output / 'pruned'} (weights, recipe.yaml and masks)"),
            ("resume", f"{options.resume_command} --epochs {run.epochs * 2}  # trains on from the last checkpoint"),
            ("numbers", f"{options.output / 'metrics.jsonl'}, one JSON object a line"),
            ("compare", f"{options.program} compare {options.output} {options.output / 'pruned'}"),
            ("try next", f"{options.program} demo lm  # a small language model on Python's documentation"),
            ("report", f"{report}  # open it in a browser: dense and pruned side by side"),
        ],
    )
