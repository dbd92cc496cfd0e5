"""``Trainer.train``: what comes before the loop, the loop, and what becomes of its outcome."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainwright.config.limits import train_limit
from trainwright.core.errors import StopRequested
from trainwright.core.finished import clear_finished
from trainwright.core.marker import clear_marker
from trainwright.core.module import StepPlan
from trainwright.core.results import TrainOutput
from trainwright.core.run import Stopped
from trainwright.core.stops import StopRequests
from trainwright.data.asked_order import data_seed
from trainwright.data.first_batches import first_of_training
from trainwright.data.loader import close_loader
from trainwright.data.rebuild import resumable_loader, shared_training
from trainwright.loop.fit import fit
from trainwright.training.acceleration import accelerate
from trainwright.training.actions import TrainingActions
from trainwright.training.build import fill
from trainwright.training.checks import refuse_unknown_best_metric, warn_if_inexact
from trainwright.training.choose_checkpoint import agreed_checkpoint
from trainwright.training.construction import refuse_missing_data, warn_of_no_samples
from trainwright.training.data import refuse_to_limit, settle_workers
from trainwright.training.dev_run import say_it_was_a_try, starts_anew
from trainwright.training.evaluation_details import forget_later_evaluations
from trainwright.training.finish import announce, note_the_end, refuse_to_look_saved
from trainwright.training.first_step.watch import FirstStep
from trainwright.training.guards import dismiss_guards, set_guards
from trainwright.training.loss_groups import prepare_loss_groups
from trainwright.training.losses import prepare_loss, refuse_pieces
from trainwright.training.memory import look_for_what_fits
from trainwright.training.modules import attach_module, use_own_eval_data
from trainwright.training.performance import begin_steps, write_lines
from trainwright.training.phases import refuse_other_phases
from trainwright.training.plan import plan_by
from trainwright.training.preparation import prepared_model
from trainwright.training.recipe import finish_recipe, prepare_recipe, restore_structure
from trainwright.training.run import TrainingRun
from trainwright.training.save import open_saving
from trainwright.training.save_model import run_folder
from trainwright.training.setup import Setup, data_rank, require_model
from trainwright.training.start import adopt_model, create_training_tools, seed_everything, spread_model
from trainwright.training.stop import mark_interrupted, note_failure, pass_the_deadline, rescue, stop_early

logger = logging.getLogger("trainwright")


def new_run(setup: Setup, trial: object, ignored_outputs: list[str] | None) -> TrainingRun:
    """A run that has not begun: its own events, its own writer."""
    if setup.run is not None:
        raise ValueError("This Trainer is training: train() in a callback of its own needs another Trainer.")
    require_model(setup)
    setup.memory.start("train")
    seed_everything(setup)
    if setup.model_init is not None:
        adopt_model(setup, setup.hooks().call_model_init(trial))
        setup.optimizer = setup.lr_scheduler = None
    attach_module(setup)
    if setup.args.eval_strategy != "no":
        use_own_eval_data(setup)
    refuse_missing_data(setup)
    warn_of_no_samples(setup)
    setup.backend.start(setup.given_args)
    run = open_saving(setup, TrainingActions())
    run.ignored_outputs = ignored_outputs
    return run


@contextmanager
def locked(run: TrainingRun) -> Iterator[None]:
    """Keep the run directory to this run within it; then others may train there."""
    try:
        yield
    finally:
        if run.lock is not None:
            run.lock.release()


def train(run: TrainingRun, resume_from_checkpoint: str | Path | bool | None) -> TrainOutput:
    """Take ``run`` from its beginning, or from a checkpoint, to its end."""
    try:
        return _train(run, resume_from_checkpoint)
    except KeyboardInterrupt:
        if run.stops is None:
            # Before the loop; from then on it is answered there.
            mark_interrupted(run)
        raise


def _train(run: TrainingRun, resume_from_checkpoint: str | Path | bool | None) -> TrainOutput:
    setup = run.setup
    checkpoint = agreed_checkpoint(run, starts_anew(setup, resume_from_checkpoint))
    settle_workers(setup)
    loader = resumable_loader(setup.hooks().get_train_dataloader(), data_seed(setup.args))
    refuse_to_limit(setup, loader)
    loader = shared_training(loader, data_rank(setup), setup.args.gradient_accumulation_steps)
    run.loader = first_of_training(loader, train_limit(setup.args))
    run.plan = plan = plan_by(setup.hooks(), setup.given_args, run.loader)
    prepare_loss(setup, anew=True)
    refuse_pieces(setup)
    refuse_unknown_best_metric(setup)
    prepare_recipe(setup)
    prepare_loss_groups(setup)
    if checkpoint is not None:
        restore_structure(setup, checkpoint)
        refuse_other_phases(setup, checkpoint)
    with run.deaths, prepared_model(setup) as model:
        spread_model(setup, model, checkpoint)
        epochs = min(plan.epochs, math.ceil(plan.max_steps / plan.steps_per_epoch))
        setup.step_plan = StepPlan(plan.max_steps, plan.steps_per_epoch, epochs)
        create_training_tools(run, plan.max_steps)
        if checkpoint is not None and setup.engine.weights.layout.gathered_to_save:
            # Weights were cast on their way to where they are; here they go as they were saved.
            setup.hooks()._load_from_checkpoint(str(checkpoint))
        setup.run, setup.is_in_train = run, True
        try:
            _train_to_the_end(run, checkpoint)
            finish_recipe(run)
            refuse_to_look_saved(run)
            note_the_end(run)
            say_it_was_a_try(setup)
        except BaseException as error:
            _tell_of_failure(run, error)
            raise
        finally:
            _close(run)
    output = TrainOutput(setup.state.global_step, run.summary["train_loss"], run.summary)
    output.stopped_early, output.first_step = run.stopped_early, run.first_step
    return output


def _tell_of_failure(run: TrainingRun, error: BaseException) -> None:
    setup = run.setup
    setup.memory.stop("train")
    note_failure(run, error)
    try:
        setup.fire("on_train_failed", error=error)
    except Exception as second:
        # The first one is what the caller has to see.
        logger.error("A callback failed on_train_failed: %s: %s", type(second).__name__, second)


def _close(run: TrainingRun) -> None:
    setup = run.setup
    write_lines(run)
    setup.run, setup.is_in_train, setup.portion = None, False, None
    # It holds on to the Trainer, whom nobody else holds then.
    setup.engine.own_generators.watch(None)
    setup.engine.keep_mode()
    dismiss_guards(run)
    if run.acceleration is not None:
        run.acceleration.close()
        # It knows the engine, which knows the run.
        run.acceleration = None
    setup.engine.show_weights()
    run.saver.wait()
    run.capture.forget()
    close_loader(run.loader)
    if setup.checkpointer is not None:
        setup.checkpointer.close()


def _train_to_the_end(run: TrainingRun, checkpoint: Path | None) -> None:
    setup = run.setup
    if setup.args.should_save:
        clear_marker(run_folder(setup))
    set_guards(run)
    fill(run, checkpoint)
    if setup.args.should_save and not run.is_over:
        clear_finished(run_folder(setup))
        forget_later_evaluations(run_folder(setup), setup.state.global_step)
    warn_if_inexact(run, run.loader)
    watched: FirstStep | None = None
    with _stop_requests(run) as run.stops:
        try:
            accelerate(run)
            look_for_what_fits(run)
            announce(run)
            begin_steps(run)
            watched = FirstStep(run)
            outcome = fit(run)
            watched.end()
        except StopRequested as stop:
            # Before the loop.
            outcome = Stopped(stop.reason, stop.by_keyboard)
        except KeyboardInterrupt as error:
            # Not by our handler, which waits for the step to end: raised by somebody's code, or signals are not
            # handled. Whoever has pressed the keys three times does not want to wait for a save.
            if not run.stops.is_pressed:
                rescue(run, error)
            mark_interrupted(run)
            raise
        except Exception as error:
            if not run.stops.explains(error):
                rescue(run, error)
                if watched is not None:
                    watched.explain(error)
                raise
            outcome = Stopped(run.stops.reason)
        if isinstance(outcome, Stopped):
            stop_early(run, outcome)


def _stop_requests(run: TrainingRun) -> StopRequests:
    setup = run.setup
    hours = setup.args.max_hours
    not_alone = setup.backend.world_size > 1 or setup.engine.weights.layout.gathered_to_save
    return StopRequests(
        handle_signals=setup.args.handle_signals,
        max_seconds=None if hours is None else hours * 3600,
        deadline=setup.args.preemption_deadline,
        # Alone, a process does not know the random numbers of the others.
        on_deadline=None if not_alone else lambda: pass_the_deadline(run),
        instead_of=setup.answering,
    )
