"""The default flow: when to log, evaluate, save and stop."""

from __future__ import annotations

from typing import Any

from trainwright.core.callback import TrainerCallback
from trainwright.core.state import TrainerControl, TrainerState


class DefaultFlowCallback(TrainerCallback):
    """Switches logging, evaluation and saving on when the strategies in the arguments say so."""

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        step = state.global_step
        is_first = step == 1 and args.logging_first_step
        if is_first or (args.logging_strategy == "steps" and step % state.logging_steps == 0):
            control.should_log = True
        if args.eval_strategy == "steps" and args.eval_delay <= step and step % state.eval_steps == 0:
            control.should_evaluate = True
        if args.save_strategy == "steps" and state.save_steps > 0 and step % state.save_steps == 0:
            control.should_save = True
        if step >= state.max_steps:
            self._last_step(args, state, control)

    def _last_step(self, args: Any, state: TrainerState, control: TrainerControl) -> None:
        control.should_training_stop = True
        if args.eval_strategy == "steps" and args.eval_delay <= state.global_step:
            control.should_evaluate = True
        if args.save_strategy == "steps":
            control.should_save = True

    def on_epoch_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if args.logging_strategy == "epoch":
            control.should_log = True
        if args.eval_strategy == "epoch" and args.eval_delay <= state.epoch:
            control.should_evaluate = True
        if args.save_strategy == "epoch":
            control.should_save = True
