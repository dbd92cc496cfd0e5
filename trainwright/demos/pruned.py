"""The network of the digits demo again, with nine weights in ten taken away while it is trained on."""

from __future__ import annotations

import copy
import shutil
import statistics
import sys
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainwright import Trainer, TrainingArguments
from trainwright.demos.common import trackers
from trainwright.recipes.language.reading import read_recipe
from trainwright.recipes.language.timeline import draw
from trainwright.recipes.selecting import prunable_layers
from trainwright.report.page import write_report
from trainwright.report.tables import add_table

#: Prunes over the first 60 % of the epochs, then lets the network recover; the dense network is the teacher.
RECIPE = """\
epochs: 10
sparsity: 0.93
training_modifiers:
  - !EpochRangeModifier {start_epoch: 0.0, end_epoch: eval(epochs)}
pruning_modifiers:
  - !GlobalMagnitudePruningModifier
      params: __ALL_PRUNABLE__
      init_sparsity: 0.3
      final_sparsity: eval(sparsity)
      start_epoch: 0.0
      end_epoch: eval(epochs * 0.6)
      update_frequency: 0.25
distillation_modifiers:
  - !DistillationModifier {hardness: 0.5, temperature: 2.0}
"""


@dataclass(frozen=True)
class Measured:
    """One network in numbers."""

    accuracy: float
    weights: int
    nonzero: int
    file: int
    zipped: int
    latency: float


def prune(
    dense: nn.Module, args: TrainingArguments, rows: object, held_out: object, metric: object, *, resume: bool
) -> Trainer:
    """Train a copy of ``dense`` by the recipe, in ``pruned`` below its folder."""
    folder = Path(str(args.output_dir)) / "pruned"
    if not resume:
        shutil.rmtree(folder, ignore_errors=True)
    recipe = read_recipe(RECIPE, {"epochs": args.num_train_epochs})
    print("\nThe same network, pruned while it is trained on (and taught by the dense one):\n", flush=True)
    print(draw(recipe, 80, ascii_only="utf" not in (sys.stdout.encoding or "").lower()) + "\n", flush=True)
    settings = {
        name: getattr(args, name)
        for name in ("num_train_epochs", "per_device_train_batch_size", "per_device_eval_batch_size", "learning_rate")
    }
    trainer = Trainer(
        copy.deepcopy(dense),
        TrainingArguments(
            output_dir=str(folder),
            warmup_steps=20,
            seed=args.seed,
            logging_strategy="epoch",
            eval_strategy="epoch",
            save_strategy="epoch",
            save_total_limit=2,
            load_best_model_at_end=True,
            metric_for_best_model="accuracy",
            report_to=trackers(),
            **settings,
        ),
        train_dataset=rows,
        eval_dataset=held_out,
        compute_metrics=metric,
        recipe=recipe,
        teacher="self",
    )
    trainer.train(resume_from_checkpoint="auto" if resume else None)
    trainer.save_model()
    return trainer


def side_by_side(networks: dict[str, Trainer], held_out: object, inputs: torch.Tensor) -> dict[str, Measured]:
    """Accuracy, weights, files and time of each network, measured in turns."""
    times: dict[str, list[float]] = {name: [] for name in networks}
    for trainer in networks.values():
        trainer.model.eval()
    with torch.inference_mode():
        for _ in range(30):
            for name, trainer in networks.items():
                started = time.perf_counter()
                trainer.model(inputs)
                times[name].append(time.perf_counter() - started)
    found = {}
    for name, trainer in networks.items():
        metrics = trainer.predict(held_out, metric_key_prefix="eval").metrics or {}
        layers: list[Any] = list(prunable_layers(trainer.model).values())
        saved = (Path(str(trainer.args.output_dir)) / "model.safetensors").read_bytes()
        found[name] = Measured(
            accuracy=metrics["eval_accuracy"],
            weights=sum(layer.weight.numel() for layer in layers),
            nonzero=sum(int(layer.weight.count_nonzero()) for layer in layers),
            file=len(saved),
            zipped=len(zlib.compress(saved, 9)),
            latency=statistics.median(times[name]),
        )
    return found


def table(measured: dict[str, Measured]) -> list[tuple[str, ...]]:
    """Rows of words: a heading, then one for each number."""
    columns = list(measured.values())
    return [
        ("", *measured),
        ("accuracy", *(f"{one.accuracy:.2%}" for one in columns)),
        ("non-zero weights", *(f"{one.nonzero:,} ({one.nonzero / one.weights:.0%})" for one in columns)),
        ("model.safetensors", *(f"{one.file / 1000:.0f} kB" for one in columns)),
        ("the same, zipped", *(f"{one.zipped / 1000:.0f} kB" for one in columns)),
        ("time for 360 digits", *(f"{one.latency * 1000:.1f} ms" for one in columns)),
    ]


def report_both(folder: Path, measured: dict[str, Measured]) -> Path:
    """Put the table into the dense network's report, which is made anew: its training ended before the pruning."""
    head, *rows = table(measured)
    add_table(folder, "The dense network and the pruned one, measured in turns:", head, rows)
    return write_report(folder).html


def show(measured: dict[str, Measured]) -> None:
    """The table, drawn on a terminal and in plain columns anywhere else."""
    rows = table(measured)
    note = "Zeros cost a dense kernel as much as other numbers: docs/recipes.md says what makes a model fast."
    if not sys.stdout.isatty():
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        print()
        for row in rows:
            print("  " + "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip())
        print(f"  {note}", flush=True)
        return
    from rich.console import Console
    from rich.table import Table

    drawn = Table(*rows[0], caption=note, caption_justify="left")
    for row in rows[1:]:
        drawn.add_row(*row)
    # Apart from the lines of the training, and from what follows.
    Console().print("", drawn, "", sep="\n")
