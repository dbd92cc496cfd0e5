"""Where a run stands, in the words of ACCMT: ``status_dict`` and the later ``TrainingState``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from trainwright.core.callback import TrainerCallback
from trainwright.core.state import ExportableState, TrainerControl, TrainerState
from trainwright.training.keep_best import TRAIN_LOSS, KeepBest

#: The name of the only validation set, where it has none.
ONLY_SET = "0"
_SPEED = ("runtime", "samples_per_second", "steps_per_second")


def first_status() -> dict[str, Any]:
    """A status before the first step; None for what is not known yet."""
    return {
        "best_train_loss": None,
        "best_valid_loss": None,
        "epoch": 0,
        "epoch_step": 0,
        "global_step": 0,
        "eval_global_step": 0,
        "evaluations_done": 0,
        "additional_metrics": {},
        "learning_rate": None,
        "train_loss": None,
        "validation_loss": None,
        "grad_norm": None,
    }


def split_name(name: str, sets: list[str] | None) -> tuple[str, str] | None:
    """(validation set, metric) of a native name such as ``eval_new_accuracy``; None for what no evaluation gives.

    >>> split_name("eval_loss", None), split_name("eval_new_loss", ["new"]), split_name("loss", None)
    (('0', 'loss'), ('new', 'loss'), None)
    """
    if not name.startswith("eval_"):
        return None
    rest = name.removeprefix("eval_")
    if sets is None:
        return (ONLY_SET, rest)
    # The longest name first: one may begin with another.
    for key in sorted(sets, key=len, reverse=True):
        if rest.startswith(f"{key}_"):
            return key, rest.removeprefix(f"{key}_")
    return None


def is_speed(metric: str) -> bool:
    """Whether a value says how fast an evaluation was."""
    return metric in _SPEED or "_mem_" in metric or metric == "epoch"


class StatusKeeper(TrainerCallback, ExportableState):
    """Keeps the status up to date; it is one dict for the whole run, so whoever holds it sees it change."""

    def __init__(self) -> None:
        self.status = first_status()
        #: Names of the validation sets; None where there is one without a name.
        self.sets: list[str] | None = None
        self.num_checkpoints = 0
        self.is_epoch_end = self.is_last_step = self.is_finished = False
        self.first_step = 0
        #: What the last evaluation of each validation set found, the loss as ``valid_loss``.
        self.by_set: dict[str, dict[str, float]] = {}
        #: Of several training data sets, the step at which each ends.
        self.stage_ends: list[int] = []
        self._losses_before: list[float] = [0.0, 0]
        self._validated: dict[str, float] = {}
        self._sets_done: set[str] = set()

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if state.global_step == 0:
            self.status.clear()
            self.status.update(first_status())
            self.num_checkpoints, self._losses_before, self.by_set = 0, [0.0, 0], {}
        self._take_up()
        self.first_step, self.is_finished = state.global_step, False
        self._validated, self._sets_done = {}, set()

    def on_epoch_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.is_epoch_end = False
        self.status["epoch"] = int(state.epoch or 0)
        if float(state.epoch or 0).is_integer():
            self.status["epoch_step"] = 0

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.status["global_step"] = state.global_step
        self.status["epoch_step"] += 1
        self.is_last_step = state.global_step >= state.max_steps

    def on_epoch_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.is_epoch_end = True
        if not control.should_evaluate and args.eval_strategy == "no":
            self._note_training(kwargs)

    def on_prediction_step(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.status["eval_global_step"] += 1

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        logs = kwargs["logs"]
        if "loss" in logs:
            self.status["train_loss"] = logs["loss"]
            self.status["learning_rate"] = logs.get("learning_rate")
            self.status["grad_norm"] = logs.get("grad_norm", self.status["grad_norm"])

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        named = {name: split_name(name, self.sets) for name in kwargs["metrics"]}
        for name, parts in named.items():
            if parts is not None and not is_speed(parts[1]):
                self._note(parts[0], parts[1], kwargs["metrics"][name])
        self._sets_done.update(parts[0] for parts in named.values() if parts is not None)
        if self.sets is not None and len(self._sets_done) < len(self.sets):
            return
        losses = list(self._validated.values())
        self._validated, self._sets_done = {}, set()
        self.status["evaluations_done"] += 1
        if losses:
            loss = sum(losses) / len(losses)
            self.status["validation_loss"] = loss
            self.status["best_valid_loss"] = _lower(self.status["best_valid_loss"], loss)
        self._note_training(kwargs)

    def _note(self, key: str, metric: str, value: float) -> None:
        self.by_set.setdefault(key, {})["valid_loss" if metric == "loss" else metric] = value
        if metric == "loss":
            self._validated[key] = value
            return
        found = self.status["additional_metrics"]
        if self.sets is not None:
            found = found.setdefault(key, {})
        found[metric] = value

    def _note_training(self, kwargs: dict[str, Any]) -> None:
        """The mean training loss since the last time."""
        if "losses" not in kwargs:
            return
        total, count = kwargs["losses"].sums()
        before, self._losses_before = self._losses_before, [total, count]
        if count > before[1]:
            mean = (total - before[0]) / (count - before[1])
            self.status["best_train_loss"] = _lower(self.status["best_train_loss"], mean)

    def with_judged(self, kept: Sequence[KeepBest]) -> dict[str, Any]:
        """The status as a model is saved that was just judged: by training losses, perhaps in the midst of an epoch."""
        for value in (one.best for one in kept if one.metrics == (TRAIN_LOSS,) and one.best is not None):
            self.status["best_train_loss"] = _lower(self.status["best_train_loss"], value)
        return dict(self.status)

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.num_checkpoints += 1

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.is_finished = True

    def state(self) -> dict[str, Any]:
        attributes: dict[str, Any] = {
            name: getattr(self, name) for name in ("num_checkpoints", "_losses_before", "by_set")
        }
        return {"args": {}, "attributes": {**attributes, "saved_status": self.status}}

    def _take_up(self) -> None:
        """After a resume: the status of the checkpoint, in the dict that everybody holds."""
        self.status.update(vars(self).pop("saved_status", {}))


def _lower(best: float | None, value: float) -> float | None:
    """The lower of both; what is not a number is never the best."""
    if not math.isfinite(value):
        return best
    return value if best is None or not math.isfinite(best) or value < best else best


class TrainingState:
    """The status in the names of later versions of ACCMT; attributes are read when asked for."""

    def __init__(self, keeper: StatusKeeper, native: Any, patience: Any) -> None:
        self._keeper, self._native, self._patience = keeper, native, patience

    @property
    def global_step(self) -> int:
        return self._keeper.status["global_step"]

    train_step = global_step

    @property
    def batch_iteration(self) -> int:
        return self._keeper.status["epoch_step"]

    @property
    def val_step(self) -> int:
        return self._keeper.status["eval_global_step"]

    @property
    def epoch(self) -> int:
        return self._keeper.status["epoch"]

    @property
    def evaluations_done(self) -> int:
        return self._keeper.status["evaluations_done"]

    @property
    def additional_metrics(self) -> dict[str, Any]:
        """By validation set (``"0"`` where there is one without a name) what was last measured, and ``valid_loss``."""
        return self._keeper.by_set

    @property
    def best_train_loss(self) -> float | None:
        return self._keeper.status["best_train_loss"]

    @property
    def is_end_of_epoch(self) -> bool:
        return self._keeper.is_epoch_end

    @property
    def is_last_training_batch(self) -> bool:
        return self._keeper.is_last_step

    @property
    def is_last_validation_batch(self) -> bool:
        """Whether the batch of the running validation step is the last; False where nobody knows how many there are."""
        adapter = self._native().adapter
        return adapter.validation_batch_number == adapter.validation_batches

    @property
    def train_dataloader_idx(self) -> int:
        """Which of several training data sets is trained on; how many there were, once the training has finished."""
        ends = self._keeper.stage_ends
        return sum(end <= self.global_step for end in ends) if ends else int(self.finished)

    @property
    def is_last_epoch(self) -> bool:
        state = self._native().state
        return self.epoch >= state.num_train_epochs - 1

    @property
    def finished(self) -> bool:
        return self._keeper.is_finished

    @property
    def num_checkpoints_made(self) -> int:
        return self._keeper.num_checkpoints

    @property
    def patience_left(self) -> dict[str, int]:
        """By way of saving, how many more evaluations may bring nothing better; -1 without ``patience``."""
        return self._patience()
