"""What train, evaluate and predict return, with Hugging Face's names."""

from __future__ import annotations

import html
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

    ``repr()`` is transformers'; ``print()`` and the last line of a notebook's cell show the same for people:

    >>> print(TrainOutput(210, 0.41234, {"train_runtime": 12.3, "train_samples_per_second": 1234.5}))
    210 steps in 12.3 s, training loss 0.4123, 1,234 samples/s
    """

    #: Why training ended before its last step, for instance "eval_loss has not improved since step 210".
    stopped_early: str | None = None
    #: The path of its report.html; None where none was written.
    report: str | None = None
    #: The step from which it went on, where it was a resume.
    first_step: int = 0

    def __str__(self) -> str:
        return "\n".join(self._sentences())

    def _repr_html_(self) -> str:
        numbers = (html.escape(line) for line in self._sentences())
        rows = "".join(
            f"<tr><td>{html.escape(str(name))}</td><td>{html.escape(_short(value))}</td></tr>"
            for name, value in self.metrics.items()
        )
        return f"<p>{'<br>'.join(numbers)}</p><table>{rows}</table>"

    def _sentences(self) -> list[str]:
        known, words = self.metrics, f"{self.global_step:,} step{'' if self.global_step == 1 else 's'}"
        if self.first_step:
            words += f", {self.global_step - self.first_step:,} of them now,"
        if isinstance(runtime := known.get("train_runtime"), (int, float)):
            words += f" in {runtime:,.1f} s"
        words += f", training loss {_short(self.training_loss)}"
        if isinstance(pace := known.get("train_samples_per_second"), (int, float)) and pace:
            words += f", {_short(pace) if pace < 100 else f'{pace:,.0f}'} samples/s"
        lines = [words]
        if self.stopped_early is not None:
            lines.append(f"ended early: {self.stopped_early}")
        if self.report is not None:
            lines.append(f"report: {self.report}")
        return lines


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


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
