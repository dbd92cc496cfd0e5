"""Ensembles on digits: members computed together against one by one, and what they and soups are worth.

Run: ``python bench/ensembles.py`` (a few minutes on two cores; ``--speed`` and ``--quality`` for one half each;
``--digits 300`` learns from few).

Speed: a step of N members in one run against the sum of the steps of N runs, all through ``Trainer.train()``, one way
after the other within each round, medians over the rounds. Quality: five seeds; each trains single models, ensembles
and, from the checkpoints of one single run, a soup and snapshots. Temperatures are fitted to one half of the held-out
digits, and every number is of the other half.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainwright import Ensemble, PrinterCallback, Trainer, TrainerCallback, TrainingArguments, calibrate, set_seed
from trainwright.engines.torch.ensembles.averaging import average_of
from trainwright.engines.torch.ensembles.combining import calibration_error, fitted_temperature
from trainwright.experiment.builtin_data import digits
from trainwright.experiment.networks import ConvolutionalNet, Perceptron
from trainwright.experiment.tasks.base import TensorRows

SEEDS, MEMBERS = 5, 5
#: Epochs of 897 digits; fewer digits are seen more often.
EPOCHS, DIGITS = 15, 897
#: Steps of a training whose time is measured, and those before: preparations, the proof on the first batch.
STEPS, BEFORE = 120, 20


class Shared:
    """Rows, arguments and networks that all trainings share."""

    def __init__(self, count: int) -> None:
        pixels, labels = digits()
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
        train, held_out = order[len(order) - count :], order[: len(order) - count]
        self.epochs = EPOCHS * DIGITS // count
        self.train = TensorRows(pixel_values=pixels[train], labels=labels[train])
        # Every second one is fitted to, the others judge.
        self.held_out = TensorRows(pixel_values=pixels[held_out], labels=labels[held_out])

    def arguments(self, folder: str, **more: Any) -> TrainingArguments:
        options: dict[str, Any] = {
            "per_device_train_batch_size": 32,
            "per_device_eval_batch_size": 500,
            "learning_rate": 3e-3,
            "report_to": "none",
            "disable_tqdm": True,
            "save_strategy": "no",
            "write_report": False,
            "logging_strategy": "no",
            "log_level": "error",
            **more,
        }
        return TrainingArguments(folder, **options)


class Clock(TrainerCallback):
    """Seconds from the first measured step to the last."""

    def __init__(self) -> None:
        self.start = self.seconds = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == BEFORE:
            self.start = _now()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == STEPS:
            self.seconds = _now() - self.start


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def speed(rows: Shared, folder: str, rounds: int) -> None:
    """Print a table of milliseconds for a step of all members: one by one, in turn within one run, together."""
    networks: list[tuple[str, Callable[[], nn.Module], int]] = [
        ("mlp, width 32", lambda: Perceptron(64, 10, width=32), 5),
        ("mlp, width 32", lambda: Perceptron(64, 10, width=32), 20),
        ("mlp, width 128", lambda: Perceptron(64, 10, width=128), 5),
        ("cnn, width 8", lambda: ConvolutionalNet(1, 10, width=8), 5),
    ]
    print("| network | members | one by one | in turn, one run | together | one by one / together |")
    print("|---|---|---|---|---|---|")
    for name, make, count in networks:
        print(_speed_row(rows, folder, rounds, name, make, count), flush=True)


def _speed_row(rows: Shared, folder: str, rounds: int, name: str, make: Callable[[], nn.Module], count: int) -> str:
    def timed(model: nn.Module) -> float:
        clock = Clock()
        _train(model, rows, folder, clock, max_steps=STEPS)
        return clock.seconds / (STEPS - BEFORE) * 1000

    ways: dict[str, Callable[[], float]] = {
        "alone": lambda: sum(timed(make()) for _ in range(count)),
        "turns": lambda: timed(Ensemble(make, count, vectorize=False)),
        "together": lambda: timed(Ensemble(make, count)),
    }
    found: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, work in ways.items():
            found[way].append(work())
    shown = " | ".join(f"{statistics.median(found[way]):.2f} ms" for way in ways)
    ratios = [one / other for one, other in zip(found["alone"], found["together"], strict=True)]
    return (
        f"| {name} | {count} | {shown} | **{statistics.median(ratios):.2f}** ({min(ratios):.2f} to {max(ratios):.2f}) |"
    )


def _train(model: nn.Module, rows: Shared, folder: str, clock: Clock | None = None, **more: Any) -> Trainer:
    callbacks = [] if clock is None else [clock]
    args = rows.arguments(folder, **more)
    trainer = Trainer(model, args, train_dataset=rows.train, eval_dataset=rows.held_out, callbacks=callbacks)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    if isinstance(model, Ensemble) and model.vectorize:
        assert model.how == "together", model.how
    return trainer


# ---- quality


def quality(rows: Shared, folder: str) -> None:
    """Print accuracy, loss and calibration error of each kind over the seeds."""
    labels = torch.as_tensor(rows.held_out.columns["labels"])
    found: dict[str, list[tuple[float, float, float]]] = {}
    for seed in range(SEEDS):
        for name, logits in _predictions(rows, Path(folder) / str(seed), seed).items():
            plain, fitted = _judged(logits, labels), _judged(logits / _temperature(logits, labels), labels)
            found.setdefault(name, []).append(plain)
            found.setdefault(f"{name}, calibrated", []).append(fitted)
    print("\n| model | accuracy | loss | calibration error |\n|---|---|---|---|")
    for name, values in found.items():
        columns = [
            f"{statistics.mean(column):.4f} ± {statistics.stdev(column):.4f}" for column in zip(*values, strict=True)
        ]
        print(f"| {name} | {' | '.join(columns)} |")


def _temperature(logits: Tensor, labels: Tensor) -> float:
    return fitted_temperature(logits[::2], labels[::2])


def _judged(logits: Tensor, labels: Tensor) -> tuple[float, float, float]:
    logits, labels = logits[1::2], labels[1::2]
    right = float((logits.argmax(-1) == labels).double().mean())
    return right, float(nn.functional.cross_entropy(logits, labels)), calibration_error(logits, labels)


def _predictions(rows: Shared, folder: Path, seed: int) -> dict[str, Tensor]:
    """Logits of the held-out digits by a single model, by ensembles, and by what its checkpoints give."""
    more: dict[str, Any] = {"num_train_epochs": rows.epochs, "seed": seed, "learning_rate": 3e-3}

    def make() -> nn.Module:
        return Perceptron(64, 10, width=32)

    set_seed(seed)
    single = make()
    saving = {"save_strategy": "epoch", "save_total_limit": 5}
    trainer = _train(single, rows, str(folder / "single"), lr_scheduler_type="constant", **saving, **more)
    found = {"single model": _logits(trainer, rows)}
    states = []
    for checkpoint in sorted((folder / "single").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1])):
        trainer._load_from_checkpoint(str(checkpoint))
        states.append({name: tensor.clone() for name, tensor in single.state_dict().items()})
    single.load_state_dict(average_of(states))
    found[f"uniform soup of its last {len(states)} epochs"] = _logits(trainer, rows)
    snapshots = [make() for _ in states]
    for member, state in zip(snapshots, states, strict=True):
        member.load_state_dict(state)
    together = Trainer(Ensemble(snapshots), rows.arguments(str(folder / "snapshots")))
    found[f"snapshots of its last {len(states)} epochs"] = _logits(together, rows)
    for bags in (False, True):
        ensemble = Ensemble(make, MEMBERS, seed=100 * seed, bags=bags)
        numbers = {"sample_number": torch.arange(len(rows.train))} if bags else {}
        data = TensorRows(**rows.train.columns, **numbers)
        args = rows.arguments(str(folder / f"ensemble-{bags}"), lr_scheduler_type="constant", **more)
        trained = Trainer(ensemble, args, train_dataset=data, eval_dataset=rows.held_out)
        trained.remove_callback(PrinterCallback)
        trained.train()
        found[f"ensemble of {MEMBERS}" + (" with bags" if bags else "")] = _logits(trained, rows)
        if not bags:
            ensemble.predict = "stacked"
            calibrate(trained)
            ensemble.temperature.fill_(1.0)
            found[f"ensemble of {MEMBERS}, stacked"] = _logits(trained, rows)
    return found


def _logits(trainer: Trainer, rows: Shared) -> Tensor:
    predictions = trainer.predict(rows.held_out).predictions
    return torch.as_tensor(predictions[0] if isinstance(predictions, tuple) else predictions)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--quality", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--digits", type=int, default=DIGITS, help="how many are learned from")
    said = parser.parse_args()
    logging.getLogger("trainwright").setLevel(logging.ERROR)
    rows = Shared(said.digits)
    with tempfile.TemporaryDirectory() as folder:
        if said.speed or not said.quality:
            print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, GPU: {torch.cuda.is_available()}\n")
            speed(rows, folder, said.rounds)
        if said.quality or not said.speed:
            quality(rows, folder)


if __name__ == "__main__":
    main()
