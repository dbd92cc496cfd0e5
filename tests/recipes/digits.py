"""Handwritten digits for proofs about recipes: networks, training, and what is measured."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trainwright import EvalPrediction, Trainer, TrainingArguments
from trainwright.experiment.builtin_data import digits
from trainwright.recipes.pruning.magnitude import MagnitudePruningModifier

HELD_OUT = 450


class MLP(nn.Module):
    """64 grey values to ten logits by two hidden layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(64, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 10),
        )

    def forward(self, pixels: Tensor) -> Tensor:
        return self.layers(pixels)


def rows(seed: int) -> tuple[list[dict[str, Tensor]], list[dict[str, Tensor]]]:
    """(1347 to learn from, 450 held out), another split for each seed."""
    pixels, labels = digits()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1000 + seed)).tolist()
    every = [{"pixels": pixels[i], "labels": labels[i]} for i in order]
    return every[HELD_OUT:], every[:HELD_OUT]


def share_right(prediction: EvalPrediction) -> dict[str, float]:
    return {"accuracy": float(np.mean(prediction.predictions.argmax(-1) == prediction.label_ids))}


def trainer_for(model: nn.Module, folder: Path, seed: int, epochs: float, **options: Any) -> Trainer:
    """A Trainer on the split of ``seed``; ``options`` go to it, ``args`` among them to its arguments."""
    train, held_out = rows(seed)
    settings: dict[str, Any] = {
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "per_device_train_batch_size": 32,
        "per_device_eval_batch_size": HELD_OUT,
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
        "report_to": "none",
        **options.pop("args", {}),
    }
    args = TrainingArguments(str(folder), num_train_epochs=epochs, seed=seed, **settings)
    return Trainer(model, args, train_dataset=train, eval_dataset=held_out, compute_metrics=share_right, **options)


def accuracy(trainer: Trainer) -> float:
    """Percent of the held-out digits that are read right."""
    return 100 * (trainer.predict(trainer.eval_dataset, metric_key_prefix="eval").metrics or {})["eval_accuracy"]


def dense(width: int, folder: Path, seed: int, epochs: float = 30) -> tuple[nn.Module, float]:
    """A trained network, and how good it is."""
    torch.manual_seed(seed)
    model = MLP(width)
    trainer = trainer_for(model, folder, seed, epochs)
    trainer.train()
    return model, accuracy(trainer)


def pruning_recipe(sparsity: float, end: float, epochs: float, more: str = "") -> str:
    """Layer by layer from 30 % to ``sparsity`` between epoch 1 and ``end``."""
    return f"""
training_modifiers:
  - !EpochRangeModifier {{start_epoch: 0.0, end_epoch: {epochs}}}
pruning_modifiers:
  - !GMPruningModifier
      params: __ALL_PRUNABLE__
      init_sparsity: 0.3
      final_sparsity: {sparsity}
      start_epoch: 1.0
      end_epoch: {end}
      update_frequency: 0.25
{more}"""


def follow(
    model: nn.Module, recipe: Any, folder: Path, seed: int, *, calibrates: bool = False, **options: Any
) -> tuple[nn.Module, float]:
    """A copy of ``model`` trained by ``recipe``, and how good it is; where it only ``calibrates``, weights stay."""
    student = copy.deepcopy(model)
    if calibrates:
        options["args"] = {"learning_rate": 0.0, "weight_decay": 0.0}
    trainer = trainer_for(student, folder, seed, 1, recipe=recipe, **options)
    trainer.train()
    return student, accuracy(trainer)


def one_shot(model: nn.Module, sparsity: float, folder: Path, seed: int) -> float:
    """How good a copy of ``model`` is with its smallest weights taken away and no training after."""
    at_once = MagnitudePruningModifier(
        params="__ALL_PRUNABLE__", init_sparsity=sparsity, final_sparsity=sparsity, start_epoch=0, end_epoch=1
    )
    _, found = follow(model, [at_once], folder, seed, args={"max_steps": 1, "learning_rate": 0.0})
    return found


def control_recipe(epochs: int) -> str:
    """Training on, and nothing else."""
    return f"training_modifiers:\n  - !EpochRangeModifier {{start_epoch: 0.0, end_epoch: {epochs}}}\n"


def quantizing_recipe(bits: int, epochs: int, *, constant: bool = False) -> str:
    """Weights in so few bits from the beginning on; ``constant`` keeps zeros that are there."""
    masks = "pruning_modifiers:\n  - !ConstantPruningModifier {params: __ALL_PRUNABLE__}\n" if constant else ""
    return f"""
training_modifiers:
  - !EpochRangeModifier {{start_epoch: 0.0, end_epoch: {max(epochs, 1)}}}
{masks}quantization_modifiers:
  - !QuantizationModifier
      start_epoch: 0.0
      scheme:
        input_activations: {"null" if bits < 8 else "{num_bits: 8, symmetric: False}"}
        weights: {{num_bits: {bits}, symmetric: True, strategy: channel}}
"""
