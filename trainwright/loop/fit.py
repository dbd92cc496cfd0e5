"""Epochs and steps. ``core/callback.py`` shows the same order as a page of pseudocode."""

from __future__ import annotations

import logging

from trainwright.core.errors import MissingMetricError, StopRequested
from trainwright.core.run import Done, Outcome, Phase, Rewind, Run, Stopped
from trainwright.loop.step import take_step

logger = logging.getLogger("trainwright")


def fit(run: Run) -> Outcome:
    """Train until ``max_steps``, the last epoch, or until somebody asks to stop; returns how it ended."""
    try:
        begin(run)
        while isinstance(outcome := run_epochs(run) or end(run), Rewind):
            run.actions.rewind(run, outcome)
        return outcome
    except StopRequested as stop:
        # Out of an evaluation, or a wait for data, no other way leads.
        return Stopped(stop.reason, stop.by_keyboard)


def begin(run: Run) -> None:
    """What comes before the first step of this process."""
    run.setup.control.new_training()
    run.setup.fire("on_train_begin")
    if run.setup.args.eval_on_start and run.setup.state.global_step == 0:
        # A look at the untrained model: a metric-driven schedule must not learn from it.
        evaluate_now(run, inform_schedule=False)


def run_epochs(run: Run) -> Stopped | Rewind | None:
    """All epochs that are left; None when they are done, or a callback has ended them."""
    outcome = finish_interrupted(run)
    while outcome is None and not finished(run) and run.feed.epoch < run.setup.state.num_train_epochs:
        outcome = fit_epoch(run)
        run.feed.epoch += outcome is None
    return outcome


def finish_interrupted(run: Run) -> Stopped | Rewind | None:
    """Do first what an interrupted run had still to do where it was saved."""
    unfinished, control, outcome = run.unfinished, run.setup.control, None
    if unfinished.stop:
        control.should_training_stop = True
    if unfinished.evaluation:
        control.should_evaluate = True
        outcome = obey(run)
    if outcome is None and unfinished.epoch_end and finished(run):
        control.should_training_stop = True
        ready_to_train(run)
        run.actions.take_up_state(run)
        outcome = end_epoch(run)
    return outcome


def end(run: Run) -> Done | Rewind:
    """What comes after the last step."""
    rewind = run.actions.settle(run)
    if rewind is not None:
        return rewind
    run.actions.finish(run)
    run.setup.fire("on_train_end")
    return Done()


def fit_epoch(run: Run) -> Stopped | Rewind | None:
    """One pass over the data, or what is left of it after a resume."""
    engine, state, control, feed = run.setup.engine, run.setup.state, run.setup.control, run.feed
    control.new_epoch()
    run.setup.fire("on_epoch_begin")
    engine.train_mode()
    engine.mark_boundary()
    run.phase = Phase.FETCH
    steps = 0
    for batches in feed.groups():
        steps += 1
        if engine.appears_evaluated:
            # A loader that gives more than its length.
            engine.train_mode()
        run.phase = Phase.STEP
        control.new_step()
        run.setup.fire("on_step_begin")
        take_step(run, batches)
        state.global_step += 1
        state.epoch = feed.epoch_progress()
        run.phase = Phase.BETWEEN
        run.setup.fire("on_step_end")
        outcome = obey(run)
        if outcome is not None:
            return outcome
        if finished(run) or control.should_epoch_stop:
            break
        if engine.appears_evaluated and not feed.on_last_group():
            # Before data is fetched: a collator may call the model.
            engine.train_mode()
        engine.mark_boundary()
        run.phase = Phase.FETCH
    run.phase = Phase.BETWEEN
    if steps == 0 and feed.consumed == 0:
        logger.warning("The training data gave no batch in epoch %d: training stops here.", feed.epoch)
        control.should_training_stop = True
    return end_epoch(run)


def end_epoch(run: Run) -> Stopped | Rewind | None:
    """What comes after an epoch's last step, or after the step at which the run stops."""
    if not run.setup.control.should_training_stop or run.feed.on_last_group():
        run.feed.close_epoch()
    run.feed.announce_end()
    run.setup.fire("on_epoch_end")
    return obey(run)


def finished(run: Run) -> bool:
    """Whether nothing is left to do."""
    return run.setup.control.should_training_stop or run.setup.state.global_step >= run.setup.state.max_steps


def obey(run: Run) -> Stopped | Rewind | None:
    """Do what callbacks switched on: log, evaluate, save; an outcome where the loop is to be left here."""
    control, state = run.setup.control, run.setup.state
    if control.should_log and state.global_step > run.last_logged_step:
        control.should_log = False
        run.last_logged_step = state.global_step
        rewind = run.actions.log(run, run.setup.engine.read_log())
        if rewind is not None:
            return rewind
    outcome = run.actions.attend(run)
    if outcome is not None:
        return outcome
    if control.should_evaluate:
        evaluate_now(run, inform_schedule=True)
    if control.should_save:
        control.should_save = False
        run.actions.save(run)
        run.setup.fire("on_save")
        ready_to_train(run)
        return run.actions.attend(run)
    return None


def evaluate_now(run: Run, *, inform_schedule: bool) -> None:
    """Evaluate, note whether the model is the best so far, and go back to training."""
    run.setup.engine.mark_boundary()
    run.phase = Phase.EVALUATION
    run.tells_schedule = inform_schedule
    metrics = run.actions.evaluate(run)
    run.phase = Phase.BETWEEN
    run.setup.control.should_evaluate = False
    ready_to_train(run)
    is_best = run.actions.note_best(run, metrics)
    if run.setup.args.save_strategy == "best":
        run.setup.control.should_save = is_best
    elif is_best and (run.setup.args.load_best_model_at_end or run.setup.args.save_best):
        # Whatever the saving interval is: the best model can be had at the end only if it was saved.
        run.setup.control.should_save = True
    if run.tells_schedule and run.setup.args.metric_for_best_model is not None:
        run.setup.engine.plateau_step(best_metric(run, metrics))


def ready_to_train(run: Run) -> None:
    """Undo what an evaluation or a save did; a model that appears evaluated goes on so until the next step."""
    engine = run.setup.engine
    appears_evaluated = engine.appears_evaluated
    engine.train_mode()
    if appears_evaluated:
        engine.appear_evaluated()


def best_metric_key(args: object) -> str:
    """``metric_for_best_model`` with the ``eval_`` it may leave out."""
    name = str(getattr(args, "metric_for_best_model", None))
    return name if name.startswith("eval_") else f"eval_{name}"


def best_metric(run: Run, metrics: dict[str, float]) -> float:
    """The value of ``metric_for_best_model``."""
    key = best_metric_key(run.setup.args)
    if key not in metrics:
        raise MissingMetricError(key, list(metrics))
    return metrics[key]


def note_best(run: Run, metrics: dict[str, float]) -> bool:
    """Remember a new best metric in the state; True if it is one."""
    if run.setup.args.metric_for_best_model is None or (run.setup.state.epoch or 0.0) < run.best_after:
        return False
    value = best_metric(run, metrics)
    best = run.setup.state.best_metric
    better = best is None or (value > best if run.setup.args.greater_is_better else value < best)
    if better:
        run.setup.state.best_metric = value
        run.setup.state.best_global_step = run.setup.state.global_step
    return better
