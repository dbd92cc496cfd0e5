"""Trainer methods that take a run from its first step to its end, whatever comes in between."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainwright.callbacks.rank_log import RankLogCallback
from trainwright.callbacks.run_directory import keep_logged
from trainwright.callbacks.stragglers import StragglersCallback
from trainwright.callbacks.watchdog import WatchdogCallback
from trainwright.checkpoint.directory import newest_good
from trainwright.checkpoint.interchange.continuing import LoaderDraws, draw_as_a_loader_does, place_after
from trainwright.config.fields import ours
from trainwright.core.errors import NonFiniteError, Rewind, StopRequested
from trainwright.core.marker import clear_marker
from trainwright.core.run import Run, Unfinished
from trainwright.core.state import TrainerControl, TrainerState
from trainwright.core.stops import StopRequests
from trainwright.data.feed import TrainFeed, take
from trainwright.data.order import mixed_seed
from trainwright.data.position import steps_are_alike
from trainwright.engines.torch.nonfinite import NonFiniteWatch
from trainwright.engines.torch.own_time import OwnTime, Untimed
from trainwright.engines.torch.randomness import random_state_from
from trainwright.loop.fit import begin, end, run_epochs
from trainwright.trainer.foresight import warn_if_inexact
from trainwright.trainer.leaving import LeavingMethods
from trainwright.trainer.planning import TrainingPlan, refuse_uneven
from trainwright.trainer.restoring import found_again, stored_state
from trainwright.trainer.signatures import accepted_keywords, overrides
from trainwright.trainer.steps import StepMethods
from trainwright.trainer.weight_check import weight_check

logger = logging.getLogger("trainwright")


class RunningMethods(LeavingMethods):
    """Build a run and drive it."""

    _guards: list[Any] = []  # noqa: RUF012 - replaced, never changed
    _nonfinite: NonFiniteWatch
    #: Whether we made the schedule, and may make it again.
    _own_scheduler: bool

    def _train_to_the_end(
        self, loader: Any, plan: TrainingPlan, checkpoint: Path | None, ignore_keys: list[str] | None
    ) -> None:
        if self.args.should_save:
            clear_marker(self._run_directory())
        self._set_guards()
        run = self._build_run(loader, plan, checkpoint, ignore_keys)
        warn_if_inexact(self, loader)
        not_alone = self._backend.world_size > 1 or self.strategy.gathers_to_save
        with StopRequests(
            handle_signals=ours(self.args, "handle_signals"),
            max_seconds=None if ours(self.args, "max_hours") is None else ours(self.args, "max_hours") * 3600,
            deadline=ours(self.args, "preemption_deadline"),
            # Alone, a process does not know the random numbers of the others.
            on_deadline=None if not_alone else lambda: self._pass_the_deadline(run),
            instead_of=self._answering,
        ) as self._stops:
            try:
                self._look_for_what_fits(run, loader)
                begin(run)
                run = self._run_with_rewinds(run, loader, plan, ignore_keys)
                end(run)
            except StopRequested as stop:
                self._stop_early(run, stop)
            except KeyboardInterrupt as error:
                # Not by our handler, which waits for the step to end: raised by somebody's code, or signals are not
                # handled. Whoever has pressed the keys three times does not want to wait for a save.
                if not self._stops.is_pressed:
                    self._rescue(run, error)
                raise
            except Exception as error:
                if self._stops.explains(error):
                    self._stop_early(run, StopRequested(self._stops.reason))
                self._rescue(run, error)
                raise

    def _run_with_rewinds(self, run: Run, loader: Any, plan: TrainingPlan, ignore_keys: list[str] | None) -> Run:
        """Run the epochs; after too many bad steps go back to the last good checkpoint, if that was asked for."""
        left_out: list[tuple[int, list[int]]] = []
        last: tuple[Path, int] | None = None
        while True:
            try:
                run_epochs(run)
                return run
            except Rewind as rewind:
                self._saver.wait()
                self._backend.barrier()
                # By one: what the others see of a shared disk may be older by a moment.
                found = newest_good(self._run_directory()) if self._backend.rank == 0 else None
                checkpoint = self._backend.gather(found)[0]
                if checkpoint is None or last == (checkpoint, rewind.step):
                    # Nowhere to go, or the same place twice: leaving out batches did not help.
                    raise NonFiniteError(rewind.step, ours(self.args, "max_nonfinite_steps") or 1) from None
                last = (checkpoint, rewind.step)
                left_out += rewind.batches
                # What was bad is undone: the next look is at the step before it.
                self.engine.was_bad = False
                self._load_from_checkpoint(checkpoint)
                run = self._build_run(loader, plan, checkpoint, ignore_keys)
                if self.args.should_save:
                    keep_logged(self._run_directory() / "metrics.jsonl", self.state)
                for modifier in self.modifiers:
                    # Also where its start lies ahead again: what it did to the model is to be undone.
                    if modifier.site is not None:
                        modifier.resume(modifier.site, self.state.epoch or 0.0)
                for epoch, batches in left_out:
                    self._feed.leave_out(epoch, batches)
                self._events.record(
                    "rewound",
                    f"Went back from step {rewind.step} to {checkpoint.name}; the batches that failed are left out.",
                    step=rewind.step,
                    left_out=rewind.batches,
                )

    def _finish(self) -> None:
        # A run that was resumed with nothing left to do has not taken it up yet.
        self._take_up_state()
        self._nonfinite.settle()
        super()._finish()

    def _log_training(self, logs: dict[str, float]) -> None:
        if self._micro.is_on:
            logs["micro_batch"] = self.micro_batch_size
        super()._log_training(logs)
        self._nonfinite.settle()

    # ---- building the run

    def _build_run(self, loader: Any, plan: TrainingPlan, checkpoint: Path | None, ignore_keys: Any) -> Run:
        self.state = TrainerState(
            max_steps=plan.max_steps,
            num_train_epochs=plan.epochs,
            train_batch_size=self.args.train_batch_size,
            is_local_process_zero=self.is_local_process_zero(),
            is_world_process_zero=self.is_world_process_zero(),
            is_hyper_param_search=self._search is not None,
            trial_name=self.hp_name(self._search.trial) if self.hp_name and self._search else None,
            trial_params=self._search.trial.params if self._search else None,
        )
        self._feed = self._new_feed(loader, plan)
        self.control = TrainerControl()
        self.engine.tell = self._flags
        self._agree_on_the_time()
        self._micro, self._cut_is_known = self._new_micro_batching(), False
        may_save = self._may_save_unasked() or bool(ours(self.args, "rescue_on"))
        self.engine.boundary.keeps_random = may_save or self._micro.automatic
        self._nonfinite = NonFiniteWatch(
            self._events, ours(self.args, "max_nonfinite_steps"), rewind=ours(self.args, "rewind_on_nonfinite")
        )
        self._imported_from = None
        self.callback_handler.pop_callback(LoaderDraws)
        self._watch_generators()
        unfinished = self._continue_from(checkpoint, plan) if checkpoint is not None else Unfinished()
        self._feed.share_generators(self._backend.gather)
        self.state.compute_steps(self.args, plan.max_steps)
        self._refer_to(loader)
        self._plan, self._first_step = plan, self.state.global_step
        self._start_time = time.time()
        self._tokens_at_start = self.state.num_input_tokens_seen
        self._log_takes_time = "start_time" in accepted_keywords(self.log, ("start_time",))
        self._run = Run(
            args=self.args,
            state=self.state,
            control=self.control,
            callbacks=self.callback_handler,
            engine=self.engine,
            feed=self._feed,
            log=self._log_training,
            evaluate=lambda: self._evaluate_in_training(ignore_keys),
            save=self._save_in_training,
            finish=self._finish,
            observe_batch=self._remembering_observer(),
            last_logged_step=max((entry["step"] for entry in self.state.log_history if "loss" in entry), default=0),
            attend=self._attend,
            unfinished=unfinished,
            take_up_state=self._take_up_state,
            micro=self._micro,
            cut=self.split_batch,
            redo=self._step_was_redone,
        )
        return self._run

    def _new_feed(self, loader: Any, plan: TrainingPlan) -> TrainFeed:
        refuse_uneven(plan, self._backend)
        return TrainFeed(
            loader,
            self.args.gradient_accumulation_steps,
            plan.batches_per_epoch,
            steps_if_unsized=plan.max_steps,
            draw=self._draw_batches if overrides(self, StepMethods, "get_batch_samples") else take,
            poll=self._leave_if_asked,
            process=self._place(),
            agree=lambda has_more: bool(self._backend.sum(int(has_more))),
        )

    def _refer_to(self, loader: Any) -> None:
        """What callbacks are given with every event of this run."""
        self.callback_handler.references.update(
            model=self.model,
            optimizer=self.optimizer,
            lr_scheduler=self.lr_scheduler,
            train_dataloader=loader,
            losses=self.engine.meter,
            modifiers=self.modifiers,
            events=self._events,
        )

    def _remembering_observer(self) -> Callable[[Any], None] | None:
        """Counts each micro-batch, and knows what was counted before the step it belongs to."""
        observe, self._counts_before = self._observer(), None
        if observe is None:
            return None

        def observe_batch(batch: Any) -> None:
            state = self.state
            if self._counts_before is None or self._counts_before[0] != state.global_step:
                operations = state.total_flos + self.current_flos
                self._counts_before = (state.global_step, state.num_input_tokens_seen, operations)
            observe(batch)

        return observe_batch

    def _set_guards(self) -> None:
        """Callbacks that watch over one run, also where it goes back to a checkpoint; those of an earlier run go."""
        for guard in self._guards:
            self.callback_handler.remove_callback(guard)
        self._guards = []
        seconds = ours(self.args, "watchdog_seconds")
        rank, world_size = self._backend.rank, self._backend.world_size
        if seconds and (self.args.should_save or world_size > 1):
            ends = ours(self.args, "watchdog_exit")
            last = self._leave_hanging
            watchdog = WatchdogCallback(self._events, seconds, ends, rank=rank, world_size=world_size, before_exit=last)
            self._guards.append(watchdog)
        check = weight_check(ours(self.args, "check_weights_every"), self.strategy, self._backend, self._events)
        self._guards += [check] if check is not None else []
        self.engine.own_time = Untimed()
        if world_size > 1:
            level = self.args.get_process_log_level()
            self._guards.append(RankLogCallback(self._run_directory(), rank, level))
            self.engine.own_time = OwnTime(rank, world_size, self.engine.device)
            self._guards.append(StragglersCallback(self._step_times))
        present = {type(callback) for callback in self.callback_handler.callbacks}
        # Somebody may have brought a watchdog with other settings.
        self._guards = [guard for guard in self._guards if type(guard) not in present]
        for guard in self._guards:
            # Bars and trackers see what it adds to a log.
            self.callback_handler.add_callback(guard, first=isinstance(guard, StragglersCallback))

    def _step_times(self) -> list[float]:
        """Of each process, for the log that is being written."""
        clock = self.engine.own_time
        if not isinstance(clock, OwnTime):
            return []
        clock.forget()
        return clock.every

    def _continue_from(self, checkpoint: Path, plan: TrainingPlan) -> Unfinished:
        """Put everything where the checkpoint left it; returns what was still to be done there."""
        saved = stored_state(checkpoint)
        rest = self._load_training_state(checkpoint)
        rest["data"] = self._place_of_import(rest["data"], saved, plan)
        self.state = saved
        saved.num_train_epochs, saved.train_batch_size = plan.epochs, self.args.train_batch_size
        # The first process wrote it; what this one shows and writes depends on which one it is.
        saved.is_local_process_zero = self.is_local_process_zero()
        saved.is_world_process_zero = self.is_world_process_zero()
        saved.best_model_checkpoint = found_again(saved.best_model_checkpoint, checkpoint)
        self._resumed_random = rest["random"]
        if rest["random"] is None and rest["processes"] <= self._backend.rank:
            # The run had fewer processes; this one has drawn nothing in it yet.
            seed = mixed_seed(self.args.seed, saved.global_step, self._backend.rank)
            self._resumed_random = random_state_from(seed)
        if rest["schedule_is_missing"] and self.lr_scheduler is not None:
            # Its state could not be saved: as many steps bring it to about the same place.
            for _ in range(saved.global_step):
                self.lr_scheduler.step()
        self._take_up_cut(rest["micro_batch"])
        self._feed.start_at(rest["data"], after_skip=self._take_up_state, restart_epoch=self.args.ignore_data_skip)
        saved.max_steps = self._steps_with_what_is_left(saved, plan, rest["data"])
        self._restore_callbacks(saved.stateful_callbacks)
        self._saved_moment, self._saver.last_saved = self._moment_key(), checkpoint
        logger.info("Resuming from %s at step %d.", checkpoint, saved.global_step)
        if rest["was_ending"]:
            logger.warning("A callback had ended this run at step %d, so it does not go on.", saved.global_step)
        return self._left_to_do(saved, rest)

    def _left_to_do(self, saved: TrainerState, rest: dict[str, Any]) -> Unfinished:
        switches = saved.stateful_callbacks.get("TrainerControl", {}).get("args", {})
        evaluation, save = bool(switches.get("should_evaluate")), bool(switches.get("should_save"))
        if evaluation or save:
            # These let the weights rest, in a run that is not interrupted too.
            self._weights_in_training = {}
        self.control.should_save = evaluation and save
        is_at_the_end = saved.global_step == saved.max_steps and bool(rest["data"]["batches"])
        is_open = not rest["data"].get("end_was_announced", True)
        return Unfinished(
            evaluation=evaluation,
            epoch_end=is_open and (is_at_the_end or rest["was_ending"] or evaluation),
            stop=rest["was_ending"],
        )

    def _place_of_import(self, data: dict[str, Any], saved: TrainerState, plan: TrainingPlan) -> dict[str, Any]:
        """``data``, worked out from the present plan where an imported checkpoint knows only its number of steps."""
        if self._imported_from == "transformers":
            self.callback_handler.add_callback(LoaderDraws())
        if "steps" not in data:
            return data
        if saved.train_batch_size not in (None, self.args.train_batch_size):
            logger.warning(
                "The imported run had batches of %d samples, this one has %d: the place in the data is counted in "
                "steps, so it is not the same place.",
                saved.train_batch_size,
                self.args.train_batch_size,
            )
        return place_after(
            data["steps"], plan.steps_per_epoch, self.args.gradient_accumulation_steps, self._feed.position()
        )

    def _take_up_state(self) -> None:
        """Just before the first batch after a resume: nothing that was drawn on the way there counts."""
        self._take_up_training_weights()
        if self._resumed_random is not None:
            self._restore_random_state(self._resumed_random)
            self._resumed_random = None
            if self._imported_from == "transformers" and not self._feed.consumed:
                # The epoch's own draw came before the restored state.
                draw_as_a_loader_does()
            self.engine.mark_boundary()

    def _evaluate_in_training(self, ignore_keys: list[str] | None) -> dict[str, float]:
        if self._resumed_random is None:
            return super()._evaluate_in_training(ignore_keys)
        # The evaluation that the interrupted run still had to do: it begins and ends with that run's random numbers.
        self._restore_random_state(self._resumed_random)
        metrics = super()._evaluate_in_training(ignore_keys)
        self._resumed_random = self._random_now()
        return metrics

    def _steps_with_what_is_left(self, saved: TrainerState, plan: TrainingPlan, position: dict[str, Any]) -> int:
        """``max_steps``, counted from here where steps or epochs before the resume were of another size."""
        now = self._feed.position()
        if plan.batches_per_epoch is None or steps_are_alike(position, now):
            return plan.max_steps
        left_in_epoch = self._feed.steps_left_in_epoch()
        if self.args.max_steps > 0:
            later = math.ceil((plan.max_steps - saved.global_step - left_in_epoch) / plan.steps_per_epoch)
            saved.num_train_epochs = max(plan.epochs, self._feed.epoch + 1 + later)
            return plan.max_steps
        later = max(0.0, self.args.num_train_epochs - self._feed.epoch - 1)
        plan_here = saved.global_step + left_in_epoch + math.ceil(later * plan.steps_per_epoch)
        self._plan = dataclasses.replace(plan, max_steps=plan_here)
        self._reschedule(plan_here)
        return plan_here

    def _reschedule(self, total_steps: int) -> None:
        """The same learning-rate schedule, at the same step, over another number of steps in all."""
        if self.lr_scheduler is None or not self._own_scheduler:
            return
        state = self.lr_scheduler.state_dict()
        rates = [(group["lr"], group["initial_lr"]) for group in self.optimizer.param_groups]
        self.lr_scheduler = None
        scheduler = self.create_scheduler(num_training_steps=total_steps, optimizer=self.optimizer)
        scheduler.load_state_dict(state)
        for group, (rate, initial) in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"], group["initial_lr"] = rate, initial
        self.engine.scheduler = scheduler
