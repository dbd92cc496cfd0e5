"""Trainer methods that write models and checkpoints; each may be overridden."""

from __future__ import annotations

import dataclasses
import logging
import threading
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainwright.checkpoint.directory import checkpoint_path, rotate, sweep
from trainwright.checkpoint.identity import Owner, RunIdentity
from trainwright.checkpoint.ownership import claim
from trainwright.checkpoint.pack import TensorPack
from trainwright.checkpoint.saver import SaveJob, Saver
from trainwright.checkpoint.together import Together
from trainwright.checkpoint.weights import WEIGHTS, copied_apart, save_config, save_weights
from trainwright.config.fields import ours
from trainwright.config.intervals import SAVE, cadence
from trainwright.config.run_directory import run_directory
from trainwright.core.callback import listens_to
from trainwright.core.events import RunEvents
from trainwright.core.run import Phase, Run
from trainwright.core.spread import is_spread
from trainwright.data.feed import TrainFeed
from trainwright.engines.torch.randomness import RandomState, of_all_processes
from trainwright.engines.torch.targets import unwrap
from trainwright.trainer.capture import Capture
from trainwright.trainer.checkpoint_texts import Moment, arguments_text
from trainwright.trainer.exactness import ExactnessMethods
from trainwright.trainer.handing_over import HandingOver
from trainwright.trainer.recipe_folder import RecipeState, state_file, write_recipe_files
from trainwright.trainer.shared_capture import NothingToWrite, SharedFiles, gathered, saved_by_all
from trainwright.trainer.signatures import is_ours, is_users_own

logger = logging.getLogger("trainwright")


class SavingMethods(ExactnessMethods):
    """Checkpoints and models of a Trainer."""

    _feed: TrainFeed
    _events: RunEvents
    _saver: Saver
    _capture: Capture
    #: Takes checkpoints elsewhere, where a checkpointer was given.
    _handing_over: HandingOver | None = None
    #: Those who write checkpoints with this process, where no process has all the weights.
    together: Together | None = None
    #: What the recipe's modifiers know, while a model in parts is saved.
    _gathered_state: RecipeState | None = None
    #: Held while a checkpoint is captured: the deadline's thread may want to do the same.
    _saving: threading.Lock
    #: The run that is trained, and whether the run directory is known to be its own.
    _owner: Owner
    _has_claimed = False
    #: What the last checkpoint holds: the same moment need not be saved twice.
    _saved_moment: tuple[Any, ...] | None = None
    #: Random state of the checkpoint, until the first step after a resume takes it up.
    _resumed_random: tuple[dict[str, Tensor], dict[str, Any]] | None = None
    #: The step under way, and how many tokens and floating point operations there were before it.
    _counts_before: tuple[int, int, float] | None = None

    def save_model(self, output_dir: str | Path | None = None, _internal_call: bool = False) -> None:
        """Write the model (and tokenizer or processor) so that ``from_pretrained`` reads it.

        Without ``output_dir`` it goes to the checkpointer, if the Trainer was given one. Where the weights are in
        parts (FSDP, DeepSpeed), every process must call this; with FSDP each writes some of them.
        """
        self.strategy.settle()
        if self._takes_all_to_save():
            self._save_by_all(Path(output_dir or self._run_directory()))
            return
        with self.strategy.whole(self.model, keep=self.args.should_save):
            if not self.args.should_save:
                return
            if output_dir is None and self._handing_over is not None:
                self._handing_over.save_model(unwrap(self.model), self.state.global_step)
            else:
                self._save(Path(output_dir or self._run_directory()))

    def _save(self, output_dir: str | Path | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        folder = Path(output_dir or self._run_directory())
        folder.mkdir(parents=True, exist_ok=True)
        save_weights(unwrap(self.model), folder, state_dict)
        self._save_beside(folder)

    def _save_beside(self, folder: Path) -> None:
        """What a saved model has besides weights and configuration."""
        self._save_processor(folder)
        (folder / "config.yaml").write_text(arguments_text(self.args)(), encoding="utf-8")
        write_recipe_files(folder, self._recipe_text(), self._gathered_state or state_file(self.modifiers))

    def _takes_all_to_save(self) -> bool:
        """Whether no process has all the weights."""
        return self.strategy.is_sharded and any(is_spread(parameter) for parameter in self.model.parameters())

    def _writers(self) -> Together | None:
        """The processes that write together, where it takes all of them."""
        if not self.strategy.is_sharded:
            return None
        if self.together is None:
            self._backend.start(self.args)
            self.together = Together(self.args.ddp_timeout)
        return self.together

    def _save_by_all(self, folder: Path) -> None:
        writers = self._writers()
        assert writers is not None
        # While all are here: a mask may be in parts too.
        self._gathered_state = state_file(self.modifiers)
        try:
            self._save_parts(folder, writers)
        finally:
            self._gathered_state = None

    def _save_parts(self, folder: Path, writers: Together) -> None:
        model = None if is_users_own(self, "_save") else copied_apart(unwrap(self.model))
        if model is None:
            # Only somebody else's code knows how to write it, and that wants everything in one place.
            whole = gathered(unwrap(self.model).state_dict(), keep=self.args.should_save)
            if self.args.should_save:
                self._save(folder, state_dict=whole)
            self._backend.barrier()
            return
        files = SharedFiles(writers, {WEIGHTS: model[0]}, model[1], lambda kind, tensors: TensorPack(tensors))
        if self.args.should_save:
            folder.mkdir(parents=True, exist_ok=True)
            save_config(unwrap(self.model), folder)
            self._save_beside(folder)
        saved_by_all(folder, files)

    def _save_processor(self, folder: Path) -> None:
        processor = self.processing_class or getattr(getattr(self, "data_collator", None), "tokenizer", None)
        if hasattr(processor, "save_pretrained"):
            processor.save_pretrained(str(folder))

    def _open_saving(self) -> None:
        """At the start of a training: its own events, its own writer."""
        self._events = RunEvents(self._run_directory() if self.args.should_save else None)
        handing_over = self._handing_over
        if handing_over is None:
            self._saver = Saver(self._events, self._rotate)
        else:
            self._saver = Saver(self._events, deliver=handing_over.deliver)
        self._capture = Capture()
        self._saved_moment = None
        self._owner, self._has_claimed = Owner(RunIdentity.new()), False
        if self.args.should_save and (swept := sweep(self._run_directory())):
            # Before a checkpoint is looked for: a kill in the middle of a save may have left one under another name.
            self._events.record(
                "swept", f"Cleared what a killed run left behind: {', '.join(swept)}.", level=logging.INFO
            )
        self._saving = threading.Lock()
        self._writers()
        self.engine.wait_for_copy = self._saver.wait_for_copy

    def _claim_run_directory(self, last_step: int | None = None) -> None:
        """Make the run directory that of this run; once for each training, by the process that writes.

        ``last_step`` where it was resumed from a checkpoint that the user named: later ones are of another course.
        """
        if not self._has_claimed and self._handing_over is None and self.args.should_save:
            self._has_claimed = True
            claim(self._run_directory(), self._owner, self._events, last_step)

    def _save_checkpoint(self, model: nn.Module, trial: Any = None) -> None:
        """Write ``checkpoint-<step>`` whole, then let older ones go; in the background where nobody waits for it."""
        # Somebody may have called the model since.
        self.strategy.settle()
        self.engine.rest_weights()
        random, position = self._random_of_all(), self._feed.position_of_all(self.engine.gather)
        if not self.args.should_save and self.together is None and not self.strategy.gathers_to_save:
            self._note_best_folder()
            return
        moment = None if self.args.save_only_model else Moment(random, position)
        aside = ours(self.args, "save_in_background") and self._handing_over is None and not self._save_is_awaited()
        self._write_moment(moment, background=aside)
        self._saved_moment = self._moment_key()

    def _write_moment(self, moment: Moment | None, *, background: bool) -> None:
        target = checkpoint_path(self._checkpoint_home(), self.state.global_step)
        self._note_best_folder()
        with self._saving, self.strategy.whole(self.model, self.optimizer, keep=self.args.should_save):
            if not self.args.should_save and self.together is None:
                return
            # The one in flight uses the same room in memory.
            self._saver.wait()
            self._claim_run_directory()
            job = self._captured(target, moment)
            # What only the model's own code can write must be written while the model is whole.
            background = background and not (self.strategy.gathers_to_save and WEIGHTS not in job.tensors)
            self._saver.save(job, background=background)

    def _captured(self, target: Path, moment: Moment | None) -> SaveJob:
        """The checkpoint to write; where it cannot be made, one that says what went wrong."""
        try:
            return self._capture.job(self, target, moment)
        except Exception as error:
            # Anything: model, optimizer and schedule are asked for their state, and their code is not ours.
            self._capture.forget()
            shared = None if self.together is None else NothingToWrite(self.together)
            return SaveJob(target, self.state.global_step, lambda folder: None, shared=shared, failure=error)

    def _note_best_folder(self) -> None:
        """Remember where the best model is, or is about to be."""
        if self.state.best_global_step is not None and self._handing_over is None:
            best = checkpoint_path(self._run_directory(), self.state.best_global_step)
            if best.is_dir() or self.state.best_global_step == self.state.global_step:
                self.state.best_model_checkpoint = str(best)

    def _save_is_awaited(self) -> bool:
        """Whether somebody looks at the finished folder right after: a callback, an override, an upload."""
        listeners = [callback for callback in self.callback_handler.callbacks if listens_to(callback, "on_save")]
        waits = is_users_own(self, "_save_checkpoint") or not all(is_ours(callback) for callback in listeners)
        return waits or (self.args.push_to_hub and self.args.hub_strategy != "end")

    def _rotate(self, written: Path) -> None:
        gone = rotate(
            self._run_directory(),
            self._owner,
            self.args.save_total_limit,
            written,
            self.state.best_model_checkpoint,
            keep_every=ours(self.args, "keep_every"),
        )
        for path in gone:
            logger.info("Deleted %s (save_total_limit=%s).", path.name, self.args.save_total_limit)

    def _run_directory(self) -> Path:
        return run_directory(self.args)

    def _checkpoint_home(self) -> Path:
        """Where checkpoint folders are made."""
        return self._run_directory() if self._handing_over is None else self._handing_over.home()

    def _hand_over_the_end(self) -> None:
        """After a training whose checkpoints go to a checkpointer: the finished model."""
        try:
            self.save_model()
        except Exception as error:
            # Anything: it is the user's code, and the training itself went well.
            self._events.unsaved["the finished model, by the checkpointer"] = f"{type(error).__name__}: {error}"

    def _moment_key(self) -> tuple[Any, ...]:
        """Equal for two looks at the same moment of a run."""
        position = self._feed.position()
        return (self.state.global_step, position["epoch"], position["batches"], len(self.state.log_history))

    def _optimizer_parameter_names(self) -> list[str]:
        """Name of each parameter in the order in which the optimizer numbers them."""
        names = {id(p): name for name, p in unwrap(self.model).named_parameters()}
        groups = self.optimizer.param_groups
        parameters = [p for group in groups for p in group["params"]]
        found = [names.get(id(p), f"unnamed.{index}") for index, p in enumerate(parameters)]
        # A parameter that two optimizers of a Module share has a state in each.
        first = {name: index for index, name in reversed(list(enumerate(found)))}
        return [name if first[name] == index else f"{name}#{index}" for index, name in enumerate(found)]

    # ---- saving when something came in between

    def _may_save_unasked(self, kind: str | None = None) -> bool:
        """Whether checkpoints are wanted at all or, where something ends the run, for that ``kind`` of end."""
        wanted = self._wants_checkpoints() or kind in (ours(self.args, "rescue_on") or ())
        takes_part = self.args.should_save or self.together is not None or self.strategy.gathers_to_save
        return wanted and takes_part and not self.args.save_only_model

    def _wants_checkpoints(self) -> bool:
        by_strategy = self.args.save_strategy == "best" or self.args.enable_jit_checkpoint
        return bool(cadence(self.args, SAVE)) or by_strategy

    def _random_of_all(self) -> RandomState:
        """Random states of all processes, which stand between the same two steps."""
        self._say_what_came_late()
        own = self._random_now() if self._resumed_random is None else self._resumed_random
        return of_all_processes(self._backend.gather(own))

    def _save_where_it_stands(
        self, run: Run, random: RandomState | None = None, position: dict[str, Any] | None = None
    ) -> Path | None:
        """Save the last boundary of an interrupted run: the unfinished step, if any, is undone first.

        ``random`` and ``position`` are those of all processes, where they were interrupted together.
        """
        if run.phase is Phase.UPDATE:
            self._events.record(
                "not_saved", "The update of the weights was interrupted; there is no state worth saving.", step=None
            )
            return None
        # What is under way is about this moment or an earlier one.
        self._saver.wait()
        target = checkpoint_path(self._checkpoint_home(), self.state.global_step)
        # What a checkpointer was given has a name here but no path.
        shown = target if self._handing_over is None else Path(target.name)
        is_there = self._saved_moment == self._moment_key() and self._saver.last_saved == target
        if self.strategy.gathers_to_save:
            # The first process writes, so it knows; the others must come if it wants to.
            is_there = self._backend.gather(is_there)[0]
        if is_there:
            return shown
        moment = self._last_boundary(run)
        if run.phase is Phase.STEP:
            self.engine.boundary.roll_back()
            self.strategy.recover()
            self.engine.clear_gradients()
        self.strategy.settle()
        ends = self.control.should_training_stop and self.state.global_step < self.state.max_steps
        moment = dataclasses.replace(moment, in_training=self._rested_weights(), was_ending=ends)
        if random is not None:
            moment = dataclasses.replace(moment, random=random)
        if position is not None and run.phase is not Phase.STEP:
            moment = dataclasses.replace(moment, position=position)
        self._write_moment(moment, background=False)
        return shown if self._saver.last_saved == target else None

    def _rested_weights(self) -> dict[str, Tensor]:
        """Let the weights rest; returns those that this changed, as they were.

        A schedule-free optimizer works its training weights out from its average, which is what is saved, but not to
        the last bit; a run that nobody interrupts does not come by here.
        """
        if not callable(getattr(self.optimizer, "eval", None)):
            self.engine.rest_weights()
            return {}
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        before = [p.detach().clone() for p in parameters]
        self.engine.rest_weights()
        named = zip(self._optimizer_parameter_names(), before, parameters, strict=True)
        return {name: old for name, old, now in named if not torch.equal(old, now)}

    def _last_boundary(self, run: Run) -> Moment:
        boundary = self.engine.boundary
        if run.phase is Phase.STEP:
            before = self._counts_before
            return Moment(
                boundary.random_state(),
                self._feed.position(before_last_group=True),
                boundary.buffers(),
                before[1:] if before is not None and before[0] == self.state.global_step else None,
            )
        if self._resumed_random is not None:
            return Moment(self._resumed_random, self._feed.position())
        was_drawn_from = run.phase in (Phase.EVALUATION, Phase.FETCH)
        return Moment(boundary.random_state() if was_drawn_from else self._random_now(), self._feed.position())

    def _save_last_boundary_aside(self, run: Run, why: str) -> None:
        """From another thread, while a step is under way that will not end in time."""
        with self._saving:
            with self.engine.update_lock:
                may_copy = self.engine.may_copy_aside and run.phase is not Phase.UPDATE
                if not may_copy or not self._may_save_unasked() or self._saver.busy:
                    return
                step = self.state.global_step
                self._claim_run_directory()
                job = self._captured(checkpoint_path(self._checkpoint_home(), step), self._last_boundary(run))
                if job.copy is not None:
                    job.copy()
                    job.copy = None
            self._saver.save(job, background=False)
        self._events.record("deadline", f"{why}: step {step} was saved as it was before.", step=step)

    def _save_has_failed(self) -> bool:
        has_failed = self._saver.failed_step is not None
        return self._backend.gather(has_failed)[0] if self.strategy.gathers_to_save else has_failed
