"""``log_histograms``: how the numbers of each weight and each gradient are spread, at every so many logs."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainwright.config.arguments import TrainingArguments
from trainwright.config.intervals import log_is_likely
from trainwright.config.run_directory import run_directory
from trainwright.core.callback import TrainerCallback
from trainwright.core.state import TrainerControl, TrainerState
from trainwright.core.step_lines import StepLines, now
from trainwright.core.tracker import Histogram
from trainwright.engines.torch.targets import unwrap

logger = logging.getLogger("trainwright")

FILE = "histograms.jsonl"
_BINS = 32
#: Parameters that are looked at, and numbers of each: more of them change no picture.
_MOST_PARAMETERS, _MOST_NUMBERS = 400, 2**18


class HistogramsCallback(TrainerCallback):
    """Writes ``histograms.jsonl`` at the first log and at every ``logs``-th after it.

    Weights are those after the step that is logged. Gradients are those of that step, as the optimizer gets them; with
    ``logging_strategy="epoch"`` those of the first step since the log before.
    """

    def __init__(self, logs: int) -> None:
        self.logs = logs
        self._logged = 0
        self._gradients: tuple[int, dict[str, Any]] | None = None
        self._lines: StepLines | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._logged, self._gradients, self._lines = 0, None, None
        parameters = list(kwargs["model"].parameters())
        if any(isinstance(parameter, DTensor) for parameter in parameters):
            logger.warning("log_histograms is left out: no process has the whole of a weight.")
        elif state.is_world_process_zero and args.should_save and not kwargs.get("is_over"):
            self._lines = StepLines(run_directory(args) / FILE)
            self._lines.begin(state.global_step)

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._lines is None or self._logged % self.logs:
            return
        is_first = self._gradients is None and args.logging_strategy == "epoch"
        if is_first or log_is_likely(args, state, epoch_ends=False):
            self._gradients = state.global_step + 1, spread_of(kwargs["model"], gradients=True)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._lines is None or "loss" not in (kwargs.get("logs") or {}):
            return
        self._logged += 1
        if (self._logged - 1) % self.logs:
            return
        step, gradients = self._gradients or (None, {})
        weights, self._gradients = spread_of(kwargs["model"], gradients=False), None
        entry = {"step": state.global_step, "time": now(), "gradients_of_step": step}
        self._lines.add({**entry, "weights": weights, "gradients": gradients})
        for tracker in kwargs.get("trackers") or ():
            for kind, found in (("weights", weights), ("gradients", gradients)):
                for name, one in found.items():
                    if one["counts"]:
                        histogram = Histogram(one["low"], one["high"], one["counts"])
                        tracker.offer("log_histogram", f"{kind}/{name}", histogram, state.global_step)


@torch.no_grad()
def spread_of(model: nn.Module, *, gradients: bool) -> dict[str, dict[str, Any]]:
    """Name of a parameter -> where its numbers lie, and how many lie where; waits for the device."""
    found: dict[str, dict[str, Any]] = {}
    for name, parameter in unwrap(model).named_parameters():
        tensor = parameter.grad if gradients else parameter
        if tensor is not None and tensor.numel() and len(found) < _MOST_PARAMETERS:
            found[name] = _spread(tensor.detach())
    return found


def _spread(tensor: Tensor) -> dict[str, Any]:
    if tensor.is_sparse:
        tensor = tensor.coalesce().values()
    flat = tensor.reshape(-1)
    # Every so many-th: the same ones each time, and no random number is drawn.
    numbers = flat[:: max(1, -(-flat.numel() // _MOST_NUMBERS))].float()
    finite = numbers[torch.isfinite(numbers)]
    entry: dict[str, Any] = {"size": tensor.numel(), "looked_at": numbers.numel()}
    entry["nonfinite"] = numbers.numel() - finite.numel()
    if not finite.numel():
        return {**entry, "counts": []}
    low, high = (float(value) for value in torch.aminmax(finite))
    # A weight of one value everywhere gets a bin of its own width.
    edge_low, edge_high = (low, high) if high > low else (low - 0.5, high + 0.5)
    counts = torch.histc(finite.cpu(), bins=_BINS, min=edge_low, max=edge_high).long().tolist()
    spread, mean = torch.std_mean(finite, correction=0)
    return {**entry, "mean": float(mean), "std": float(spread), "low": edge_low, "high": edge_high, "counts": counts}
