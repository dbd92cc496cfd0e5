"""``evaluation.json``: what an evaluation's predictions look like in detail, for the report.

From predictions that were collected for ``compute_metrics`` anyway. The samples themselves are read when the training
is over: reading data draws random numbers at times, and none that a training counts on may be drawn.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainwright.core.files import replace_text
from trainwright.core.json_files import read_json
from trainwright.core.results import EvalLoopOutput
from trainwright.engines.torch.randomness import random_state, set_random_state
from trainwright.engines.torch.targets import base_model, shifts_labels
from trainwright.randomness.own_generators import OwnGenerators
from trainwright.training.one_writer import may_write
from trainwright.training.run import TrainingRun
from trainwright.training.sample_inputs import input_of
from trainwright.training.save_model import run_folder
from trainwright.training.setup import Setup

FILE = "evaluation.json"
_MOST_CLASSES, _MOST_POINTS, _WORST, _EXAMPLES, _MOST_SETS = 100, 500, 12, 12, 8
#: Numbers looked at; of more predictions only some rows are.
_MOST_NUMBERS = 5_000_000


def note_predictions(setup: Setup, output: EvalLoopOutput, prefix: str, dataset: Any) -> None:
    """Keep what the report shows of this evaluation; nothing for predictions of another form than it knows.

    ``dataset`` is what was evaluated, in this order; None where nobody knows.
    """
    run, args = setup.run, setup.args
    if run is None or not (args.write_report and args.should_save) or run.is_over or not may_write(run):
        return
    folder = run_folder(setup)
    try:
        model = base_model(setup.model)
        reading = Reading(
            names=lambda count: class_names(setup, count),
            amount=setup.data_words.amount,
            shifts=shifts_labels(model),
            has_several=getattr(getattr(model, "config", None), "problem_type", None) == "multi_label_classification",
        )
        found = details_of(output.predictions, output.label_ids, reading)
    except Exception:
        # Arrays of strings, ragged lists, whatever somebody's model gives.
        return
    if not found or not folder.is_dir():
        return
    run.details = dict(list(({**run.details, prefix: {"step": setup.state.global_step, **found}}).items())[:_MOST_SETS])
    run.detailed_sets[prefix] = dataset
    with suppress(OSError, ValueError):
        replace_text(folder / FILE, json.dumps(run.details) + "\n")


def _as_it_is(number: Any) -> Any:
    return number


@dataclass(frozen=True)
class Reading:
    """How predictions and labels are to be read."""

    #: Names of so many classes.
    names: Callable[[int], list[str]]
    #: The true size of what is predicted.
    amount: Callable[[Any], Any] = _as_it_is
    #: Whether each token's prediction is that of the next one's label.
    shifts: bool = False
    #: Whether a sample may have several classes, or none.
    has_several: bool = False


def details_of(predictions: Any, labels: Any, reading: Reading) -> dict[str, Any]:
    """Counts and samples of a classification, points of a regression; empty for anything else.

    >>> reading = Reading(names=lambda count: ["cat", "dog"])
    >>> found = details_of(np.array([[2.0, 0.0], [0.0, 1.0]]), np.array([0, 0]), reading)
    >>> found["confusion"], found["worst"][0]["prediction"]
    ([[1, 1], [0, 0]], 'dog')
    """
    predictions = predictions[0] if isinstance(predictions, (tuple, list)) and len(predictions) else predictions
    if not isinstance(predictions, np.ndarray) or not isinstance(labels, np.ndarray) or not len(labels):
        return {}
    if reading.has_several:
        return {}
    samples, rows = len(labels), _some_rows(predictions)
    where, predictions, labels = rows, predictions[rows], labels[rows]
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    kept = {"samples": samples, "shown": len(rows)}
    if labels.ndim == 1 and np.issubdtype(labels.dtype, np.integer):
        return {**kept, **found} if (found := _classes(predictions, labels, where, reading.names)) else {}
    if labels.ndim == 2 and np.issubdtype(labels.dtype, np.integer):
        return {**kept, **found} if (found := _tokens(predictions, labels, reading)) else {}
    predictions = predictions[:, 0] if predictions.ndim == 2 and predictions.shape[1] == 1 else predictions
    if labels.ndim == 1 and predictions.shape == labels.shape and np.issubdtype(labels.dtype, np.floating):
        true, guessed = (reading.amount(one.astype(np.float64)) for one in (labels, predictions))
        return {**kept, **_values(guessed, true, where)}
    return {}


def _some_rows(predictions: np.ndarray) -> np.ndarray:
    """All rows, or evenly chosen ones of what would take long."""
    most = max(_MOST_NUMBERS // max(predictions[:1].size, 1), 1)
    count = len(predictions)
    return np.arange(count) if count <= most else np.linspace(0, count - 1, most).astype(np.int64)


def _classes(predictions: np.ndarray, labels: np.ndarray, where: np.ndarray, names: Any) -> dict[str, Any]:
    shares = losses = None
    if predictions.ndim == 2 and predictions.shape[1] > 1 and np.issubdtype(predictions.dtype, np.floating):
        count, guessed = predictions.shape[1], predictions.argmax(1)
        shares = _softmax(predictions.astype(np.float64))
    elif predictions.shape == labels.shape and np.issubdtype(predictions.dtype, np.integer):
        guessed = predictions
        count = int(max(labels.max(), guessed.max())) + 1
    else:
        return {}
    is_known = (labels >= 0) & (labels < count) & (guessed >= 0) & (guessed < count)
    if not is_known.any() or count > 10 * _MOST_CLASSES:
        return {}
    labels, guessed, where = labels[is_known], guessed[is_known], where[is_known]
    words = names(count)
    if shares is not None:
        shares = shares[is_known]
        losses = -np.log(np.maximum(shares[np.arange(len(labels)), labels], 1e-30))

    def sample(place: int) -> dict[str, Any]:
        found = {"index": int(where[place]), "label": words[labels[place]], "prediction": words[guessed[place]]}
        if shares is not None and losses is not None:
            found["probability"] = _rounded(shares[place, guessed[place]])
            found["loss"] = _rounded(losses[place])
        return found

    order = np.argsort(-losses, kind="stable") if losses is not None else np.flatnonzero(labels != guessed)
    found: dict[str, Any] = {"kind": "classification", "worst": [sample(place) for place in order[:_WORST]]}
    spread = np.linspace(0, len(labels) - 1, min(_EXAMPLES, len(labels))).astype(np.int64)
    found["examples"] = [sample(place) for place in spread]
    if count <= _MOST_CLASSES:
        found |= {"names": words, "confusion": _confusion(labels, guessed, count)}
    return found


def _tokens(predictions: np.ndarray, labels: np.ndarray, reading: Reading) -> dict[str, Any]:
    """Classes of tokens: counts alone. A vocabulary is no set of classes."""
    if predictions.ndim == 2 and labels.min() >= 0 and labels.max() <= 1:
        # Nothing but 0 and 1: several classes a sample, most likely.
        return {}
    if reading.shifts and predictions.shape[:2] == labels.shape:
        predictions, labels = predictions[:, :-1], labels[:, 1:]
    guessed = predictions.argmax(-1) if predictions.ndim == 3 else predictions
    if guessed.shape != labels.shape or not np.issubdtype(guessed.dtype, np.integer):
        return {}
    count = predictions.shape[-1] if predictions.ndim == 3 else int(max(labels.max(), guessed.max())) + 1
    is_known = (labels >= 0) & (labels < count) & (guessed >= 0) & (guessed < count)
    if count > _MOST_CLASSES or not is_known.any():
        return {}
    confusion = _confusion(labels[is_known], guessed[is_known], count)
    return {
        "kind": "classification",
        "names": reading.names(count),
        "confusion": confusion,
        "worst": [],
        "examples": [],
    }


def _confusion(labels: np.ndarray, guessed: np.ndarray, count: int) -> list[list[int]]:
    pairs = labels.astype(np.int64) * count + guessed.astype(np.int64)
    return np.bincount(pairs, minlength=count * count).reshape(count, count).tolist()


def _values(predictions: np.ndarray, labels: np.ndarray, where: np.ndarray) -> dict[str, Any]:
    known = np.flatnonzero(np.isfinite(predictions) & np.isfinite(labels))
    order = known[np.argsort(-np.abs(predictions[known] - labels[known]), kind="stable")]
    spread = known[np.linspace(0, len(known) - 1, min(_MOST_POINTS, len(known))).astype(np.int64)]
    worst = [
        {"index": int(where[at]), "label": _rounded(labels[at]), "prediction": _rounded(predictions[at])}
        for at in order[:_WORST]
    ]
    points = {"targets": labels[spread], "predictions": predictions[spread]}
    return {"kind": "regression", "worst": worst, **{n: [_rounded(one) for one in v] for n, v in points.items()}}


def _softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities; rows that are some already stay as they are."""
    sums = logits.sum(1)
    if (logits >= 0).all() and np.abs(sums - 1).max() < 1e-3:
        return logits
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def _rounded(value: Any) -> float | None:
    found = float(f"{float(value):.5g}")
    return found if np.isfinite(found) else None


def class_names(setup: Setup, count: int) -> list[str]:
    """What classes are called: by ``data_words``, the data, the model's configuration, or by their numbers."""
    if len(setup.data_words.classes) == count:
        return [setup.data_words.class_name(number)[:80] for number in range(count)]
    features = getattr(setup.eval_dataset, "features", None)
    for column in ("labels", "label", "ner_tags"):
        feature = features.get(column) if isinstance(features, Mapping) else None
        found = getattr(getattr(feature, "feature", feature), "names", None)
        if isinstance(found, list) and len(found) == count:
            return [str(name)[:80] for name in found]
    named = getattr(getattr(base_model(setup.model), "config", None), "id2label", None)
    if isinstance(named, Mapping) and len(named) == count and all(number in named for number in range(count)):
        return [str(named[number])[:80] for number in range(count)]
    return [str(number) for number in range(count)]


def add_inputs(run: TrainingRun) -> None:
    """After the training: write beside each sample what the model was shown."""
    setup, folder = run.setup, run_folder(run.setup)
    if not run.details:
        return
    with suppress(OSError, ValueError):
        if read_json(folder / FILE) != json.loads(json.dumps(run.details)):
            return
    # Reading data may draw random numbers, and what a script does afterwards is not to know of it.
    own = OwnGenerators(lambda: dict(run.detailed_sets), iterators=False)
    states, randomness = own.capture(), random_state()
    try:
        for prefix, found in run.details.items():
            dataset: Any = run.detailed_sets.pop(prefix, None)
            for sample in [*found.get("worst", []), *found.get("examples", [])] if dataset is not None else []:
                with suppress(Exception):
                    sample.update(input_of(dataset[sample["index"]], setup.processing_class, setup.data_words))
    finally:
        set_random_state(*randomness)
        own.restore(states)
    with suppress(OSError, ValueError):
        replace_text(folder / FILE, json.dumps(run.details) + "\n")


def forget_later_evaluations(folder: Path, step: int) -> None:
    """The run goes on from ``step``: what it made of later steps belongs to a course that was given up."""
    with suppress(OSError, ValueError, AttributeError, TypeError):
        found = read_json(folder / FILE)
        kept = {prefix: one for prefix, one in found.items() if one.get("step", 0) <= step}
        if len(kept) < len(found):
            replace_text(folder / FILE, json.dumps(kept) + "\n")
