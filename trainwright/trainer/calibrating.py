"""Fit what an ensemble predicts with to held-out data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from trainwright.engines.torch.ensembles.combining import Calibration, calibrated
from trainwright.engines.torch.ensembles.ensemble import Ensemble
from trainwright.engines.torch.targets import unwrap
from trainwright.trainer.trainer import Trainer


def calibrate(trainer: Trainer, dataset: Any = None) -> Calibration:
    """Fit the temperature of an ensemble, and the shares of its members where it is ``stacked``, to held-out data.

    One half of ``dataset`` (by default the Trainer's ``eval_dataset``) is fitted to, the other half says what that is
    worth. The model predicts with it from then on, and saves it with its weights.

    >>> import torch
    >>> from trainwright import Ensemble, TrainingArguments
    >>> rows = [{"input": torch.randn(2), "labels": torch.tensor(n % 2)} for n in range(40)]
    >>> ensemble = Ensemble(lambda: torch.nn.Linear(2, 2), 3)
    >>> found = calibrate(Trainer(ensemble, TrainingArguments("x", report_to="none", use_cpu=True)), rows)
    >>> found.samples, found.temperature == float(ensemble.temperature)
    (40, False)
    """
    model = unwrap(trainer.model)
    if not isinstance(model, Ensemble):
        raise ValueError(f"calibrate() fits an Ensemble, and the model is a {type(model).__name__}.")
    rows = trainer.eval_dataset if dataset is None else dataset
    if rows is None or isinstance(rows, dict):
        raise ValueError("calibrate() needs one held-out dataset: calibrate(trainer, dataset).")
    with model.apart(), _no_metrics(trainer):
        found = trainer.predict(rows)
    if found.label_ids is None:
        raise ValueError("The held-out data has no labels to fit to.")
    apart = torch.as_tensor(found.predictions).movedim(1, 0)
    labels = torch.as_tensor(found.label_ids)
    if model.kind == "classes":
        apart, labels = _targets(apart, labels, shifts=model.shifts_labels)
    result = calibrated(apart, labels, model.predict, model.kind)
    model.take(result)
    return result


def _targets(apart: torch.Tensor, labels: torch.Tensor, *, shifts: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """One row for each label that counts."""
    if shifts:
        apart, labels = apart[..., :-1, :], labels[..., 1:]
    counts = (labels != -100).reshape(-1)
    return apart.flatten(1, -2)[:, counts], labels.reshape(-1)[counts]


@contextmanager
def _no_metrics(trainer: Trainer) -> Iterator[None]:
    """Metrics are of one prediction, not of each member's."""
    before = trainer.compute_metrics, trainer.preprocess_logits_for_metrics
    trainer.compute_metrics = trainer.preprocess_logits_for_metrics = None
    try:
        yield
    finally:
        trainer.compute_metrics, trainer.preprocess_logits_for_metrics = before
