"""What train, evaluate and predict return, with Hugging Face's names."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple


class _TrainOutput(NamedTuple):
    global_step: int
    training_loss: float
    metrics: dict[str, float]


class TrainOutput(_TrainOutput):
    """What ``train()`` returns: transformers' three values, and why it ended early, if it did.

    >>> output = TrainOutput(210, 0.4, {})
    >>> step, loss, metrics = output
    >>> print(output.stopped_early)
    None
    """

    #: Why training ended before its last step, for instance "eval_loss has not improved since step 210".
    stopped_early: str | None = None
    #: The path of its report.html; None where none was written.
    report: str | None = None


class PredictionOutput(NamedTuple):
    predictions: Any
    label_ids: Any
    metrics: dict[str, float] | None


class EvalLoopOutput(NamedTuple):
    predictions: Any
    label_ids: Any
    metrics: dict[str, float]
    num_samples: int


class BestRun(NamedTuple):
    run_id: str
    objective: float | list[float]
    hyperparameters: dict[str, Any]
    run_summary: Any = None


class EvalPrediction:
    """What ``compute_metrics`` receives; unpacks as ``predictions, labels[, inputs][, losses]``.

    >>> predictions, labels = EvalPrediction([1], [0])
    """

    def __init__(self, predictions: Any, label_ids: Any, inputs: Any = None, losses: Any = None) -> None:
        self.predictions = predictions
        self.label_ids = label_ids
        self.inputs = inputs
        self.losses = losses
        self.elements = (predictions, label_ids, *(extra for extra in (inputs, losses) if extra is not None))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.elements)

    def __getitem__(self, index: int) -> Any:
        return self.elements[index]


def speed_metrics(
    split: str,
    start_time: float,
    num_samples: float | None = None,
    num_steps: float | None = None,
    num_tokens: float | None = None,
) -> dict[str, float]:
    """Runtime since ``start_time`` and rates per second, keyed ``<split>_...``."""
    runtime = time.time() - start_time
    metrics = {f"{split}_runtime": round(runtime, 4)}
    amounts = {"samples": num_samples, "steps": num_steps, "tokens": num_tokens}
    for name, amount in amounts.items():
        if amount is not None and runtime > 0:
            metrics[f"{split}_{name}_per_second"] = round(amount / runtime, 3)
    return metrics
