"""Epochs and steps. ``core/callback.py`` shows the same order as a page of pseudocode."""

from __future__ import annotations

import logging

from trainwright.config.fields import ours
from trainwright.core.run import Phase, Run
from trainwright.core.state import TrainerState
from trainwright.loop.step import take_step

logger = logging.getLogger("trainwright")


def fit(run: Run) -> TrainerState:
    """Train until ``max_steps``, the last epoch, or until a callback asks to stop."""
    begin(run)
    run_epochs(run)
    end(run)
    return run.state


def begin(run: Run) -> None:
    """What comes before the first step of this process."""
    run.control.new_training()
    run.fire("on_train_begin")
    if run.args.eval_on_start and run.state.global_step == 0:
        # A look at the untrained model: a metric-driven schedule must not learn from it.
        evaluate_now(run, inform_schedule=False)


def run_epochs(run: Run) -> None:
    """All epochs that are left."""
    take_up(run)
    while not finished(run) and run.feed.epoch < run.state.num_train_epochs:
        fit_epoch(run)
        run.feed.epoch += 1


def take_up(run: Run) -> None:
    """Do first what an interrupted run had still to do where it was saved."""
    unfinished = run.unfinished
    if unfinished.stop:
        run.control.should_training_stop = True
    if unfinished.evaluation:
        run.control.should_evaluate = True
        obey(run)
    if unfinished.epoch_end and finished(run):
        run.control.should_training_stop = True
        run.engine.train_mode()
        run.take_up_state()
        end_epoch(run)


def end(run: Run) -> None:
    """What comes after the last step."""
    run.finish()
    run.fire("on_train_end")


def fit_epoch(run: Run) -> None:
    """One pass over the data, or what is left of it after a resume."""
    run.control.new_epoch()
    run.fire("on_epoch_begin")
    run.engine.train_mode()
    run.engine.mark_boundary()
    run.phase = Phase.FETCH
    steps = 0
    for batches in run.feed.groups():
        steps += 1
        run.phase = Phase.STEP
        run.control.new_step()
        run.fire("on_step_begin")
        take_step(run, batches)
        run.state.global_step += 1
        run.state.epoch = run.feed.epoch_progress()
        run.phase = Phase.BETWEEN
        run.fire("on_step_end")
        obey(run)
        if finished(run) or run.control.should_epoch_stop:
            break
        run.engine.mark_boundary()
        run.phase = Phase.FETCH
    run.phase = Phase.BETWEEN
    if steps == 0 and run.feed.consumed == 0:
        logger.warning("The training data gave no batch in epoch %d: training stops here.", run.feed.epoch)
        run.control.should_training_stop = True
    end_epoch(run)


def end_epoch(run: Run) -> None:
    """What comes after an epoch's last step, or after the step at which the run stops."""
    if not run.control.should_training_stop or run.feed.on_last_group():
        run.feed.close_epoch()
    run.feed.announce_end()
    run.fire("on_epoch_end")
    obey(run)


def finished(run: Run) -> bool:
    """Whether nothing is left to do."""
    return run.control.should_training_stop or run.state.global_step >= run.state.max_steps


def obey(run: Run) -> None:
    """Do what callbacks switched on: log, evaluate, save; and stop where somebody outside asked for it."""
    control = run.control
    if control.should_log and run.state.global_step > run.last_logged_step:
        control.should_log = False
        run.last_logged_step = run.state.global_step
        run.log(run.engine.read_log())
    run.attend()
    if control.should_evaluate:
        evaluate_now(run, inform_schedule=True)
    if control.should_save:
        control.should_save = False
        run.save()
        run.fire("on_save")
        run.engine.train_mode()
        run.attend()


def evaluate_now(run: Run, *, inform_schedule: bool) -> None:
    """Evaluate, note whether the model is the best so far, and go back to training."""
    run.engine.mark_boundary()
    run.phase = Phase.EVALUATION
    metrics = run.evaluate()
    run.phase = Phase.BETWEEN
    run.control.should_evaluate = False
    run.engine.train_mode()
    is_best = note_best(run, metrics)
    if run.args.save_strategy == "best":
        run.control.should_save = is_best
    elif is_best and (run.args.load_best_model_at_end or ours(run.args, "save_best")):
        # Whatever the saving interval is: the best model can be had at the end only if it was saved.
        run.control.should_save = True
    if inform_schedule and run.args.metric_for_best_model is not None:
        run.engine.plateau_step(metrics[best_metric_key(run.args)])


def best_metric_key(args: object) -> str:
    """``metric_for_best_model`` with the ``eval_`` it may leave out."""
    name = str(getattr(args, "metric_for_best_model", None))
    return name if name.startswith("eval_") else f"eval_{name}"


def note_best(run: Run, metrics: dict[str, float]) -> bool:
    """Remember a new best metric in the state; True if it is one."""
    if run.args.metric_for_best_model is None or (run.state.epoch or 0.0) < run.best_after:
        return False
    value = metrics[best_metric_key(run.args)]
    best = run.state.best_metric
    better = best is None or (value > best if run.args.greater_is_better else value < best)
    if better:
        run.state.best_metric = value
        run.state.best_global_step = run.state.global_step
    return better
