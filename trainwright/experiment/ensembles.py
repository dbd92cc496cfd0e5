"""``model.ensemble``: several models in place of the one that a task prepares."""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Subset

from trainwright.config.backends import rank_from_environment
from trainwright.config.experiment import EnsembleSection
from trainwright.config.loading import Loaded
from trainwright.core.files import replace_text
from trainwright.data.numbered import SAMPLE_NUMBER, numbered
from trainwright.engines.torch.ensembles.combining import calibration_error
from trainwright.engines.torch.ensembles.ensemble import Ensemble
from trainwright.engines.torch.randomness import set_seed
from trainwright.experiment.tasks.base import Given, Prepared, TaskKit, TensorRows
from trainwright.trainer.calibrating import calibrate
from trainwright.trainer.trainer import Trainer

CALIBRATION = "calibration.json"
_PLACE = ("model", "ensemble")
logger = logging.getLogger("trainwright")


def make_ensemble(kit: TaskKit, given: Given, prepared: Prepared, *, seed: int, loss: Any) -> None:
    """Put the members that the experiment asks for in place of the model in ``prepared``."""
    loaded, section = given.loaded, given.loaded.experiment.model.ensemble
    assert section is not None
    configurations = _configurations(loaded, section)
    first = seed if section.seed is None else section.seed
    if not 0 <= first < 2**32 - len(configurations):
        raise loaded.error((*_PLACE, "seed"), f"{first} should be a whole number from 0 to 2**32, less the members.")
    members: list[nn.Module] = []
    for place, options in enumerate(configurations):
        # As a run of this member alone begins.
        set_seed(first + place)
        own = dataclasses.replace(given, loaded=_with_options(loaded, options), facts=prepared.facts)
        members.append(kit.prepare(own).model)
    set_seed(seed)
    kind = section.kind or ("numbers" if _predicts_numbers(prepared) else "classes")
    try:
        prepared.model = Ensemble(
            members,
            seed=first,
            predict=section.predict,
            kind=kind,
            bags=section.bags,
            loss=loss,
            vectorize=section.vectorize,
        )
    except ValueError as error:
        raise loaded.error(_PLACE, str(error)) from error
    prepared.notes.append(f"{len(members)} members, seeds {first} to {first + len(members) - 1}")
    _read_predictions(prepared, kind)


def _configurations(loaded: Loaded, section: EnsembleSection) -> list[dict[str, Any]]:
    """The options of each member, beyond those of all."""
    if loaded.experiment.model.task == "seq2seq":
        raise loaded.error(_PLACE, "texts that are generated cannot be averaged: leave it out.")
    count = section.members
    if section.configurations:
        if count not in (None, len(section.configurations)):
            raise loaded.error(
                (*_PLACE, "members"), f"configurations lists {len(section.configurations)}: leave it out."
            )
        return section.configurations
    if count is None or count < 2:
        raise loaded.error((*_PLACE, "members"), f"{count!r} should be a whole number of at least 2.")
    return [{}] * count


def _with_options(loaded: Loaded, options: dict[str, Any]) -> Loaded:
    model = loaded.experiment.model
    changed = dataclasses.replace(model, options={**model.options, **options})
    return dataclasses.replace(loaded, experiment=dataclasses.replace(loaded.experiment, model=changed))


def _predicts_numbers(prepared: Prepared) -> bool:
    return "target_scale" in prepared.facts and not prepared.facts.get("classes")


def _read_predictions(prepared: Prepared, kind: str) -> None:
    """Let the task read the common prediction, and add how sure it is."""
    describe, measure, reduce = prepared.describe, prepared.metrics, prepared.preprocess_logits
    unit = prepared.facts.get("target_scale", {}).get("scale", 1.0) if kind == "numbers" else 1.0
    names = ("spread",) if kind == "numbers" else ("entropy", "disagreement")

    def described(predictions: Any) -> list[dict[str, Any]]:
        if not isinstance(predictions, tuple):
            return describe(predictions)
        logits, *sureness = predictions
        rows = describe(logits)
        for name, values in zip(names, sureness, strict=True):
            rounded = np.round(np.asarray(values, dtype=np.float64) * unit, 6)
            for row, value in zip(rows, rounded.reshape(len(rows), -1).tolist(), strict=True):
                row[name] = value[0] if len(value) == 1 else value
        return rows

    def measured(prediction: Any) -> dict[str, float]:
        return {**measure(prediction), **_sureness(prediction)}

    prepared.describe = described
    if reduce is not None:
        prepared.preprocess_logits = lambda outputs, labels: reduce(
            outputs[0] if isinstance(outputs, tuple) else outputs, labels
        )
    elif measure is not None and kind == "classes":
        prepared.metrics = measured


def _sureness(prediction: Any) -> dict[str, float]:
    """How far confidence is from being right, and how much members contradict each other."""
    logits, _, disagreement = prediction.predictions
    labels = torch.as_tensor(np.asarray(prediction.label_ids)).reshape(-1)
    error = calibration_error(torch.as_tensor(np.asarray(logits)).reshape(len(labels), -1), labels)
    return {"ece": error, "disagreement": float(np.mean(disagreement))}


def numbered_for_bags(loaded: Loaded, rows: Any) -> Any:
    """Rows with their numbers, where members have bags; as they are otherwise."""
    section = loaded.experiment.model.ensemble
    if section is None or not section.bags or rows is None:
        return rows
    inner = rows.dataset if isinstance(rows, Subset) else rows
    if not isinstance(inner, TensorRows):
        return numbered(rows)
    # Still tensors, of which batches are taken at once.
    chosen = torch.as_tensor(rows.indices) if isinstance(rows, Subset) else slice(None)
    columns = {name: values[chosen] for name, values in inner.columns.items()}
    return TensorRows(**columns, **{SAMPLE_NUMBER: torch.arange(len(rows))})


def refuse_no_held_out(loaded: Loaded, evaluation: Any) -> None:
    """What is fitted at the end needs data that was not trained on."""
    section = loaded.experiment.model.ensemble
    if section is None or evaluation is not None:
        return
    for key, asked in (("calibrate", section.calibrate), ("predict", section.predict == "stacked")):
        if asked:
            raise loaded.error((*_PLACE, key), "it is fitted to held-out data: set data.eval or data.holdout.")


def settle_ensemble(loaded: Loaded, trainer: Trainer, folder: Path) -> None:
    """Fit temperature and shares at the end of a training, before the model is saved."""
    section = loaded.experiment.model.ensemble
    if section is None or not (section.calibrate or section.predict == "stacked"):
        return
    found = calibrate(trainer)
    if rank_from_environment().rank == 0:
        replace_text(folder / CALIBRATION, json.dumps(dataclasses.asdict(found), indent=2) + "\n", forced=True)
    logger.info(
        "Calibrated on %d held-out samples: temperature %.3f, loss %.4f before and %.4f after.",
        *(found.samples, found.temperature, found.loss_before, found.loss_after),
    )
