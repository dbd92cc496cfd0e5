"""Stop when the metric no longer improves."""

from __future__ import annotations

import logging
from typing import Any

from trainwright.config.arguments import TrainingArguments
from trainwright.config.intervals import EVALUATE, cadence
from trainwright.core.callback import TrainerCallback
from trainwright.core.state import ExportableState, TrainerControl, TrainerState

logger = logging.getLogger("trainwright")


class EarlyStoppingCallback(TrainerCallback, ExportableState):
    """Stop after ``early_stopping_patience`` evaluations in a row that do not beat the best by more than the threshold.

    >>> EarlyStoppingCallback(early_stopping_patience=3, early_stopping_threshold=0.01).early_stopping_patience
    3
    """

    _leaves_model_alone = True

    def __init__(self, early_stopping_patience: int = 1, early_stopping_threshold: float | None = 0.0) -> None:
        if early_stopping_patience < 0:
            raise ValueError(
                f"patience={early_stopping_patience} (early_stopping_patience) must not be negative: 3 stops after the "
                "third evaluation in a row that is no better."
            )
        self.early_stopping_patience = early_stopping_patience
        self.early_stopping_threshold = early_stopping_threshold
        self.early_stopping_patience_counter = 0
        #: Why it has stopped the training.
        self.stop_reason: str | None = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.early_stopping_patience_counter < self.early_stopping_patience:
            # Of an earlier training.
            self.stop_reason = None
        if args.metric_for_best_model is None:
            raise ValueError(
                "EarlyStoppingCallback needs metric_for_best_model, for instance metric_for_best_model='loss'."
            )
        if not cadence(args, EVALUATE):
            raise ValueError(
                "EarlyStoppingCallback needs evaluations: set eval_strategy to 'steps' or 'epoch', or evaluate_every."
            )
        if not args.load_best_model_at_end:
            logger.warning(
                "EarlyStoppingCallback without load_best_model_at_end=True: the last model is kept, not the best."
            )

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **_: object,
    ) -> None:
        name = args.metric_for_best_model
        assert name is not None
        value = (metrics or {}).get(name if name.startswith("eval_") else f"eval_{name}")
        if value is None:
            # One of several evaluation sets, and not the one that decides.
            return
        gain = 0.0 if state.best_metric is None else value - state.best_metric
        if not args.greater_is_better:
            gain = -gain
        if state.best_metric is None or gain > (self.early_stopping_threshold or 0.0):
            self.early_stopping_patience_counter = 0
        else:
            self.early_stopping_patience_counter += 1
        if self.early_stopping_patience_counter >= self.early_stopping_patience:
            control.should_training_stop = True
            self.stop_reason = self._reason(args, state)

    def _reason(self, args: TrainingArguments, state: TrainerState) -> str:
        name = str(args.metric_for_best_model).removeprefix("eval_")
        if self.early_stopping_threshold or state.best_global_step is None:
            # A gain below the threshold is a new best, and does not count here.
            times, least = self.early_stopping_patience_counter, self.early_stopping_threshold or 0.0
            times_in_words = "the last evaluation" if times == 1 else f"the last {times} evaluations"
            return f"eval_{name} has not improved by more than {least:g} in {times_in_words}"
        return f"eval_{name} has not improved since step {state.best_global_step}"

    def state(self) -> dict[str, Any]:
        stopped = {} if self.stop_reason is None else {"stop_reason": self.stop_reason}
        return {
            "args": {
                "early_stopping_patience": self.early_stopping_patience,
                "early_stopping_threshold": self.early_stopping_threshold,
            },
            "attributes": {"early_stopping_patience_counter": self.early_stopping_patience_counter, **stopped},
        }
