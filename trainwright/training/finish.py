"""End a training: its summary, its best model, and what could not be saved."""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from pathlib import Path

from torch import Tensor

from trainwright.checkpoint.directory import checkpoint_path
from trainwright.checkpoint.durable import discard
from trainwright.core.errors import NotSavedError
from trainwright.core.finished import Finished, mark_finished
from trainwright.core.results import speed_metrics
from trainwright.training.checkpoint_texts import Snapshot
from trainwright.training.performance import measure
from trainwright.training.random_state import random_now
from trainwright.training.run import TrainingRun
from trainwright.training.save import checkpoint_home, hand_over_the_end, save_has_failed, write_snapshot
from trainwright.training.save_model import run_folder, takes_all_to_save
from trainwright.training.setup import Setup

logger = logging.getLogger("trainwright")

#: Pauses between attempts to save at the end of training what could not be saved before.
LAST_ATTEMPTS = (0.0, 5.0, 15.0)


def announce(run: TrainingRun) -> None:
    """Say how long the training will be, as transformers does, where ``log_level`` asks for that much."""
    setup, plan, args = run.setup, run.plan, run.setup.args
    if args.log_level not in ("info", "debug") or not args.should_log:
        return
    lines = {
        "Num examples": plan.examples,
        "Num Epochs": setup.state.num_train_epochs,
        "Num update steps per epoch": plan.steps_per_epoch,
        "Instantaneous batch size per device": args.per_device_train_batch_size,
        "Total train batch size (w. parallel, distributed & accumulation)": (
            setup.hooks().get_total_train_batch_size(setup.given_args)
        ),
        "Gradient Accumulation steps": args.gradient_accumulation_steps,
        "Total optimization steps": setup.state.max_steps,
        "Number of trainable parameters": setup.hooks().get_num_trainable_parameters(),
    }
    logger.info("***** Running training *****")
    for name, number in lines.items():
        logger.info("  %s = %s", name, f"{number:,}")


def finish(run: TrainingRun) -> None:
    """The run's summary, and the best model if it was asked for; before ``on_train_end``."""
    setup = run.setup
    say_why_it_stopped(run)
    steps = setup.state.global_step - run.first_step
    share = steps / max(setup.state.max_steps, 1)
    summary: dict[str, float] = speed_metrics(
        "train", run.start_time, num_samples=run.plan.samples * share, num_steps=steps
    )
    setup.hooks().store_flos()
    summary["total_flos"] = setup.state.total_flos
    summary["train_loss"] = setup.engine.meter.overall()
    summary.update(setup.memory.stop("train"))
    run.summary = summary
    measure(run)
    setup.hooks().log(summary)
    make_up_for_failed_save(run)
    setup.engine.rest_weights()
    if setup.args.load_best_model_at_end:
        setup.hooks()._load_best_model()


def say_why_it_stopped(run: TrainingRun) -> None:
    """Note who ended the training before its last step, and why, as far as that can be known."""
    setup = run.setup
    state, callbacks = setup.state, setup.callbacks
    if not setup.control.should_training_stop or state.global_step >= state.max_steps or run.is_over:
        return
    # A resumed run that had been about to stop was not asked again.
    by = callbacks.stopped_by or next((one for one in callbacks.everyone if getattr(one, "stop_reason", None)), None)
    reason = getattr(by, "stop_reason", None)
    if by is None and run.feed.consumed == 0:
        reason = "the training data gave no batch"
    elif not isinstance(reason, str):
        reason = "something" if by is None else type(by).__name__
        reason += " set control.should_training_stop"
    run.stopped_early, run.stopped_by = reason, None if by is None else type(by).__name__
    run.events.record(
        "stopped_early",
        f"Training ended early, at step {state.global_step} of {state.max_steps}: {reason}.",
        step=state.global_step,
        level=logging.INFO,
        reason=reason,
        callback=None if by is None else type(by).__name__,
    )


def make_up_for_failed_save(run: TrainingRun) -> None:
    """At the end of training: try again what the disk refused, and note what is not saved."""
    setup = run.setup
    run.saver.wait()
    if not save_has_failed(run):
        return
    for pause in LAST_ATTEMPTS:
        time.sleep(pause)
        write_snapshot(run, Snapshot(random_now(setup), run.feed.position()), background=False)
        if not save_has_failed(run):
            run.events.record("saved_late", "The last checkpoint could be saved after all.", level=logging.INFO)
            return
    name = checkpoint_path(checkpoint_home(setup), setup.state.global_step).name
    run.events.unsaved[name] = run.saver.failure or "another process could not write its part"


def refuse_to_look_saved(run: TrainingRun) -> None:
    """After everything else: a training that could not save must not end like one that did."""
    setup = run.setup
    if setup.checkpointer is not None:
        hand_over_the_end(run)
    if run.events.unsaved:
        raise not_saved(run)


def note_the_end(run: TrainingRun) -> None:
    """Say in the run directory that the training is over."""
    setup = run.setup
    folder = run_folder(setup)
    if setup.args.should_save and not run.is_over and folder.is_dir():
        end = Finished(setup.state.global_step, setup.state.max_steps, run.stopped_early, run.stopped_by)
        mark_finished(folder, end)


def not_saved(run: TrainingRun, how: str = "came to its end") -> NotSavedError:
    """The error that says what is not on disk, after the weights were written elsewhere if that is possible."""
    setup = run.setup
    takes_all = takes_all_to_save(setup) or setup.engine.weights.layout.gathered_to_save
    instead = None if takes_all else save_elsewhere(setup)
    error = NotSavedError(run.events.unsaved, instead, how)
    run.events.record("lost", str(error), step=setup.state.global_step, level=logging.ERROR)
    return error


def save_elsewhere(setup: Setup) -> str | None:
    """The weights in the run directory or, where that takes nothing, in the system's place for temporary files."""
    needed = sum(tensor.nbytes for tensor in setup.model.state_dict().values() if isinstance(tensor, Tensor))
    for place in (str(run_folder(setup)), None):
        folder: Path | None = None
        try:
            folder = Path(tempfile.mkdtemp(prefix="rescued-model-", dir=place))
            if shutil.disk_usage(folder).free > 1.1 * needed:
                setup.hooks()._save(str(folder))
                return str(folder)
        except Exception as error:
            logger.error("The model could not be written elsewhere either: %s.", error)
        if folder is not None:
            discard(folder)
    return None
