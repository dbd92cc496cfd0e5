"""What the loop asks for: each of its actions, on a training of torch's."""

from __future__ import annotations

from typing import Any

from trainwright.core.dtensors import whole
from trainwright.core.run import Rewind, Stopped
from trainwright.training.finish import finish
from trainwright.training.loss_groups import add_group_losses
from trainwright.training.memory import micro_batch_size, step_was_redone
from trainwright.training.one_writer import leave_if_taken_over, may_write
from trainwright.training.performance import measure
from trainwright.training.random_state import random_now, restore_random_state
from trainwright.training.resume import take_up_state
from trainwright.training.rewind import go_back
from trainwright.training.run import TrainingRun
from trainwright.training.save import noting_new_folder, say_own_save
from trainwright.training.stop import attend


class TrainingActions:
    """Implements ``core.run.Actions``; holds nothing."""

    def log(self, run: TrainingRun, logs: dict[str, float]) -> Rewind | None:
        hooks = run.setup.hooks()
        add_to_log(run, logs)
        hooks.store_flos()
        measure(run)
        if not may_write(run):
            # It ends at this boundary; whoever has the folder now keeps its own log.
            pass
        elif run.log_takes_time:
            hooks.log(logs, run.start_time)
        else:
            hooks.log(logs)
        return run.nonfinite.settle()

    def evaluate(self, run: TrainingRun) -> dict[str, float]:
        with run.spent.on("evaluate"):
            if run.resumed_random is None:
                return _evaluate(run)
            # The evaluation that the interrupted run still had to do: it begins and ends with that run's random
            # numbers.
            restore_random_state(run.setup, run.resumed_random)
            metrics = _evaluate(run)
            run.resumed_random = random_now(run.setup)
            return metrics

    def note_best(self, run: TrainingRun, metrics: dict[str, float]) -> bool:
        return run.setup.hooks()._determine_best_metric(metrics=metrics, trial=trial_of(run))

    def save(self, run: TrainingRun) -> None:
        run.setup.hooks().store_flos()
        run.default_save_ran = False
        with run.spent.on("save"), noting_new_folder(run):
            run.setup.hooks()._save_checkpoint(run.setup.model, None)
        if not run.default_save_ran:
            say_own_save(run)

    def attend(self, run: TrainingRun) -> Rewind | Stopped | None:
        return attend(run)

    def settle(self, run: TrainingRun) -> Rewind | None:
        # A run that was resumed with nothing left to do has not taken it up yet.
        take_up_state(run)
        return run.nonfinite.settle()

    def finish(self, run: TrainingRun) -> None:
        leave_if_taken_over(run)
        finish(run)

    def rewind(self, run: TrainingRun, rewind: Rewind) -> None:
        leave_if_taken_over(run)
        go_back(run, rewind)

    def take_up_state(self, run: TrainingRun) -> None:
        take_up_state(run)

    def cut(self, run: TrainingRun, batch: object, parts: int) -> list[Any]:
        return run.setup.hooks().split_batch(batch, parts)

    def redone(self, run: TrainingRun, rows: int, parts: int) -> None:
        step_was_redone(run, rows, parts)


def _evaluate(run: TrainingRun) -> dict[str, float]:
    # An override that does not call super() tells the schedule by itself, or does not.
    skip, run.tells_schedule = not run.tells_schedule, False
    # As transformers calls it: an override may have been written for the two.
    more = {"skip_scheduler": True} if skip else {}
    return run.setup.hooks()._evaluate(trial_of(run), run.ignored_outputs, **more)


def evaluate_in_training(run: TrainingRun, ignore_keys: list[str] | None, *, tells_schedule: bool) -> dict[str, float]:
    """Evaluate, and let a search and a schedule that follow a metric hear of it."""
    setup = run.setup
    metrics = setup.hooks().evaluate(ignore_keys=ignore_keys)
    if setup.search is not None:
        setup.search.report(metrics, setup.state.global_step)
    run.tells_schedule = tells_schedule
    return metrics


def trial_of(run: TrainingRun) -> Any:
    """The trial of a hyperparameter search that this training is."""
    return None if run.setup.search is None else run.setup.search.trial


def add_to_log(run: TrainingRun, logs: dict[str, float]) -> None:
    """What recipe and memory have to say, into a training log."""
    if run.site is not None:
        logs.update(run.site.logs)
        run.site.logs.clear()
        masks = [mask for m in run.setup.modifiers for mask in getattr(m, "masks", {}).values()]
        if masks:
            kept = sum(int(whole(mask.count_nonzero())) for mask in masks)
            logs["sparsity"] = 1 - kept / sum(mask.numel() for mask in masks)
    add_group_losses(run.setup, logs)
    if run.micro.is_on:
        logs["micro_batch"] = micro_batch_size(run)
