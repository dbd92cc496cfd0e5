"""Names of logged values as ACCMT has them, for trackers and ``metrics.jsonl``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from trainwright.compat.accmt.settings import Settings
from trainwright.compat.accmt.status import is_speed, split_name
from trainwright.core.callback import TrainerCallback
from trainwright.core.state import TrainerControl, TrainerState
from trainwright.trackers.naming import Exact


class InTheirWords(TrainerCallback):
    """Renames what is logged just before it is written: ``loss`` to ``train_loss``, ``eval_loss`` to ``val_loss``.

    Values of one of several validation sets end in its name: ``val_loss__new``.
    """

    listens_last = True

    def __init__(self, settings: Settings, sets: list[str] | None) -> None:
        self._train_loss, self._val_loss = settings.train_loss_metric_name, settings.val_loss_metric_name
        self._after_evaluation = settings.report_loss_after_eval
        self._sets = sets

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        logs = kwargs["logs"]
        if "train_runtime" in logs and "train_loss" in logs:
            # The summary's mean over the whole run is not one more value of the curve.
            logs["mean_train_loss"] = logs.pop("train_loss")
        _join_memory(logs)
        renamed = {Exact(self.name_of(name)): value for name, value in logs.items() if self._is_reported(name)}
        # In place: whoever comes next is given the same dict; a copy is in the history.
        logs.clear()
        logs.update(renamed)

    def _is_reported(self, name: str) -> bool:
        parts = split_name(name, self._sets)
        return self._after_evaluation or parts is None or parts[1] != "loss"

    def name_of(self, name: str) -> str:
        if name == "loss":
            return self._train_loss
        parts = split_name(name, self._sets)
        if parts is None or is_speed(parts[1]):
            return name
        metric = self._val_loss if parts[1] == "loss" else parts[1]
        return metric if self._sets is None else f"{metric}__{parts[0]}"

    def results(self, metrics: dict[str, float]) -> dict[str, float]:
        """What an evaluation found, without how fast it was."""
        shown = {name: split_name(name, self._sets) for name in metrics}
        return {
            self.name_of(name): metrics[name]
            for name, parts in shown.items()
            if parts is not None and not is_speed(parts[1])
        }


def _join_memory(logs: dict[str, Any]) -> None:
    """Memory as ACCMT names it: of a GPU, what is allocated and what is held back together."""
    for name in [name for name in logs if name.startswith("gpu_") and name.endswith("_memory_gb")]:
        number = name.removeprefix("gpu_").removesuffix("_memory_gb")
        logs[f"GPU_{number}"] = logs.pop(name) + logs.pop(f"gpu_{number}_reserved_gb", 0.0)
    if "cpu_memory_gb" in logs:
        logs["CPU_PROCESS_0"] = logs.pop("cpu_memory_gb")


class ValidationBatches(TrainerCallback):
    """``report_loss_after_eval=False``: validation losses batch by batch, ``log_every`` of them in a mean."""

    def __init__(self, settings: Settings) -> None:
        self._name, self._window = settings.val_loss_metric_name, max(settings.log_every, 1)
        self._losses: list[Tensor] = []
        #: Logs values now.
        self.log: Callable[[dict[str, float]], None] = lambda values: None

    def add(self, loss: Tensor, count: int) -> None:
        self._losses.append(loss)
        if len(self._losses) >= self._window:
            self._say()

    def on_evaluate(self, args: object, state: TrainerState, control: TrainerControl, **_: object) -> None:
        if self._losses:
            self._say()

    def _say(self) -> None:
        mean = sum(float(loss) for loss in self._losses) / len(self._losses)
        self._losses = []
        self.log({self._name: mean})
