"""Search for a model's sizes against random search at the same cost: ``python bench/architecture_search.py``.

Each method trains as many models for as many epochs, on two tasks, with five seeds; the number is the best it found.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from trainwright.search.sweep import sweep

METHODS: dict[str, dict[str, Any]] = {
    "random": {"method": "random"},
    "tpe": {"method": "tpe"},
    "tpe, weights inherited": {"method": "tpe", "inherit": True},
}
SIZES = {
    "training.learning_rate": {"log_range": [1e-4, 1e-1]},
    "model.options.width": {"range": [4, 96], "step": 4},
    "model.options.layers": {"range": [1, 3]},
    "model.options.dropout": {"range": [0.0, 0.5]},
}
TASKS: dict[str, dict[str, Any]] = {
    "digits, at most 10,000 parameters (accuracy)": {
        "model": {"name": "mlp"},
        "data": {"train": "digits"},
        "training": {"num_train_epochs": 1, "per_device_train_batch_size": 32},
        "search": {"space": SIZES, "limits": {"parameters": 10_000}, "metric": "accuracy"},
    },
    "characters, at most 60,000 parameters (perplexity)": {
        "model": {"name": "char-lm"},
        "data": {"train": "characters"},
        "training": {"max_steps": 60, "per_device_train_batch_size": 16},
        "search": {
            "space": {
                "training.learning_rate": {"log_range": [1e-4, 1e-1]},
                "model.options.width": {"range": [8, 128], "step": 8},
                "model.options.embedding": {"range": [4, 64], "step": 4},
                "model.options.layers": {"range": [1, 2]},
            },
            "limits": {"parameters": 60_000},
            "metric": "perplexity",
        },
    },
}


def best_of(task: dict[str, Any], options: dict[str, Any], seed: int, trials: int, folder: Path) -> float:
    """The best value that one search finds."""
    training = {**task["training"], "seed": seed, "output_dir": str(folder)}
    search = {**task["search"], **options, "seed": seed, "trials": trials, "prune": "none"}
    found = sweep({**task, "name": folder.name, "training": training, "search": search}, say=lambda line: None)
    assert found.best is not None
    return next(iter(found.best.values.values()))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    logging.getLogger("trainwright").setLevel(logging.ERROR)
    for title, task in TASKS.items():
        began = time.monotonic()
        found: dict[str, list[float]] = {name: [] for name in METHODS}
        for seed in range(given.seeds):
            for name, options in METHODS.items():
                with tempfile.TemporaryDirectory() as folder:
                    found[name].append(best_of(task, options, seed, given.trials, Path(folder) / "run"))
        less = task["search"]["metric"] == "perplexity"
        print(f"\n{title}, {given.trials} trials, {given.seeds} seeds, {time.monotonic() - began:.0f} s")
        for name, values in found.items():
            better = sum(
                (one < other) if less else (one > other) for one, other in zip(values, found["random"], strict=True)
            )
            shown = ", ".join(f"{value:.4f}" for value in values)
            print(f"  {name:<24} median {statistics.median(values):.4f}  ({shown})  better than random: {better}")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
