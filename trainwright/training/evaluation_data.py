"""What is wrong with evaluation data, said as such: an error in an evaluation is easily sought in the training data."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from trainwright.core.errors import MissingMetricError, NotMetricsError
from trainwright.training import checked_metrics
from trainwright.training.first_step.layers import RAISED_BY_TORCH, explain_layer
from trainwright.training.first_step.scene import IN_AN_EVALUATION, Scene, listed, names_of_labels, said
from trainwright.training.first_step.targets import explain_labels
from trainwright.training.setup import Setup

logger = logging.getLogger("trainwright")


@contextmanager
def named_as_evaluation(setup: Setup) -> Iterator[None]:
    """Note on an error within it that it is about evaluation data, and what is wrong with them where that is known."""
    try:
        yield
    except (MissingMetricError, NotMetricsError):
        raise
    except Exception as error:
        scene = Scene.of(setup, [], error)
        # What metrics of somebody's own make of the predictions is not the data's fault.
        if any(frame.f_code.co_filename == checked_metrics.__file__ for frame in scene.frames):
            raise
        cause = f" {text}" if isinstance(error, RAISED_BY_TORCH) and (text := _explained(scene)) else ""
        error.add_note(f"trainwright: {IN_AN_EVALUATION}.{cause}")
        raise


def _explained(scene: Scene) -> str | None:
    return said(explain_labels, scene) or said(explain_layer, scene)


def warn_of_missing_labels(setup: Setup, metrics: Mapping[str, Any], prefix: str, dataset: Any) -> None:
    """Say once why an evaluation has no loss: labels that are words are left out of a batch, and so are other names."""
    evaluation = setup.evaluation
    if f"{prefix}_loss" in metrics or setup.module is not None or evaluation.has_spoken:
        return
    sample = _first_sample(dataset)
    names = names_of_labels(setup)
    words = next((name for name in names if isinstance(sample.get(name), str)), None)
    if words is not None:
        logger.warning(
            "The labels in %r of the evaluation data are words (%r in the first sample), so there is no loss and there "
            "are no metrics: give each class a number, the same as in the training data.",
            words,
            sample[words],
        )
    elif sample and setup.compute_metrics is not None and not any(name in sample for name in names):
        logger.warning(
            "compute_metrics is not called: the evaluation data have no labels, only %s. Labels are called %s.",
            listed(sample),
            listed(setup.label_names),
        )
    evaluation.has_spoken = bool(sample)


def _first_sample(dataset: Any) -> Mapping[str, Any]:
    """The first sample, where reading it runs no code that may draw random numbers; else nothing."""
    if hasattr(dataset, "with_format") and hasattr(dataset, "column_names"):
        dataset = dataset.with_format(None)
    elif not isinstance(dataset, (list, tuple)):
        return {}
    try:
        sample = dataset[0]
    except (IndexError, KeyError, TypeError, NotImplementedError):
        return {}
    return sample if isinstance(sample, Mapping) else {}
