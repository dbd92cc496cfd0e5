"""A run's contents: at the start of a training, and again when it goes back to a checkpoint."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from trainwright.callbacks.tracking import TrackerCallback
from trainwright.checkpoint.interchange.continuing import LoaderDraws
from trainwright.core.engine import RunLink
from trainwright.core.run import Phase, Unfinished
from trainwright.core.signatures import accepted_keywords
from trainwright.core.state import TrainerControl, TrainerState
from trainwright.data.feed import TrainFeed, take
from trainwright.engines.torch.nonfinite import NonFiniteWatch
from trainwright.training.counting import step_observer
from trainwright.training.hooks import is_overridden
from trainwright.training.memory import new_micro_batching
from trainwright.training.phases import settle_phases
from trainwright.training.plan import refuse_uneven
from trainwright.training.random_state import watch_generators
from trainwright.training.recipe import final_epoch, follow_recipe
from trainwright.training.resume import continue_from
from trainwright.training.run import TrainingRun
from trainwright.training.save import may_save_unasked
from trainwright.training.setup import data_rank
from trainwright.training.step import draw_batches
from trainwright.training.stop import (
    agree_on_the_time,
    finding_its_place,
    flags_for_others,
    hear_others,
    leave_if_asked,
)


def fill(run: TrainingRun, checkpoint: Path | None) -> None:
    """Put ``run`` at its first step, or where ``checkpoint`` stands; it stays the object that everybody holds."""
    setup, plan = run.setup, run.plan
    settle_phases(run)
    follow_recipe(run)
    setup.state = _new_state(run)
    setup.control, setup.callbacks.stopped_by = TrainerControl(), None
    run.feed, run.phase = _new_feed(run), Phase.BETWEEN
    agree_on_the_time(run)
    run.micro, run.cut_is_known = new_micro_batching(setup), False
    setup.engine.begin_run(_link_to(run))
    run.nonfinite = NonFiniteWatch(run.events, setup.args.max_nonfinite_steps, rewind=setup.args.rewind_on_nonfinite)
    run.imported_from = None
    run.changes, run.history, run.is_over = [], [], False
    setup.callbacks.pop_callback(LoaderDraws)
    watch_generators(setup)
    run.unfinished = continue_from(run, checkpoint) if checkpoint is not None else Unfinished()
    run.feed.share_generators(setup.backend.gather)
    setup.state.compute_steps(setup.args, plan.max_steps)
    _refer_to(run)
    run.first_step, run.start_time = setup.state.global_step, time.time()
    run.tokens_at_start = setup.state.num_input_tokens_seen
    run.log_takes_time = "start_time" in accepted_keywords(setup.hooks().log, ("start_time",))
    run.observe_step = step_observer(run)
    losses = (entry for entry in reversed(setup.state.log_history) if "loss" in entry)
    run.last_logged_step = next(losses, {}).get("step", 0)
    wanted = setup.args.best_model_after_epoch
    run.best_after = final_epoch(setup) if wanted is None else wanted


def _link_to(run: TrainingRun) -> RunLink:
    """What the engine asks of this run."""
    may_save = may_save_unasked(run.setup) or bool(run.setup.args.rescue_on)
    return RunLink(
        tell=partial(flags_for_others, run),
        hear=partial(hear_others, run),
        wait_for_copy=run.saver.wait_for_copy,
        update_begins=partial(_enter_update, run),
        undoes_steps=may_save or run.micro.automatic,
    )


def _enter_update(run: TrainingRun) -> None:
    run.phase = Phase.UPDATE


def _new_state(run: TrainingRun) -> TrainerState:
    setup, plan = run.setup, run.plan
    return TrainerState(
        max_steps=plan.max_steps,
        num_train_epochs=plan.epochs,
        train_batch_size=setup.args.train_batch_size,
        is_local_process_zero=setup.hooks().is_local_process_zero(),
        is_world_process_zero=setup.hooks().is_world_process_zero(),
        is_hyper_param_search=setup.search is not None,
        trial_name=setup.hp_name(setup.search.trial) if setup.hp_name and setup.search else None,
        trial_params=setup.search.trial.params if setup.search else None,
    )


def _new_feed(run: TrainingRun) -> TrainFeed:
    setup, plan = run.setup, run.plan
    refuse_uneven(plan, setup.backend)
    return TrainFeed(
        run.loader,
        setup.args.gradient_accumulation_steps,
        plan.batches_per_epoch,
        steps_if_unsized=plan.max_steps,
        draw=partial(draw_batches, setup) if is_overridden(setup.hooks(), "get_batch_samples") else take,
        poll=partial(leave_if_asked, run),
        finding_place=partial(finding_its_place, run),
        process=data_rank(setup),
        agree=lambda has_more: bool(setup.backend.sum(int(has_more))),
    )


def _refer_to(run: TrainingRun) -> None:
    """What callbacks are given with every event of this run."""
    setup = run.setup
    setup.callbacks.references.update(
        model=setup.model,
        optimizer=setup.optimizer,
        lr_scheduler=setup.lr_scheduler,
        train_dataloader=run.loader,
        losses=setup.engine.meter,
        modifiers=setup.modifiers,
        data_words=setup.data_words,
        events=run.events,
        history=run.history,
        is_over=run.is_over,
        trackers=[one for one in setup.callbacks.everyone if isinstance(one, TrackerCallback)],
    )
