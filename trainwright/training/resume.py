"""Put a run where its checkpoint stands, and find out what was still to be done there."""

from __future__ import annotations

import dataclasses
import logging
import math
from functools import partial
from pathlib import Path
from typing import Any

from trainwright.checkpoint.interchange.continuing import LoaderDraws, draw_as_a_loader_does, place_after
from trainwright.config.effects import Effect
from trainwright.core.finished import read_finished
from trainwright.core.run import Unfinished
from trainwright.core.state import TrainerState
from trainwright.data.order import mixed_seed
from trainwright.data.position import steps_are_alike
from trainwright.engines.torch.randomness import random_state_from
from trainwright.training.changes import arguments_in, note_changes, say_changes
from trainwright.training.course import curve_now, take_new_course
from trainwright.training.log_keeping import restore_log
from trainwright.training.memory import take_up_cut
from trainwright.training.random_state import restore_random_state
from trainwright.training.restore import (
    found_again,
    restore_training_state,
    stored_state,
    take_up_training_weights,
)
from trainwright.training.run import TrainingRun
from trainwright.training.save import snapshot_key
from trainwright.training.save_model import run_folder

logger = logging.getLogger("trainwright")


def continue_from(run: TrainingRun, checkpoint: Path) -> Unfinished:
    """Put everything where the checkpoint left it; returns what was still to be done there."""
    setup, plan = run.setup, run.plan
    saved = stored_state(checkpoint)
    run.config_then = arguments_in(checkpoint)
    restore_log(run, checkpoint, saved)
    rest = restore_training_state(run, checkpoint, saved.max_steps)
    rest["data"] = place_of_import(run, rest["data"], saved)
    setup.state = saved
    saved.num_train_epochs, saved.train_batch_size = plan.epochs, setup.args.train_batch_size
    # The first process wrote it; what this one shows and writes depends on which one it is.
    saved.is_local_process_zero = setup.hooks().is_local_process_zero()
    saved.is_world_process_zero = setup.hooks().is_world_process_zero()
    saved.best_model_checkpoint = found_again(saved.best_model_checkpoint, checkpoint)
    run.resumed_random = rest["random"]
    if rest["random"] is None and rest["processes"] <= setup.backend.rank:
        # The run had fewer processes; this one has drawn nothing in it yet.
        seed = mixed_seed(setup.args.seed, saved.global_step, setup.backend.rank)
        run.resumed_random = random_state_from(seed)
    if rest["schedule_is_missing"] and setup.lr_scheduler is not None:
        # Its state could not be saved: as many steps bring it to about the same place.
        for _ in range(saved.global_step):
            setup.lr_scheduler.step()
    take_up_cut(run, rest["micro_batch"])
    run.acceleration_then = rest["acceleration"]
    run.feed.start_at(rest["data"], after_skip=partial(take_up_state, run), restart_epoch=setup.args.ignore_data_skip)
    saved.max_steps = steps_with_what_is_left(run, saved, rest["data"])
    take_new_course(run, run.so_far)
    note_changes(run, checkpoint, rest)
    setup.hooks()._load_callback_state()
    run.saved_snapshot, run.saver.last_saved = snapshot_key(run), checkpoint
    logger.info("Resuming from %s at step %d.", checkpoint, saved.global_step)
    if rest["was_ending"]:
        logger.warning("A callback had ended this run at step %d, so it does not go on.", saved.global_step)
    unfinished = left_to_do(run, saved, rest)
    run.is_over = was_finished(run)
    if not run.is_over and setup.args.should_log:
        say_changes(run)
        if saved.global_step > saved.max_steps:
            logger.warning(
                "The run is at step %d, and %d are asked for now: no step is left to take.",
                saved.global_step,
                saved.max_steps,
            )
    return dataclasses.replace(unfinished, stop=True) if run.is_over else unfinished


def was_finished(run: TrainingRun) -> bool:
    """Return True where the run came to its end at this very step, and nothing was changed that would lead it on."""
    setup = run.setup
    # By one: others may see another folder, or come too late to see the file.
    own = read_finished(run_folder(setup)) if setup.backend.rank == 0 else None
    end = setup.backend.gather(own)[0]
    if end is None or end.step != setup.state.global_step:
        return False
    has_steps_left = setup.state.global_step < setup.state.max_steps
    course = [change.what for change in run.changes if change.effect == Effect.COURSE]
    still_there = end.by in {type(callback).__name__ for callback in setup.callbacks.everyone}
    if has_steps_left and (course or not still_there or not run.resumes_by_itself):
        # Something leads it on: another setting, or somebody who asks for it after a callback had ended it.
        return False
    run.stopped_early = end.reason
    idle = f", so {', '.join(course)} did not act: raise num_train_epochs or max_steps to go on" if course else ""
    logger.warning("The run in %s is %s; nothing was trained%s.", run_folder(setup), end.words, idle)
    return True


def left_to_do(run: TrainingRun, saved: TrainerState, rest: dict[str, Any]) -> Unfinished:
    setup = run.setup
    switches = saved.stateful_callbacks.get("TrainerControl", {}).get("args", {})
    evaluation, save = bool(switches.get("should_evaluate")), bool(switches.get("should_save"))
    if evaluation or save:
        # These let the weights rest, in a run that is not interrupted too.
        run.weights_in_training = {}
    setup.control.should_save = evaluation and save
    is_at_the_end = saved.global_step == saved.max_steps and bool(rest["data"]["batches"])
    is_open = not rest["data"].get("end_was_announced", True)
    return Unfinished(
        evaluation=evaluation,
        epoch_end=is_open and (is_at_the_end or rest["was_ending"] or evaluation),
        stop=rest["was_ending"],
    )


def place_of_import(run: TrainingRun, data: dict[str, Any], saved: TrainerState) -> dict[str, Any]:
    """``data``, worked out from the present plan where an imported checkpoint knows only its number of steps."""
    setup = run.setup
    if run.imported_from == "transformers":
        setup.callbacks.add_callback(LoaderDraws())
    if "steps" not in data:
        return data
    if saved.train_batch_size not in (None, setup.args.train_batch_size):
        logger.warning(
            "The imported run had batches of %d samples, this one has %d: the place in the data is counted in "
            "steps, so it is not the same place.",
            saved.train_batch_size,
            setup.args.train_batch_size,
        )
    return place_after(
        data["steps"], run.plan.steps_per_epoch, setup.args.gradient_accumulation_steps, run.feed.position()
    )


def take_up_state(run: TrainingRun) -> None:
    """Just before the first batch after a resume: nothing that was drawn on the way there counts."""
    setup = run.setup
    take_up_training_weights(run)
    if run.resumed_random is not None:
        restore_random_state(setup, run.resumed_random)
        run.resumed_random = None
        if run.imported_from == "transformers" and not run.feed.consumed:
            # The epoch's own draw came before the restored state.
            draw_as_a_loader_does()
        setup.engine.mark_boundary()


def steps_with_what_is_left(run: TrainingRun, saved: TrainerState, position: dict[str, Any]) -> int:
    """``max_steps``, counted from here where steps or epochs before the resume were of another size."""
    setup, plan = run.setup, run.plan
    if setup.phases is not None:
        saved.num_train_epochs = setup.phases.epochs
        return saved.global_step + run.feed.steps_left_in_epoch() + setup.phases.steps_after(run.feed.epoch + 1)
    if plan.batches_per_epoch is None:
        return plan.max_steps
    alike = steps_are_alike(position, run.feed.position())
    if alike and (saved.max_steps == plan.max_steps or _was_always_alike(run, saved)):
        return plan.max_steps
    left_in_epoch = run.feed.steps_left_in_epoch()
    if setup.args.max_steps > 0:
        later = math.ceil((plan.max_steps - saved.global_step - left_in_epoch) / plan.steps_per_epoch)
        saved.num_train_epochs = max(plan.epochs, run.feed.epoch + 1 + later)
        return plan.max_steps
    if alike and (run.config_then or {}).get("num_train_epochs") == setup.args.num_train_epochs:
        # What was worked out at an earlier resume still holds.
        reschedule(run, saved.max_steps)
        return saved.max_steps
    later = max(0.0, setup.args.num_train_epochs - run.feed.epoch - 1)
    plan_here = saved.global_step + left_in_epoch + math.ceil(later * plan.steps_per_epoch)
    reschedule(run, plan_here)
    return plan_here


def _was_always_alike(run: TrainingRun, saved: TrainerState) -> bool:
    """Return True where the run stands at the step at which steps of the present size alone would have brought it."""
    done = run.plan.steps_per_epoch - run.feed.steps_left_in_epoch()
    return saved.global_step == run.feed.epoch * run.plan.steps_per_epoch + done


def reschedule(run: TrainingRun, total_steps: int) -> None:
    """The same learning-rate schedule, at the same step, over another number of steps in all."""
    setup = run.setup
    if setup.lr_scheduler is None or not setup.own_scheduler:
        return
    state = setup.lr_scheduler.state_dict()
    if run.made is not None:
        run.made = dataclasses.replace(run.made, curve=curve_now(setup, total_steps))
    rates = [(group["lr"], group["initial_lr"]) for group in setup.optimizer.param_groups]
    setup.lr_scheduler = None
    scheduler = setup.hooks().create_scheduler(num_training_steps=total_steps)
    scheduler.load_state_dict(state)
    for group, (rate, initial) in zip(setup.optimizer.param_groups, rates, strict=True):
        group["lr"], group["initial_lr"] = rate, initial
    setup.engine.follow_schedule(scheduler)
