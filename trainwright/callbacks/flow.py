"""The default flow: when to log, evaluate, save and stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from trainwright.config.arguments import TrainingArguments
from trainwright.config.cadence import NEVER, Every, RunProgress
from trainwright.config.fields import ours
from trainwright.config.intervals import TOPICS, Topic, cadence, refuse_contradiction
from trainwright.core.callback import TrainerCallback
from trainwright.core.log_history import EvaluationCount
from trainwright.core.state import TrainerControl, TrainerState


class DefaultFlowCallback(TrainerCallback):
    """Switches logging, evaluation and saving on when the arguments say that they are due.

    Callbacks may change ``state.logging_steps`` (``eval_steps``, ``save_steps``) or a strategy while training runs.
    """

    _leaves_model_alone = True

    def __init__(self) -> None:
        self._log, self._evaluate, self._save = (_Rhythm(topic) for topic in TOPICS)
        self._strategies: tuple[Any, ...] = ()
        #: Seconds; of several processes all must read the same, or one would save while another goes on.
        self.clock: Callable[[], float] = seconds
        self._began = self.clock()
        #: Evaluations in the log.
        self.evaluations = EvaluationCount()

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        for topic in TOPICS:
            refuse_contradiction(args, topic)
        self._began = self.clock()
        self._read(args, state)
        begin = self._moment(state)
        for rhythm in (self._log, self._evaluate, self._save):
            rhythm.last = begin
            if rhythm.taken_over:
                interval = rhythm.every.step_interval(state.max_steps, state.num_train_epochs)
                setattr(state, rhythm.topic.steps, interval)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        step = state.global_step
        if self._strategies != (args.logging_strategy, args.eval_strategy, args.save_strategy):
            self._read(args, state)
        # The usual case, a number of steps, is decided here: this runs on every step.
        log, evaluate, save = self._log, self._evaluate, self._save
        if (step == 1 and args.logging_first_step) or (
            step % state.logging_steps == 0 if log.by_steps else log.is_on and self._is_due(log, state)
        ):
            control.should_log = True
        if step % state.eval_steps == 0 if evaluate.by_steps else evaluate.is_on and self._is_due(evaluate, state):
            control.should_evaluate |= _delay_is_over(args, state)
        if (
            state.save_steps > 0 and step % state.save_steps == 0
            if save.by_steps
            else save.is_on and self._is_due(save, state)
        ):
            control.should_save = True
        if step >= state.max_steps:
            self._last_step(args, state, control)

    def _last_step(self, args: TrainingArguments, state: TrainerState, control: TrainerControl) -> None:
        control.should_training_stop = True
        # What each epoch's end makes due is left to the end of this one, which is about to come.
        is_wanted = self._evaluate.every and not self._evaluate.every.ends_each_epoch() and ours(args).eval_on_end
        if is_wanted and _delay_is_over(args, state):
            control.should_evaluate = True
            self._evaluate.last = self._moment(state)
        if self._save.every and not self._save.every.ends_each_epoch() and not self._saves_after_last_evaluation():
            control.should_save = True
            self._save.last = self._moment(state)

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        if self._strategies != (args.logging_strategy, args.eval_strategy, args.save_strategy):
            self._read(args, state)
        if self._is_due(self._log, state, epoch_end=True):
            control.should_log = True
        if self._is_due(self._evaluate, state, epoch_end=True) and _delay_is_over(args, state):
            control.should_evaluate = True
        is_last = state.global_step >= state.max_steps and self._saves_after_last_evaluation()
        if self._is_due(self._save, state, epoch_end=True) or is_last:
            control.should_save = True

    def _saves_after_last_evaluation(self) -> bool:
        """Whether the last checkpoint waits for the evaluation at the end of the last epoch, which may ask for it."""
        return self._save.every.counts("eval") and self._evaluate.every.ends_each_epoch()

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        # Evaluations are logged too, and do not put off what training has to report.
        if self._log.every.counts("time") and "loss" in (kwargs.get("logs") or {}):
            self._log.last = self._moment(state)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        if self._evaluate.every.counts("time"):
            self._evaluate.last = self._moment(state)
        if self._save.every.counts("eval") and self._is_due(self._save, state):
            control.should_save = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        # Whoever asked for it: minutes count from the last checkpoint there is.
        if self._save.every.counts("time"):
            self._save.last = self._moment(state)

    def _read(self, args: TrainingArguments, state: TrainerState) -> None:
        """Take up what the arguments say."""
        for rhythm in (self._log, self._evaluate, self._save):
            rhythm.read(args)
        self._strategies = (args.logging_strategy, args.eval_strategy, args.save_strategy)

    def _is_due(self, rhythm: _Rhythm, state: TrainerState, *, epoch_end: bool = False) -> bool:
        if not rhythm.every or rhythm.by_steps:
            return False
        now = self._moment(state, epoch_end)
        due = rhythm.every.due(now, rhythm.last)
        if due:
            rhythm.last = now
        return due

    def _moment(self, state: TrainerState, epoch_end: bool = False) -> RunProgress:
        return RunProgress(
            step=state.global_step,
            epoch=state.epoch or 0.0,
            evaluations=self.evaluations.read(state.log_history) if self._save.every.counts("eval") else 0,
            seconds=self.clock() - self._began,
            max_steps=state.max_steps,
            epoch_end=epoch_end,
        )


def seconds() -> float:
    """This process's own clock."""
    return time.monotonic()


class _Rhythm:
    """When one of the three is due, and when it last was."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.every: Every = NEVER
        #: Whether it is ever due; ``bool(every)``, which is asked in every step, would be a call.
        self.is_on = False
        #: A number of steps and nothing else: the state holds it.
        self.by_steps = False
        #: Given by our own argument, not by a strategy.
        self.taken_over = False
        self.last = RunProgress()

    def read(self, args: TrainingArguments) -> None:
        self.every = cadence(args, self.topic)
        self.is_on = bool(self.every)
        self.by_steps = self.every.only_steps()
        self.taken_over = getattr(ours(args), self.topic.every) is not None


def _delay_is_over(args: TrainingArguments, state: TrainerState) -> bool:
    """``eval_delay`` counts what the strategy counts."""
    return args.eval_delay <= (state.epoch if args.eval_strategy == "epoch" else state.global_step)
